"""The statistics against scipy, and Holm against its definition, on random data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from metasp.reports.significance import ROUNDING, holm, interval, paired, summarise


@pytest.mark.parametrize("seed", range(20))
def test_mean_std_and_paired_test_are_scipys(seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 9))
    a, b = random.normal(50, 5, n), random.normal(52, 5, n)
    names = random.permutation(np.arange(1231, 1231 + n))
    ours = paired(
        {int(s): x for s, x in zip(names, a)},
        {int(s): x for s, x in sorted(zip(names, b))},  # another order of the same seeds
    )
    theirs = stats.ttest_rel(a, b)
    assert ours.t == pytest.approx(theirs.statistic)
    assert ours.p == pytest.approx(theirs.pvalue)
    summary = summarise(list(a))
    assert summary.mean == pytest.approx(stats.describe(a).mean)
    assert summary.std**2 == pytest.approx(stats.describe(a).variance)


def test_what_cannot_be_tested_is_not():
    assert paired({1: 2.0}, {1: 1.0}).p is None
    assert paired({1: 2.0}, {2: 1.0}).difference is None
    assert paired({1: 2.0, 2: 3.0}, {1: 2.0, 2: 3.0}).p == 1.0
    same = paired({1: 50.1, 2: 52.3, 3: 60.7}, {1: 49.6, 2: 51.8, 3: 60.2})
    assert same.difference == pytest.approx(0.5)
    assert same.p is None  # the same gap on every seed: no spread to judge it by
    assert same.t is None
    within = paired({1: ROUNDING, 2: 0.0}, {1: 0.0, 2: 0.0})  # no more than rounding
    assert (within.t, within.p) == (0.0, 1.0)
    assert interval([0.0, ROUNDING]) == (ROUNDING / 2, None, None)
    alike = paired({1: ROUNDING, 2: ROUNDING}, {1: 0.0, 2: 0.0})
    assert (alike.t, alike.p) == (0.0, 1.0)
    assert summarise([]) is None
    assert interval([]) is None
    assert summarise([3.0]).std is None
    assert interval([3.0]) == (3.0, None, None)
    mean, *ends = interval([50.1 - 49.6, 52.3 - 51.8, 60.7 - 60.2])
    assert mean == pytest.approx(0.5)
    assert ends == [None, None]


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.001, 0.999))
def test_holm_rejects_what_the_step_down_procedure_rejects(ps, level):
    """Go up from the smallest p; stop at the first that is not below level / (tests left)."""
    rejected = set()
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if ps[index] * (len(ps) - rank) > level:
            break
        rejected.add(index)
    assert {i for i, p in enumerate(holm(ps)) if p <= level} == rejected


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_an_interval_is_scipys(level):
    values = [1.0, 2.0, 4.0, 7.0]
    mean, low, high = interval(values, level)
    wanted = stats.t.interval(level, 3, np.mean(values), stats.sem(values))
    assert (mean, low, high) == pytest.approx((3.5, *wanted))
    assert interval(values)[1:] == interval(values, 0.95)[1:]

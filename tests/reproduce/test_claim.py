"""The pooled estimate and the verdicts of the claim against independent calculations."""

from pathlib import Path

import numpy as np
import pytest
from reproduce.claim import Difference, differences, pooled, pooled_table, table, verdict
from reproduce.claim_figure import draw_gain, gain_parts
from scipy import stats

from metasp.reports.figures import save
from tests.helpers import ROOT


def test_equal_errors_without_spread_give_the_plain_mean():
    over = pooled([1.0, 1.0, 1.0], [0.5, 0.5, 0.5])
    assert over.mean == pytest.approx(1.0)
    assert over.between == 0.0
    assert over.high - over.mean == pytest.approx(1.96 * 0.5 / 3**0.5)


def test_two_cells_with_spread_by_hand():
    # w = 1, 1: Q = 8, tau² = (8 - 1) / (2 - 1) = 7, variance of the mean (1 + 7) / 2 = 4
    over = pooled([-2.0, 2.0], [1.0, 1.0])
    assert over.between == pytest.approx(7**0.5)
    assert (over.low, over.high) == pytest.approx((-1.96 * 2, 1.96 * 2))


def test_a_precise_cell_counts_most():
    assert pooled([0.0, 1.0], [0.1, 1.0]).mean < 0.1


def test_p_is_that_of_a_paired_t_test():
    gaps = (0.3, -0.1, 0.9, 0.4, 0.2)
    assert Difference("", "a", "b", "A_inf", gaps).p == pytest.approx(
        stats.ttest_1samp(gaps, 0).pvalue
    )


@pytest.mark.parametrize(
    ("centre", "expected"), [(3.0, "holds"), (-1.0, "does not hold"), (0.25, "unknown")]
)
def test_a_verdict_follows_the_interval(centre, expected):
    gaps = tuple(centre + np.array([-0.3, -0.1, 0.0, 0.1, 0.3]))
    difference = Difference("", "MetaSP", "shuffled", "A_inf", gaps)
    assert verdict(difference, difference.p) == expected


def test_the_stored_sweep_of_fashion_mnist_has_the_published_difference():
    """Docs show −6.6 for RehSel minus MetaSP on CIFAR-10, p .02."""
    compared = differences([Path(ROOT / "results/cifar10-whole.parquet")])
    shown = table(compared).set_index("comparison").loc["RehSel − MetaSP"]
    assert shown["difference"] == pytest.approx(-6.55)
    assert round(shown["p"], 2) == 0.02
    assert "RehSel, as written − MetaSP" not in set(pooled_table(compared)["comparison"])


def test_the_parts_of_the_gain_add_up_to_rehsel_minus_er(tmp_path):
    gaps = {"ER at its schedule": (1.0, 2.0), "MetaSP": (0.5, -0.5), "RehSel": (-2.0, -1.0)}
    parts = [
        Difference("a stream", *pair, "A_inf", values)
        for pair, values in zip(
            [("ER at its schedule", "ER"), ("MetaSP", "ER at its schedule"), ("RehSel", "MetaSP")],
            gaps.values(),
        )
    ]
    unfinished = Difference("another", "RehSel", "MetaSP", "A_inf", (1.0, 2.0))
    frame = gain_parts([*parts, unfinished])
    measured = frame[~frame["stream"].str.startswith("paper")]
    assert set(measured["stream"]) == {"a stream"}
    assert measured["difference"].sum() == pytest.approx(1.5 + 0.0 - 1.5)
    cifar10 = frame[frame["stream"] == "paper: CIFAR-10, memory 500"]
    assert cifar10["difference"].tolist() == pytest.approx([49.16 - 40.45, 50.10 - 49.16])
    for path in save(draw_gain(parts), tmp_path):
        assert path.stat().st_size > 100

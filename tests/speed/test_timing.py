"""The timing helper and the benchmark's steps; nothing here asserts a speed."""

import pytest
import torch
from benchmarks.influence import (
    Setting,
    Workbench,
    grown,
    measure,
)
from benchmarks.timing import Timing, interleave, peak_bytes

SMALL = Setting(width=2, batch=6, goal=4)


def test_calls_take_turns():
    order = []
    ticks = iter(range(100))
    found = interleave(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        repeats=3,
        warmup=1,
        clock=lambda: float(next(ticks)),
    )
    assert order == ["a", "b"] * 4
    assert found["a"] == Timing(1.0, 1.0, 1.0)


def test_peak_counts_what_lives_together():
    one = peak_bytes(lambda: torch.empty(1 << 20))
    two = peak_bytes(lambda: [torch.empty(1 << 20), torch.empty(1 << 20)])
    assert one == pytest.approx(4 << 20, rel=0.01)
    assert two == pytest.approx(8 << 20, rel=0.01)


def test_both_ways_take_the_same_step():
    """The released way averages, so compare its two influences with ours by hand."""
    bench = Workbench(SMALL)
    from metasp.influence import sp_influence

    found = sp_influence(bench.model.double(), *_double(bench), lr=SMALL.lr)
    for wanted, goal in ((found.stability, bench.old), (found.plasticity, bench.new)):
        got = bench._through_the_update((goal[0].double(), goal[1]))
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-7)


def _double(bench):
    from benchmarks.influence import LOSS

    bench.batch = (bench.batch[0].double(), bench.batch[1])
    pairs = [(x.double(), y) for x, y in (bench.batch, bench.old, bench.new)]
    return LOSS, *pairs


def test_the_whole_benchmark_goes_from_nothing_to_all():
    heard: list[float] = []
    base = Setting(width=8, batch=4, goal=5)  # torch breaks on narrower nets in channels-last
    found = measure(repeats=2, setting=base, told=heard.append)
    assert [line.setting for line in found.growth] == grown(base)
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(1.0)
    assert len(heard) == 3 * (2 + len(found.growth))

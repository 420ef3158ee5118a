"""What it costs to note how each example fares: an ER step with the tally against one without."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.engine import our_loop
from benchmarks.timing import Told, interleave, machine, part, silent
from metasp.methods.context import TrainingContext

CASES = {"convnet": 16, "resnet18": 8}
BOUND = 1.02
STEPS = 8  # in one repeat


@dataclass(frozen=True)
class Row:
    """One backbone: milliseconds of a step with the tally and without, and their ratio."""

    backbone: str
    width: int
    counted: float
    uncounted: float
    spread: float

    @property
    def ratio(self) -> float:
        return self.counted / self.uncounted


def measure(repeats: int = 25, told: Told = silent) -> list[Row]:
    """Both in turn, repeat by repeat, in processor time."""
    torch.set_num_threads(1)
    rows = []
    for case, (backbone, width) in enumerate(CASES.items()):
        so_far = part(told, case / len(CASES), (case + 1) / len(CASES))
        calls = {"with": steps(backbone, width), "without": steps(backbone, width, count=False)}
        found = interleave(calls, repeats, warmup=6, clock=time.process_time, told=so_far)
        times = [1e3 * found[name].median / STEPS for name in ("with", "without")]
        spread = max(timing.spread for timing in found.values())
        rows.append(Row(backbone, width, times[0], times[1], spread))
    return rows


def steps(backbone: str, width: int, count: bool = True) -> Callable[[], object]:
    """Some steps of a loop, with or without the tally."""
    loop, counting = our_loop(backbone, width), TrainingContext._count

    def take() -> None:
        TrainingContext._count = counting if count else _nothing  # type: ignore[assignment, method-assign]
        try:
            for _ in range(STEPS):
                next(loop)
        finally:
            TrainingContext._count = counting  # type: ignore[method-assign]

    return take


def _nothing(*arguments: object) -> None:
    """Counts nothing."""


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'backbone':<10}{'width':>6}{'with ms':>10}{'without':>10}{'ratio':>8}"]
    for row in rows:
        over = "  OVER" if row.ratio > BOUND else ""
        lines.append(
            f"{row.backbone:<10}{row.width:>6}{row.counted:>10.3f}{row.uncounted:>10.3f}"
            f"{row.ratio:>8.3f}{over}   (spread ±{100 * row.spread:.1f}%)"
        )
    lines.append(f"ER step, 32 + 32 pictures of 32×32; medians, interleaved; {machine()}.")
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"tally": [{**asdict(row), "ratio": row.ratio} for row in rows], "machine": machine()}

"""What it costs to note how each example fares: an ER step with the tally against one without."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.engine import our_loop
from benchmarks.timing import Told, machine, paired, part, silent
from metasp.example_stats import MOST_WAITING
from metasp.methods.context import TrainingContext

CASES = {"mlp": 100, "convnet": 16}
BOUND = 1.02
STEPS = 4  # in one turn; a repeat has as many turns as make all steps that are entered together


@dataclass(frozen=True)
class Row:
    """One backbone: milliseconds of a step with the tally and without, and their ratio with its
    quartiles."""

    backbone: str
    width: int
    counted: float
    uncounted: float
    ratio: float
    low: float
    high: float


def measure(repeats: int = 9, told: Told = silent) -> list[Row]:
    """Both in turn, a few steps at a time, in processor time."""
    torch.set_num_threads(1)
    rows = []
    for case, (backbone, width) in enumerate(CASES.items()):
        so_far = part(told, case / len(CASES), (case + 1) / len(CASES))
        loop = our_loop(backbone, width)  # one for both: where its data lie matters as much
        calls = (steps(loop), steps(loop, count=False))
        counted, uncounted, ratio = paired(*calls, repeats, MOST_WAITING // STEPS, so_far)
        each = 1e3 / MOST_WAITING
        times = (each * counted.median, each * uncounted.median)
        rows.append(Row(backbone, width, *times, ratio.median, ratio.low, ratio.high))
    return rows


def steps(loop: Iterator[object], count: bool = True) -> Callable[[], object]:
    """Some steps of a loop, with or without the tally."""
    counting = TrainingContext._note_update

    def take() -> None:
        TrainingContext._note_update = counting if count else _nothing  # type: ignore[assignment, method-assign]
        try:
            for _ in range(STEPS):
                next(loop)
        finally:
            TrainingContext._note_update = counting  # type: ignore[method-assign]

    return take


def _nothing(*arguments: object) -> None:
    """Counts nothing."""


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'backbone':<10}{'width':>6}{'with ms':>10}{'without':>10}{'ratio':>8}  quartiles"]
    for row in rows:
        over = "  OVER" if row.ratio > BOUND else ""
        lines.append(
            f"{row.backbone:<10}{row.width:>6}{row.counted:>10.3f}{row.uncounted:>10.3f}"
            f"{row.ratio:>8.3f}  {row.low:.3f}–{row.high:.3f}{over}"
        )
    lines.append(
        f"ER step, 32 + 32 pictures of 32×32, at most {BOUND}; processor time, both in turn; "
        f"{machine()}."
    )
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"tally": [asdict(row) for row in rows], "machine": machine()}

"""Pure functions of the accuracy matrix a[t][k]: after task t, on task k (method of the paper).

A run stores the matrix and the accuracies before training. METRICS is a dictionary you can read:
one more entry, and every run that was ever stored has that metric in tables, figures and lists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = Sequence[float | None]
Matrix = Sequence[Row]
Before = Sequence[float]  # accuracy on task t just before it was trained

SCENARIO_WORDS = {"class_il": "class-IL", "task_il": "task-IL"}
SCENARIOS = tuple(SCENARIO_WORDS)


@dataclass(frozen=True)
class Metric:
    """One number for one scenario of a run, as a fraction; None where a run has no such number."""

    name: str  # in tables and figures
    tex: str  # in LaTeX
    of: Callable[[Matrix, Before], float | None]
    words: str  # for people who do not know the name
    help: str
    change: bool = False  # a difference of accuracies, which may be negative, not an accuracy


def known(row: Row, upto: int) -> list[float]:
    values = [value for value in row[:upto] if value is not None]
    if len(values) != upto:
        raise ValueError(f"the accuracy matrix lacks one of the first {upto} entries of {row!r}")
    return values


def learned(matrix: Matrix, before: Before = ()) -> float:
    return mean([known(row, t + 1)[t] for t, row in enumerate(matrix)])


def final(matrix: Matrix, before: Before = ()) -> float:
    return mean(known(matrix[-1], len(matrix)))


def over_time(matrix: Matrix, before: Before = ()) -> float:
    return mean([mean(known(row, t + 1)) for t, row in enumerate(matrix)])


def backward_transfer(matrix: Matrix, before: Before = ()) -> float | None:
    """None for a single task."""
    last = known(matrix[-1], len(matrix))
    changes = [last[k] - known(matrix[k], k + 1)[k] for k in range(len(matrix) - 1)]
    return mean(changes) if changes else None


METRICS: dict[str, Metric] = {
    "A_1": Metric("A_1", "$A_1$", learned, "when just learned",
                  "mean accuracy on each task right after it was trained"),
    "A_inf": Metric("A_∞", r"$A_\infty$", final, "at the end",
                    "mean accuracy on all tasks after the last"),
    "A_m": Metric("A_m", "$A_m$", over_time, "along the way",
                  "mean over time of the mean accuracy on the tasks seen so far"),
    "BWT": Metric("BWT", "BWT", backward_transfer, "change by later tasks",
                  "mean change of the old tasks' accuracy since they were trained", change=True),
}  # fmt: skip


def stability(matrix: Matrix) -> list[list[float]]:
    """S[t][k] = a[t][k] − a[k][k] for the tasks k < t."""
    rows = [known(row, t + 1) for t, row in enumerate(matrix)]
    return [[rows[t][k] - rows[k][k] for k in range(t)] for t in range(len(rows))]


def plasticity(matrix: Matrix, before: Before) -> list[float]:
    """P[t] = a[t][t] − accuracy on task t just before it was trained."""
    return [known(row, t + 1)[t] - before[t] for t, row in enumerate(matrix)]


def scores(matrix: Matrix, before: Before) -> dict[str, Any]:
    """All that one scenario comes to: every metric by name, and S and P of each task."""
    found: dict[str, Any] = {name: metric.of(matrix, before) for name, metric in METRICS.items()}
    return {**found, "S": stability(matrix), "P": plasticity(matrix, before)}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

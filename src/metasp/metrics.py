"""Pure functions of the accuracy matrix a[t][k]: after task t, on task k (method of the paper).

A run stores the matrix and the accuracies before training. After some tasks nothing may have been
tested: such a row holds nothing but None, and means go over the others. METRICS is a dictionary you
can read: one more entry, and every run that was ever stored has that metric in tables, figures and
lists."""

from collections.abc import Callable, Mapping, Sequence
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


def tested(matrix: Matrix) -> dict[int, list[float]]:
    """The rows of the tasks after which was tested, each up to its task."""
    there = {t: row for t, row in enumerate(matrix) if any(value is not None for value in row)}
    return {t: known(row, t + 1) for t, row in there.items()}


def learned(matrix: Matrix, before: Before = ()) -> float:
    return mean([row[t] for t, row in tested(matrix).items()])


def final(matrix: Matrix, before: Before = ()) -> float:
    return mean(known(matrix[-1], len(matrix)))


def over_time(matrix: Matrix, before: Before = ()) -> float:
    return mean([mean(row) for row in tested(matrix).values()])


def backward_transfer(matrix: Matrix, before: Before = ()) -> float | None:
    """None for a single task, or where only the last was tested."""
    last = known(matrix[-1], len(matrix))
    changes = [last[k] - row[k] for k, row in tested(matrix[:-1]).items()]
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
    """S[t][k] = a[t][k] − a[k][k] for the tasks k < t that were tested too."""
    rows = tested(matrix)
    return [
        [rows[t][k] - rows[k][k] for k in rows if k < t] if t in rows else []
        for t in range(len(matrix))
    ]


def plasticity(matrix: Matrix, before: Before) -> list[float | None]:
    """P[t] = a[t][t] − accuracy on task t just before it was trained; None where not tested."""
    rows = tested(matrix)
    return [rows[t][t] - before[t] if t in rows else None for t in range(len(matrix))]


def matrix_of(tests: Sequence[Mapping[str, Any]], scenario: str, tasks: int) -> list[list[Any]]:
    """The matrix of so many tasks from the records of the tests after them."""
    rows = {test["task"]: test[scenario] for test in tests if not test["before"]}
    return [[*rows.get(t, ()), *[None] * (tasks - len(rows.get(t, ())))] for t in range(tasks)]


def scores(matrix: Matrix, before: Before) -> dict[str, Any]:
    """All that one scenario comes to: every metric by name, and S and P of each task."""
    found: dict[str, Any] = {name: metric.of(matrix, before) for name, metric in METRICS.items()}
    return {**found, "S": stability(matrix), "P": plasticity(matrix, before)}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

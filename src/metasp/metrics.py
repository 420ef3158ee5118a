"""Metrics: pure functions of the accuracy matrix a[t][k], after task t on task k, and of the
accuracy b[t] on task t just before it was trained.

A run stores both. A row is None throughout where nothing was tested after that task; means go over
the others. `METRICS` is the dictionary of all metrics: with one more entry every stored run has
that metric in tables, figures and lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Sequence[float | None]
Matrix = Sequence[Row]
Before = Sequence[float]

SCENARIO_WORDS = {"class_il": "class-IL", "task_il": "task-IL"}
SCENARIOS = tuple(SCENARIO_WORDS)


@dataclass(frozen=True)
class Metric:
    """A number of one scenario of a run, as a fraction; None where a run has no such number."""

    name: str  # in tables and figures
    tex: str  # in LaTeX
    of: Callable[[Matrix, Before], float | None]
    words: str  # for people who do not know the name
    help: str
    change: bool = False  # a difference of accuracies, which may be negative
    lower_is_better: bool = False


def first_of(row: Row, length: int) -> list[float]:
    """Return the first accuracies of a row, of which none may be missing."""
    values = [value for value in row[:length] if value is not None]
    if len(values) != length:
        raise ValueError(f"the accuracy matrix lacks one of the first {length} entries of {row!r}")
    return values


def tested(matrix: Matrix) -> dict[int, list[float]]:
    """Return the rows of the tasks after which was tested, each up to its task."""
    rows = {}
    for task, row in enumerate(matrix):
        if any(value is not None for value in row):
            rows[task] = first_of(row, task + 1)
    return rows


def learned(matrix: Matrix, before: Before = ()) -> float:
    """Return A_1: the mean over t of a[t][t]."""
    return mean([row[task] for task, row in tested(matrix).items()])


def final(matrix: Matrix, before: Before = ()) -> float:
    """Return A_∞: the mean over k of a[T][k]."""
    return mean(first_of(matrix[-1], len(matrix)))


def over_time(matrix: Matrix, before: Before = ()) -> float:
    """Return A_m: the mean over t of the mean over k <= t of a[t][k]."""
    return mean([mean(row) for row in tested(matrix).values()])


def backward_transfer(matrix: Matrix, before: Before = ()) -> float | None:
    """Return BWT: the mean over k < T of a[T][k] - a[k][k]; None if only the last task was
    tested."""
    last = first_of(matrix[-1], len(matrix))
    changes = [last[task] - row[task] for task, row in tested(matrix[:-1]).items()]
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
    """Return S[t][k] = a[t][k] - a[k][k] for the tasks k < t that were tested too."""
    rows = tested(matrix)
    changes: list[list[float]] = []
    for task in range(len(matrix)):
        earlier = [k for k in rows if k < task and task in rows]
        changes.append([rows[task][k] - rows[k][k] for k in earlier])
    return changes


def plasticity(matrix: Matrix, before: Before) -> list[float | None]:
    """Return P[t] = a[t][t] - b[t]; None where not tested."""
    rows = tested(matrix)
    return [rows[t][t] - before[t] if t in rows else None for t in range(len(matrix))]


def matrix_of(tests: Sequence[Mapping[str, Any]], scenario: str, tasks: int) -> list[list[Any]]:
    """Return the matrix, (tasks, tasks), from the records of the tests after each task."""
    matrix: list[list[Any]] = [[None] * tasks for _ in range(tasks)]
    for test in tests:
        if not test["before"]:
            accuracies = test[scenario]
            matrix[test["task"]][: len(accuracies)] = accuracies
    return matrix


def scores(matrix: Matrix, before: Before) -> dict[str, Any]:
    """Return every metric of one scenario by name, and S and P of each task."""
    values: dict[str, Any] = {name: metric.of(matrix, before) for name, metric in METRICS.items()}
    return {**values, "S": stability(matrix), "P": plasticity(matrix, before)}


def mean(values: Sequence[float]) -> float:
    """Return the mean of some numbers, added from the first on."""
    return sum(values) / len(values)

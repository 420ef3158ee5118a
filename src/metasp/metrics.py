"""Pure functions of the accuracy matrix a[t][k]: after task t, on task k (method of the paper)."""

from collections.abc import Sequence
from dataclasses import dataclass

Row = Sequence[float | None]
Matrix = Sequence[Row]


@dataclass(frozen=True)
class Scores:
    """What one scenario comes to; fractions, not percent."""

    A_1: float
    A_inf: float
    A_m: float
    BWT: float | None
    S: tuple[tuple[float, ...], ...]
    P: tuple[float, ...]


def known(row: Row, upto: int) -> list[float]:
    values = [value for value in row[:upto] if value is not None]
    if len(values) != upto:
        raise ValueError(f"the accuracy matrix lacks one of the first {upto} entries of {row!r}")
    return values


def learned(matrix: Matrix) -> float:
    """A_1: mean accuracy on each task right after it was trained."""
    return mean([known(row, t + 1)[t] for t, row in enumerate(matrix)])


def final(matrix: Matrix) -> float:
    """A_inf: mean accuracy on all tasks after the last."""
    return mean(known(matrix[-1], len(matrix)))


def over_time(matrix: Matrix) -> float:
    """A_m: mean over time of the mean accuracy on the tasks seen so far."""
    return mean([mean(known(row, t + 1)) for t, row in enumerate(matrix)])


def backward_transfer(matrix: Matrix) -> float | None:
    """BWT: mean change of the old tasks' accuracy since they were trained; none for one task."""
    last = known(matrix[-1], len(matrix))
    changes = [last[k] - known(matrix[k], k + 1)[k] for k in range(len(matrix) - 1)]
    return mean(changes) if changes else None


def stability(matrix: Matrix) -> tuple[tuple[float, ...], ...]:
    """S[t][k] = a[t][k] − a[k][k] for the tasks k < t."""
    rows = [known(row, t + 1) for t, row in enumerate(matrix)]
    return tuple(tuple(rows[t][k] - rows[k][k] for k in range(t)) for t in range(len(rows)))


def plasticity(matrix: Matrix, before: Sequence[float]) -> tuple[float, ...]:
    """P[t] = a[t][t] − accuracy on task t just before it was trained."""
    return tuple(known(row, t + 1)[t] - before[t] for t, row in enumerate(matrix))


def scores(matrix: Matrix, before: Sequence[float]) -> Scores:
    return Scores(
        A_1=learned(matrix),
        A_inf=final(matrix),
        A_m=over_time(matrix),
        BWT=backward_transfer(matrix),
        S=stability(matrix),
        P=plasticity(matrix, before),
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

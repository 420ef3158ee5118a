"""Means, paired tests and their correction: pure functions of numbers by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

ROUNDING = 1e-9  # of scores in percent


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (none for a single value) of n values."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Paired:
    """A paired t-test of a against b over the seeds both have. `p` is two-sided, and None where
    there is nothing to test: of fewer than two pairs, or of one gap on every seed."""

    seeds: tuple[int, ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    difference: float | None
    t: float | None
    p: float | None


def summarise(values: Sequence[float]) -> Summary | None:
    """Mean ± std of some values, or None of none."""
    if not values:
        return None
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(float(np.mean(values)), std, len(values))


def interval(
    values: Sequence[float], level: float = 0.95
) -> tuple[float, float | None, float | None] | None:
    """The mean of some values and the ends of its Student interval: none for a single value, or
    for equal ones, which say nothing of their spread."""
    summary = summarise(values)
    if summary is None:
        return None
    if summary.std is None or np.ptp(values) <= ROUNDING:
        return summary.mean, None, None
    from scipy import special  # which takes long to load, and scipy.stats a second

    half = float(special.stdtrit(summary.n - 1, (1 + level) / 2)) * summary.std / summary.n**0.5
    return summary.mean, summary.mean - half, summary.mean + half


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Paired:
    """Compare two methods seed by seed, paired by the value of the seed."""
    both = tuple(sorted(a.keys() & b.keys()))
    only_a, only_b = tuple(sorted(a.keys() - b.keys())), tuple(sorted(b.keys() - a.keys()))
    gaps = np.array([a[seed] - b[seed] for seed in both])
    difference = float(gaps.mean()) if both else None
    t = p = None
    if len(both) > 1 and difference is not None:
        if np.ptp(gaps) > ROUNDING:
            from scipy import special

            t = difference / (float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5)
            p = 2 * float(special.stdtr(len(gaps) - 1, -abs(t)))
        elif abs(difference) <= ROUNDING:
            t, p = 0.0, 1.0
        # Else the same gap on every seed, as small test sets give: it has no spread to judge it by.
    return Paired(both, only_a, only_b, difference, t, p)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of a family of p-values, in their order."""
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = largest
    return adjusted

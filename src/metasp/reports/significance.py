"""Means, paired tests and their correction: pure functions of numbers by seed; and the row that
others are tested against."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metasp.errors import UserError, unknown
from metasp.reports.groups import Configuration, as_published

ROUNDING = 1e-9  # of scores in percent
LEVEL = 0.05
REFERENCES = ("metasp-robust", "metasp-rehsel")  # the first of them that is there
USUAL_REFERENCE = " or ".join(REFERENCES)


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
    difference: float | None
    t: float | None
    p: float | None


def summarise(values: Sequence[float]) -> Summary | None:
    """Return mean and standard deviation of some values, or None of none."""
    if not values:
        return None
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(float(np.mean(values)), std, len(values))


def interval(
    values: Sequence[float], level: float = 0.95
) -> tuple[float, float | None, float | None] | None:
    """Return the mean of some values and the ends of its Student interval: none for a single value,
    or for equal ones, which say nothing of their spread."""
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
    return Paired(both, difference, t, p)


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjustment of a family of p-values, in their order."""
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = largest
    return adjusted


def check_reference(rows: Sequence[Configuration], against: str | None) -> None:
    """Refuse a row to compare with that is nowhere."""
    if against is not None and not matching(rows, against):
        raise unknown("row to compare with", against, {row.label for row in rows})


def matching(rows: Sequence[Configuration], name: str) -> list[Configuration]:
    """Return the rows a name may mean: the one so labelled; or those of the method so called; or
    those whose labels hold all that it says, with the least beside it."""
    for matches in (
        [row for row in rows if row.label == name],
        [row for row in rows if row.method == name],
    ):
        if matches:
            return matches
    method, *details = terms_of(name) or [""]
    longer = [
        row
        for row in rows
        if terms_of(row.label)[:1] == [method] and {*details} <= {*terms_of(row.label)}
    ]
    fewest = min((len(terms_of(row.label)) for row in longer), default=0)
    return [row for row in longer if len(terms_of(row.label)) == fewest]


def terms_of(label: str) -> list[str]:
    """Split a label, `er (10 verified, epochs 5)` like `er, 10 verified, epochs 5`."""
    return [term for term in re.split(r"\s*[(),]\s*", label.strip()) if term]


def reference_of(
    rows: Sequence[Configuration], title: str, against: str | None
) -> Configuration | None:
    """Return the row that the others are compared with: the one meant, or its method as
    published."""
    names = (against,) if against else REFERENCES
    matches = next(filter(None, (matching(rows, name) for name in names)), [])
    if len(matches) > 1:
        published = [row for row in matches if as_published(row)]
        if len(published) != 1 and against is not None:
            labels = ", ".join(repr(row.label) for row in matches)
            raise UserError(
                f"several rows of {title} are {against}: give --against one of {labels}."
            )
        matches = published
    return matches[0] if len(matches) == 1 else None

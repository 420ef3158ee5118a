"""Means, intervals, paired tests and Holm's correction; and the row that others are tested against.

Scores are numbers in percent by seed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metasp.errors import UserError, unknown
from metasp.reports.groups import Configuration, as_published

ROUNDING = 1e-9  # of scores in percent
LEVEL = 0.05
REFERENCES = ("metasp-robust", "metasp-rehsel")  # the first of them that is there
DEFAULT_REFERENCE = " or ".join(REFERENCES)


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (None for a single value) of n values."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Paired:
    """A two-sided paired t-test of a against b over the seeds that both have.

    `p` is None for fewer than two pairs, and where the difference is one and the same on every
    seed: then there is no spread to judge it by."""

    seeds: tuple[int, ...]
    difference: float | None
    t: float | None
    p: float | None


def summarise(values: Sequence[float]) -> Summary | None:
    """Return mean and standard deviation of some values; None for no values."""
    if not values:
        return None
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(float(np.mean(values)), std, len(values))


def interval(
    values: Sequence[float], level: float = 0.95
) -> tuple[float, float | None, float | None] | None:
    """Return the mean of some values and the ends of its Student interval.

    The ends are None for a single value and for equal ones, which say nothing of their spread."""
    summary = summarise(values)
    if summary is None:
        return None
    if summary.std is None or np.ptp(values) <= ROUNDING:
        return summary.mean, None, None
    from scipy import special  # takes long to load, and scipy.stats a second

    half = float(special.stdtrit(summary.n - 1, (1 + level) / 2)) * summary.std / summary.n**0.5
    return summary.mean, summary.mean - half, summary.mean + half


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Paired:
    """Compare two rows seed by seed: the difference is the mean of a minus b."""
    seeds = tuple(sorted(a.keys() & b.keys()))
    if not seeds:
        return Paired(seeds, None, None, None)
    gaps = np.array([a[seed] - b[seed] for seed in seeds])
    difference = float(gaps.mean())
    t = p = None
    if len(seeds) > 1 and np.ptp(gaps) > ROUNDING:
        from scipy import special

        t = difference / (float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5)
        p = 2 * float(special.stdtr(len(gaps) - 1, -abs(t)))
    elif len(seeds) > 1 and abs(difference) <= ROUNDING:
        t, p = 0.0, 1.0
    return Paired(seeds, difference, t, p)


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjustment of a family of p-values, in their order."""
    order = np.argsort(ps, kind="stable")
    left = np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, left * np.asarray(ps)[order]))
    values: list[float] = adjusted.tolist()
    return values


def check_reference(rows: Sequence[Configuration], against: str | None) -> None:
    """Raise if no row is called `against`."""
    if against is not None and not matching(rows, against):
        raise unknown("row to compare with", against, {row.label for row in rows})


def matching(rows: Sequence[Configuration], name: str) -> list[Configuration]:
    """Return the rows that a name may mean: the one with this label; or those of this method; or
    those with the fewest terms whose label has all terms of the name."""
    by_label = [row for row in rows if row.label == name]
    by_method = [row for row in rows if row.method == name]
    if by_label or by_method:
        return by_label or by_method
    method, *details = terms_of(name) or [""]
    longer = []
    for row in rows:
        first, *rest = terms_of(row.label)
        if first == method and set(details) <= set(rest):
            longer.append(row)
    fewest = min((len(terms_of(row.label)) for row in longer), default=0)
    return [row for row in longer if len(terms_of(row.label)) == fewest]


def terms_of(label: str) -> list[str]:
    """Split a label, `er (10 verified, epochs 5)` like `er, 10 verified, epochs 5`."""
    return [term for term in re.split(r"\s*[(),]\s*", label.strip()) if term]


def reference_of(
    rows: Sequence[Configuration], title: str, against: str | None
) -> Configuration | None:
    """Return the row that the others are compared with: the one named, or that of the first
    reference method as published; None where there is no such row."""
    rivals: list[Configuration] = []
    for name in (against,) if against else REFERENCES:
        rivals = rivals or matching(rows, name)
    if len(rivals) > 1:
        published = [row for row in rivals if as_published(row)]
        if len(published) != 1 and against is not None:
            labels = ", ".join(repr(row.label) for row in rivals)
            raise UserError(
                f"several rows of {title} are {against}: give --against one of {labels}."
            )
        rivals = published
    return rivals[0] if len(rivals) == 1 else None

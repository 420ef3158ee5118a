"""Rows tested against a chosen one, seed by seed."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metasp.errors import UserError, unknown
from metasp.metrics import METRICS
from metasp.reports.configurations import Configuration
from metasp.reports.names import UPPER_BOUND
from metasp.reports.statistics import Paired, Summary, holm, paired, summarise
from metasp.reports.table import BETTER, WORSE
from metasp.reports.variants import as_published

LEVEL = 0.05
REFERENCES = ("metasp-robust", "metasp-rehsel")  # the first of them that is there
USUAL_REFERENCE = " or ".join(REFERENCES)


@dataclass(frozen=True)
class Published:
    """A score that someone else has measured, in percent."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class PublishedScores:
    """The score of a row with a memory, in a scenario, by a metric; and how all were measured."""

    score: Callable[[Configuration, int | None, str, str], Published | None]
    protocol: str


@dataclass(frozen=True)
class Comparison:
    """How to compare: with which row, marked by corrected tests or not, beside which scores, and
    by which metrics (all of them, where none is named)."""

    against: str | None = None
    holm: bool = False
    published: PublishedScores | None = None
    metrics: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.metrics or tuple(METRICS)


@dataclass
class Entry:
    """One number of a table on its way to a cell. `p_corrected` is Holm's, over the family that
    the number was tested in; the mark goes by it where `by_corrected` says so."""

    row: Configuration
    metric: str
    summary: Summary | None
    test: Paired | None = None
    p_corrected: float | None = None
    by_corrected: bool = False
    best: bool = False
    published: Published | None = None

    @property
    def p(self) -> float | None:
        return None if self.test is None else self.test.p

    @property
    def mark(self) -> str:
        p = self.p_corrected if self.by_corrected else self.p
        if self.test is None or p is None or p >= LEVEL or not self.test.difference:
            return ""
        return BETTER if self.test.difference > 0 else WORSE


def entry_of(row: Configuration, scenario: str, metric: str, how: Comparison) -> Entry:
    summary = summarise(list(row.scores(scenario, metric).values()))
    return Entry(row, metric, summary, by_corrected=how.holm)


def compare_family(family: Sequence[tuple[Entry, Configuration | None]], scenario: str) -> None:
    """Test each number against the one of its reference. All that are tested are one family, over
    which Holm's correction goes."""
    tested = []
    for entry, reference in family:
        if reference is None or entry.row is reference:
            continue
        theirs = entry.row.scores(scenario, entry.metric)
        entry.test = paired(reference.scores(scenario, entry.metric), theirs)
        if entry.p is not None:
            tested.append(entry)
    corrected = holm([entry.p for entry in tested if entry.p is not None])
    for entry, p in zip(tested, corrected):
        entry.p_corrected = p


def mark_best(column: Sequence[Entry]) -> None:
    """The highest mean; joint training is a bound, not a competitor."""
    rivals = [e for e in column if e.summary and e.row.method != UPPER_BOUND]
    if rivals:
        top = max(round(e.summary.mean, 2) for e in rivals if e.summary)
        for entry in rivals:
            entry.best = entry.summary is not None and round(entry.summary.mean, 2) == top


def check_reference(rows: Sequence[Configuration], against: str | None) -> None:
    """Refuse a row to compare with that is nowhere."""
    if against is not None and not matching(rows, against):
        raise unknown("row to compare with", against, {row.label for row in rows})


def matching(rows: Sequence[Configuration], name: str) -> list[Configuration]:
    """The rows a name may mean: the one so labelled; or those of the method so called; or those
    whose labels hold all that it says, with the least beside it."""
    exact = [row for row in rows if row.label == name]
    if exact:
        return exact
    of_method = [row for row in rows if row.method == name]
    if of_method:
        return of_method
    asked = parts_of(name)
    holding = [row for row in rows if holds(parts_of(row.label), asked)]
    fewest = min((len(parts_of(row.label)) for row in holding), default=0)
    return [row for row in holding if len(parts_of(row.label)) == fewest]


def parts_of(label: str) -> list[str]:
    """`er (10 verified, epochs 5)` and `er, 10 verified, epochs 5` are the same three parts."""
    return [part for part in re.split(r"\s*[(),]\s*", label.strip()) if part]


def holds(parts: Sequence[str], asked: Sequence[str]) -> bool:
    """Whether a label's parts begin with the method asked for and hold all the rest of it."""
    return bool(asked) and parts[:1] == asked[:1] and set(asked) <= set(parts)


def reference_of(
    rows: Sequence[Configuration], title: str, against: str | None
) -> Configuration | None:
    """The row that the others are compared with: the one meant, or its method as published."""
    names = (against,) if against else REFERENCES
    found = next(filter(None, (matching(rows, name) for name in names)), [])
    if len(found) > 1:
        published = [row for row in found if as_published(row)]
        if len(published) != 1 and against is not None:
            labels = ", ".join(repr(row.label) for row in found)
            raise UserError(
                f"several rows of {title} are {against}: give --against one of {labels}."
            )
        found = published
    return found[0] if len(found) == 1 else None

"""The main table: scores of every configuration, compared seed by seed with a chosen one."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from metasp.errors import UserError, unknown
from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.configurations import UPPER_BOUND, Configuration, Group, common_ground
from metasp.reports.statistics import Paired, Summary, holm, paired, summarise
from metasp.reports.table import BETTER, WORSE, Cell, Table, plus_minus
from metasp.reports.variants import as_published

LEVEL = 0.05
REFERENCE = "metasp-rehsel"


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
    """How to compare: with which row, corrected for many tests or not, beside which scores."""

    against: str | None = None
    holm: bool = False
    published: PublishedScores | None = None


@dataclass
class Entry:
    """One number of the table on its way to a cell."""

    row: Configuration
    metric: str
    summary: Summary | None
    test: Paired | None = None
    p: float | None = None
    best: bool = False
    published: Published | None = None

    @property
    def mark(self) -> str:
        if self.test is None or self.p is None or self.p >= LEVEL or not self.test.difference:
            return ""
        return BETTER if self.test.difference > 0 else WORSE


def score_tables(groups: list[Group], how: Comparison) -> list[Table]:
    """Two tables per group, class-IL and task-IL."""
    check_reference(groups, how.against)
    return [score_table(group, scenario, how) for group in groups for scenario in SCENARIOS]


def check_reference(groups: list[Group], against: str | None) -> None:
    """Refuse a row to compare with that is nowhere."""
    if against is not None and not any(matching(group, against) for group in groups):
        raise unknown("row to compare with", against, {r.label for g in groups for r in g.rows})


def score_table(group: Group, scenario: str, how: Comparison) -> Table:
    reference = reference_row(group, how.against)
    columns = []
    for metric in METRICS:
        column = [
            Entry(row, metric, summarise(list(row.scores(scenario, metric).values())))
            for row in group.rows
        ]
        compare(column, reference, scenario, how.holm)
        mark_best(column)
        if how.published is not None:
            for entry in column:
                entry.published = how.published.score(entry.row, group.memory, scenario, metric)
        columns.append(column)
    with_published = [m for m, column in zip(METRICS, columns) if any(e.published for e in column)]
    rows = tuple(
        (Cell(row.label), Cell(seeds_text(row, group)), *cells(entries, with_published))
        for row, *entries in zip(group.rows, *columns)
    )
    header = ["method", "seeds"]
    for metric in METRICS:
        header.append(METRICS[metric].name)
        header += ["published (difference)"] if metric in with_published else []
    data = tuple(plain(group, scenario, e, how.holm) for column in columns for e in column)
    title = f"{group.title}: {SCENARIO_WORDS[scenario]}, %"
    notes = notes_of(group, reference, how, bool(with_published))
    return Table(title, tuple(header), rows, data, tuple(notes))


def matching(group: Group, name: str) -> list[Configuration]:
    """The rows a name may mean: the one so labelled, or those of the method so called."""
    exact = [row for row in group.rows if row.label == name]
    return exact or [row for row in group.rows if row.method == name]


def reference_row(group: Group, against: str | None) -> Configuration | None:
    """The row that the others are compared with: the one meant, or its method as published."""
    found = matching(group, against or REFERENCE)
    if len(found) > 1:
        found = [row for row in found if as_published(row)]
        if len(found) != 1 and against is not None:
            labels = ", ".join(repr(row.label) for row in matching(group, against))
            raise UserError(
                f"several rows of {group.title} are {against}: give --against one of {labels}."
            )
    return found[0] if len(found) == 1 else None


def compare(
    column: list[Entry], reference: Configuration | None, scenario: str, correct: bool
) -> None:
    """Test the reference against every other row of a column; the column is the family."""
    if reference is None:
        return
    tested = []
    for entry in column:
        if entry.row is reference:
            continue
        entry.test = paired(
            reference.scores(scenario, entry.metric), entry.row.scores(scenario, entry.metric)
        )
        entry.p = entry.test.p
        if entry.p is not None:
            tested.append(entry)
    if correct:
        for entry, p in zip(tested, holm([e.p for e in tested if e.p is not None])):
            entry.p = p


def mark_best(column: list[Entry]) -> None:
    """The highest mean; joint training is a bound, not a competitor."""
    rivals = [e for e in column if e.summary and e.row.method != UPPER_BOUND]
    if rivals:
        top = max(round(e.summary.mean, 2) for e in rivals if e.summary)
        for entry in rivals:
            entry.best = entry.summary is not None and round(entry.summary.mean, 2) == top


def cells(entries: list[Entry], with_published: list[str]) -> list[Cell]:
    found = []
    for entry in entries:
        mean = entry.summary.mean if entry.summary else None
        std = entry.summary.std if entry.summary else None
        found.append(Cell(plus_minus(mean, std), entry.best, entry.mark))
        if entry.metric in with_published:
            text = "–"
            if entry.published and mean is not None:
                text = f"{entry.published.mean:.2f} ({mean - entry.published.mean:+.2f})"
            found.append(Cell(text))
    return found


def seeds_text(row: Configuration, group: Group) -> str:
    have, all_of = len(row.seeds), len(group.seeds)
    return str(have) if have == all_of else f"{have} of {all_of}"


def plain(group: Group, scenario: str, entry: Entry, corrected: bool) -> dict[str, Any]:
    """A number of the table with everything known about it."""
    summary, test, published = entry.summary, entry.test, entry.published
    return {
        "benchmark": group.benchmark,
        "memory": group.memory,
        "data": group.variant,
        "scenario": SCENARIO_WORDS[scenario],
        "label": entry.row.label,
        "method": entry.row.method,
        "metric": entry.metric,
        "mean": summary.mean if summary else None,
        "std": summary.std if summary else None,
        "seeds": len(entry.row.seeds),
        "missing_seeds": " ".join(str(s) for s in group.seeds if s not in entry.row.seeds),
        "best": entry.best,
        "mark": {BETTER: "reference better", WORSE: "reference worse"}.get(entry.mark, ""),
        "pairs": len(test.seeds) if test else None,
        "reference_minus_this": test.difference if test else None,
        "t": test.t if test and test.t is not None and isfinite(test.t) else None,
        "p": entry.p,
        "p_corrected": corrected if test else None,
        "published": published.mean if published else None,
        "published_std": published.std if published else None,
        "difference": summary.mean - published.mean if summary and published else None,
    }


def notes_of(
    group: Group, reference: Configuration | None, how: Comparison, with_published: bool
) -> list[str]:
    """Everything a reader must know to trust the table."""
    notes = [f"mean ± standard deviation over seeds; {common_ground(group.rows)}."]
    others = [row for row in group.rows if row is not reference]
    if reference is None:
        notes.append(
            f"no tests: not one row of {how.against or REFERENCE} here (--against chooses another)."
        )
    elif not any(len(set(reference.seeds) & set(row.seeds)) > 1 for row in others):
        notes.append(f"no tests: no row shares two seeds with {reference.label}.")
    else:
        test = "paired t-test over seeds, 95%" + (", Holm-corrected per column" if how.holm else "")
        notes.append(f"{BETTER} {reference.label} is significantly better, {WORSE} worse ({test}).")
    for row in group.rows:
        missing = [str(seed) for seed in group.seeds if seed not in row.seeds]
        if missing:
            notes.append(f"{row.label} lacks seed {', '.join(missing)}: left out of its pairs.")
        for seed, run in row.runs.items():
            if not run.result.get("forgotten", {}).get("undisturbed", True):
                notes.append(
                    f"{row.label}, seed {seed}, was trained without the "
                    f"{run.result['forgotten']['examples']} examples that it was told to forget."
                )
    if how.published is not None and with_published:
        notes.append(f"published figures: {how.published.protocol}.")
    elif how.published is not None:
        notes.append(f"no published figures for {group.title}.")
    return notes + version_note(group.rows)


def version_note(rows: tuple[Configuration, ...]) -> list[str]:
    """A footnote where the rows were not made by one version of the code."""
    makers: dict[str, list[str]] = {}
    for row in rows:
        for code in sorted({run.code for run in row.runs.values()}):
            makers.setdefault(code, []).append(row.label)
    if len(makers) < 2:
        return []
    who = "; ".join(f"{code}: {', '.join(labels)}" for code, labels in sorted(makers.items()))
    return [f"made by different versions of metasp ({who})."]

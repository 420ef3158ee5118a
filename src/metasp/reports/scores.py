"""The main table: scores of every configuration, compared seed by seed with a chosen one."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.configurations import Configuration, Group, common_ground
from metasp.reports.notes import reference_notes, seed_notes, seeds_text, version_note
from metasp.reports.reference import (
    Comparison,
    Entry,
    check_reference,
    compare_family,
    entry_of,
    mark_best,
    reference_of,
)
from metasp.reports.schedules import schedule_marks, schedule_of
from metasp.reports.table import BETTER, WORSE, Cell, Table, difference_text, plus_minus, signed

FAMILY = "the column"
Columns = list[list[Entry]]  # by metric, in the order of the rows


def score_tables(groups: list[Group], how: Comparison) -> list[Table]:
    """Two tables per group, class-IL and task-IL."""
    check_reference([row for group in groups for row in group.rows], how.against)
    return [score_table(group, scenario, how) for group in groups for scenario in SCENARIOS]


def difference_tables(groups: list[Group], how: Comparison) -> list[Table]:
    """The same as differences from the row compared with, with their p-values, where there are
    any."""
    tables = []
    for group in groups:
        reference = reference_of(group.rows, group.title, how.against)
        if reference is None:
            continue
        for scenario in SCENARIOS:
            columns = columns_of(group, scenario, how)
            if any(entry.p is not None for column in columns for entry in column):
                tables.append(difference_table(group, scenario, reference, columns))
    return tables


def columns_of(group: Group, scenario: str, how: Comparison) -> Columns:
    """The numbers of a group, tested and marked column by column."""
    reference = reference_of(group.rows, group.title, how.against)
    columns = []
    for metric in how.columns:
        column = [entry_of(row, scenario, metric, how) for row in group.rows]
        compare_family([(entry, reference) for entry in column], scenario)
        mark_best(column)
        if how.published is not None:
            for entry in column:
                entry.published = how.published.score(entry.row, group.memory, scenario, metric)
        columns.append(column)
    return columns


def score_table(group: Group, scenario: str, how: Comparison) -> Table:
    columns = columns_of(group, scenario, how)
    published = [
        metric
        for metric, column in zip(how.columns, columns)
        if any(entry.published for entry in column)
    ]
    marks, schedules = schedule_marks(group.rows)
    rows = []
    for row, *entries in zip(group.rows, *columns):
        label = Cell(row.label, footnote=marks.get(row.label, ""))
        rows.append((label, Cell(seeds_text(row, group)), *cells(entries, published)))
    header = ["method", "seeds"]
    for metric in how.columns:
        header.append(METRICS[metric].name)
        header += ["published (difference)"] if metric in published else []
    data = [as_row(group, scenario, entry) for column in columns for entry in column]
    title = f"{group.title}: {SCENARIO_WORDS[scenario]}, %"
    notes = notes_of(group, how, schedules, bool(published))
    return Table(title, tuple(header), tuple(rows), tuple(data), tuple(notes))


def difference_table(
    group: Group, scenario: str, reference: Configuration, columns: Columns
) -> Table:
    """Every row minus the reference, in points."""
    rows = []
    for row, *entries in zip(group.rows, *columns):
        if row is not reference:
            pairs = max(len(entry.test.seeds) if entry.test else 0 for entry in entries)
            rows.append((Cell(row.label), Cell(str(pairs)), *map(difference_cell, entries)))
    names = [METRICS[column[0].metric].name for column in columns]
    title = f"{group.title}: {SCENARIO_WORDS[scenario]}, row minus {reference.label}, points"
    return Table(title, ("method", "pairs", *names), tuple(rows), (), difference_notes(FAMILY))


def difference_cell(entry: Entry) -> Cell:
    if entry.test is None or entry.test.difference is None:
        return Cell("–")
    return Cell(difference_text(-entry.test.difference, entry.p, entry.p_corrected))


def difference_notes(family: str) -> tuple[str, ...]:
    return (
        "in brackets: p of a two-sided paired t-test over seeds; after the semicolon, p after "
        f"Holm's correction over {family}.",
    )


def cells(entries: Sequence[Entry], with_published: Sequence[str]) -> list[Cell]:
    found = []
    for entry in entries:
        found.append(score_cell(entry))
        if entry.metric in with_published:
            text = "–"
            if entry.published and entry.summary:
                gap = entry.summary.mean - entry.published.mean
                text = f"{entry.published.mean:.2f} ({signed(gap)})"
            found.append(Cell(text))
    return found


def score_cell(entry: Entry) -> Cell:
    mean = entry.summary.mean if entry.summary else None
    std = entry.summary.std if entry.summary else None
    return Cell(plus_minus(mean, std), entry.best, entry.mark)


def as_row(group: Group, scenario: str, entry: Entry) -> dict[str, Any]:
    """A number of the table with everything known about it."""
    summary, published = entry.summary, entry.published
    return {
        "benchmark": group.benchmark,
        "memory": group.memory,
        "data": group.variant,
        **score_as_row(scenario, entry),
        "missing_seeds": " ".join(str(s) for s in group.seeds if s not in entry.row.runs),
        **tested_as_row(entry),
        "published": published.mean if published else None,
        "published_std": published.std if published else None,
        "difference": summary.mean - published.mean if summary and published else None,
    }


def score_as_row(scenario: str, entry: Entry) -> dict[str, Any]:
    """A number of a row, and what it is."""
    summary = entry.summary
    return {
        "scenario": SCENARIO_WORDS[scenario],
        "label": entry.row.label,
        "method": entry.row.method,
        "schedule": schedule_of(entry.row),
        "metric": entry.metric,
        "mean": summary.mean if summary else None,
        "std": summary.std if summary else None,
        "seeds": len(entry.row.seeds),
    }


def tested_as_row(entry: Entry) -> dict[str, Any]:
    """What is known of a number beside the others of its column."""
    test = entry.test
    return {
        "best": entry.best,
        "mark": {BETTER: "reference better", WORSE: "reference worse"}.get(entry.mark, ""),
        "pairs": len(test.seeds) if test else None,
        "reference_minus_this": test.difference if test else None,
        "t": test.t if test and test.t is not None and isfinite(test.t) else None,
        "p": entry.p,
        "p_corrected": entry.p_corrected,
    }


def notes_of(
    group: Group, how: Comparison, schedules: Sequence[str], with_published: bool
) -> list[str]:
    """Everything a reader must know to trust the table."""
    reference = reference_of(group.rows, group.title, how.against)
    pairs = [(row, reference) for row in group.rows if reference and row is not reference]
    notes = [f"mean ± standard deviation over seeds; {common_ground(group.rows)}."]
    notes += reference_notes(reference, pairs, how, FAMILY)
    notes += schedules
    notes += seed_notes(group.rows, group.seeds)
    if how.published is not None and with_published:
        notes.append(f"published figures: {how.published.protocol}.")
    elif how.published is not None:
        notes.append(f"no published figures for {group.title}.")
    return notes + version_note(group.rows)

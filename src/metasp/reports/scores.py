"""The tables of scores: every configuration tested seed by seed against a chosen one, by metric or
by the values of a field; and the accuracy matrices behind them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.groups import Configuration, Group, Line, common_ground, schedule_of
from metasp.reports.names import UPPER_BOUND, keeps_memory
from metasp.reports.runs import Record
from metasp.reports.significance import (
    LEVEL,
    USUAL_REFERENCE,
    check_reference,
    holm,
    paired,
    reference_of,
    summarise,
)
from metasp.reports.tables import Cell, Table, difference_text, plus_minus

BETTER, WORSE = "●", "○"
MARKS = {BETTER: "reference better", WORSE: "reference worse", "": ""}
FEW = 5  # seeds; fewer find only large differences
MATRIX = ("run", "method", "seed", "trained_task", "tested_task", *SCENARIOS)
Number = dict[str, Any]  # one of a table, with all that is known about it
Columns = dict[tuple[str, int], dict[int, Number]]  # by metric and place, then by line


@dataclass(frozen=True)
class Comparison:
    """How to compare: with which row, marked by corrected tests or not, and by which metrics (all
    of them, where none is named)."""

    against: str | None = None
    holm: bool = False
    metrics: tuple[str, ...] = ()


def score_tables(groups: Sequence[Group], how: Comparison) -> list[Table]:
    """Return the scores of each group, class-IL and task-IL: a column for each metric, or a table
    for each with a column for each value of the field."""
    check_reference([row for group in groups for row in group.rows], how.against)
    return each_table(score_table, groups, how)


def difference_tables(groups: Sequence[Group], how: Comparison) -> list[Table]:
    """Return the scores as differences from the row compared with, with their p-values, where there
    are any."""
    return each_table(difference_table, groups, how)


def each_table(
    make: Callable[..., Table | None], groups: Sequence[Group], how: Comparison
) -> list[Table]:
    metrics = how.metrics or tuple(METRICS)
    tables = []
    for group in groups:
        places = range(len(group.values))
        for chosen in [[metric] for metric in metrics] if group.field else [metrics]:
            for scenario in SCENARIOS:
                columns = [(metric, place) for metric in chosen for place in places]
                tables.append(make(group, scenario, numbers(group, scenario, columns, how), how))
    return [table for table in tables if table is not None]


def numbers(
    group: Group, scenario: str, columns: Sequence[tuple[str, int]], how: Comparison
) -> Columns:
    """Return the numbers of a table, tested and marked. All that share a column are one family of
    Holm's correction; with a field, all that share the table."""
    reference = reference_line(group, how)
    table: Columns = {}
    for metric, place in columns:
        column = table[metric, place] = {}
        for index, line in enumerate(group.lines):
            if place in line.at:
                column[index] = number(group, line, place, (scenario, metric), reference)
        mark_best(list(column.values()))
    columns_of_numbers = [list(column.values()) for column in table.values()]
    families = [[*chain(*columns_of_numbers)]] if group.field else columns_of_numbers
    for family in families:
        tested = [each for each in family if each["p"] is not None]
        for each, p in zip(tested, holm([each["p"] for each in tested])):
            each["p_corrected"] = p
            decides = p if how.holm else each["p"]
            difference = each["reference_minus_this"]
            if decides < LEVEL and difference:
                each["mark"] = MARKS[BETTER if difference > 0 else WORSE]
    return table


def reference_line(group: Group, how: Comparison) -> Line | None:
    chosen = reference_of(group.rows, group.title, how.against)
    return next((line for line in group.lines if chosen and line.any is chosen), None)


def number(
    group: Group, line: Line, place: int, score: tuple[str, str], reference: Line | None
) -> Number:
    """Return a score of a row with its test against the reference in the same column."""
    row = line.at[place]
    scores = row.scores(*score)
    summary, test = summarise(list(scores.values())), None
    if reference is not None and line is not reference and place in reference.at:
        test = paired(reference.at[place].scores(*score), scores)
    missing = [seed for seed in group.seeds if seed not in row.runs]
    about = {"benchmark": group.benchmark, "memory": group.memory, "data": group.variant}
    if group.field:
        about |= {"by": group.field, "value": group.values[place]}
    return {
        **about,
        "scenario": SCENARIO_WORDS[score[0]],
        "label": row.label,
        "method": row.method,
        "schedule": schedule_of(row),
        "metric": score[1],
        "mean": summary.mean if summary else None,
        "std": summary.std if summary else None,
        "seeds": len(row.seeds),
        **({} if group.field else {"missing_seeds": " ".join(map(str, missing))}),
        "best": False,
        "mark": "",
        "pairs": len(test.seeds) if test else None,
        "reference_minus_this": test.difference if test else None,
        "t": test.t if test and test.t is not None and isfinite(test.t) else None,
        "p": test.p if test else None,
        "p_corrected": None,
    }


def mark_best(column: Sequence[Number]) -> None:
    """Mark the highest mean; joint training is a bound, not a competitor."""
    rivals = [n for n in column if n["mean"] is not None and n["method"] != UPPER_BOUND]
    top = max((round(n["mean"], 2) for n in rivals), default=None)
    for each in rivals:
        each["best"] = round(each["mean"], 2) == top


def score_table(group: Group, scenario: str, columns: Columns, how: Comparison) -> Table:
    rows = []
    for index, line in enumerate(group.lines):
        seeds = [] if group.field else [Cell(seeds_text(line.any, group))]
        cells = [score_cell(column.get(index)) for column in columns.values()]
        rows.append((Cell(line.label), *seeds, *cells))
    if group.field:  # line by line, as they are read
        lines = range(len(group.lines))
        data = [c[index] for index in lines for c in columns.values() if index in c]
    else:
        data = [each for column in columns.values() for each in column.values()]
    title = f"{title_of(group, columns)}{SCENARIO_WORDS[scenario]}, %"
    header = ("method", *([] if group.field else ["seeds"]), *column_names(group, columns))
    return Table(title, header, tuple(rows), tuple(data), tuple(notes_of(group, how)))


def score_cell(score: Number | None) -> Cell:
    if score is None:
        return Cell("–")
    sign = next(sign for sign, words in MARKS.items() if words == score["mark"])
    text = plus_minus(score["mean"], score["std"])
    return Cell(f"{text} {sign}" if sign else text, score["best"])


def difference_table(
    group: Group, scenario: str, columns: Columns, how: Comparison
) -> Table | None:
    """Return every row minus the reference, in points; None where nothing was tested."""
    reference = reference_line(group, how)
    tested = [n for column in columns.values() for n in column.values() if n["p"] is not None]
    if reference is None or not tested:
        return None
    rows = []
    for index, line in enumerate(group.lines):
        if line is not reference:
            scores = [column.get(index) for column in columns.values()]
            pairs = max((score["pairs"] or 0 for score in scores if score), default=0)
            cells = [] if group.field else [Cell(str(pairs))]
            rows.append((Cell(line.label), *cells, *map(difference_cell, scores)))
    title = f"{title_of(group, columns)}{SCENARIO_WORDS[scenario]}, row minus {reference.label}"
    header = ("method", *([] if group.field else ["pairs"]), *column_names(group, columns))
    note = (
        "in brackets: p of a two-sided paired t-test over seeds; after the semicolon, p after "
        f"Holm's correction over {family_of(group)}."
    )
    return Table(f"{title}, points", header, tuple(rows), (), (note,))


def difference_cell(score: Number | None) -> Cell:
    if score is None or score["reference_minus_this"] is None:
        return Cell("–")
    return Cell(difference_text(-score["reference_minus_this"], score["p"], score["p_corrected"]))


def title_of(group: Group, columns: Columns) -> str:
    if not group.field:
        return f"{group.title}: "
    ((metric, _), *_) = columns
    return f"{group.title}: {METRICS[metric].name} by {group.axis}, "


def column_names(group: Group, columns: Columns) -> list[str]:
    return [*group.words] if group.field else [METRICS[metric].name for metric, _ in columns]


def family_of(group: Group) -> str:
    return "the table" if group.field else "the column"


def notes_of(group: Group, how: Comparison) -> list[str]:
    """Return everything a reader must know to trust a table."""
    reference = reference_line(group, how)
    pairs = []
    for line in group.lines if reference else ():
        for place, row in line.at.items():
            if reference and line is not reference and place in reference.at:
                pairs.append((row, reference.at[place]))
    notes = [f"mean ± standard deviation over seeds; {common_ground(group.configurations)}."]
    notes += reference_notes(reference, pairs, how, family_of(group))
    for place, words in enumerate(group.words):
        rows = [line.at[place] for line in group.lines if place in line.at]
        notes += seed_notes(rows, f"{group.axis} {words}: " if group.field else "")
    return notes + schedule_notes(group.rows) + version_note(group.configurations)


def reference_notes(
    reference: Line | None,
    pairs: Sequence[tuple[Configuration, Configuration]],
    how: Comparison,
    family: str,
) -> list[str]:
    """Say how the rows were tested. `pairs` are rows with the row they were compared with."""
    if reference is None:
        meant = how.against or USUAL_REFERENCE
        return [f"no tests: no single row of {meant} is here; --against chooses another."]
    common = [len({*row.seeds} & {*other.seeds}) for row, other in pairs]
    tested = [count for count in common if count > 1]
    if not tested:
        return [f"no tests: no row shares two seeds with {reference.label}."]
    test = "paired t-test over seeds, p < .05"
    test += f" after Holm's correction over {family}" if how.holm else ""
    notes = [f"{BETTER} {reference.label} is significantly better, {WORSE} worse ({test})."]
    few = [count for count in tested if count < FEW]
    if few:
        count = str(min(few)) if min(few) == max(few) else f"{min(few)} to {max(few)}"
        which = "all" if len(few) == len(tested) else f"{len(few)} of {len(tested)}"
        notes.append(
            f"caution: {which} comparisons rest on {count} seeds; fewer than five find only large "
            "differences, and their p-values are unreliable."
        )
    return notes


def seed_notes(rows: Sequence[Configuration], where: str) -> list[str]:
    """Say which rows lack which seeds."""
    seeds = sorted({seed for row in rows for seed in row.seeds})
    lacking: dict[tuple[int, ...], list[str]] = {}
    notes = []
    for row in rows:
        missing = tuple(seed for seed in seeds if seed not in row.runs)
        if missing:
            lacking.setdefault(missing, []).append(row.label)
    for missing, labels in lacking.items():
        verb = "lacks" if len(labels) == 1 else "lack"
        plural = "seed" if len(missing) == 1 else "seeds"
        numbers = ", ".join(map(str, missing))
        notes.append(f"{where}{listed(labels)} {verb} {plural} {numbers}: left out of the pairs.")
    return notes


def schedule_notes(rows: Sequence[Configuration]) -> list[str]:
    """Say which rows rehearse in which epochs, where they differ: such rows are not compared like
    with like."""
    schedules: dict[str, list[str]] = {}
    for row in rows:
        if keeps_memory(row.spec):
            schedules.setdefault(schedule_of(row), []).append(row.label)
    if len(schedules) < 2:
        return []
    usual = schedules.pop("", [])
    told = [f"{listed(labels)}: {words}" for words, labels in schedules.items()]
    told += ["the others rehearse in every epoch"] if usual else []
    return [f"schedules differ: {'; '.join(told)}."]


def listed(labels: Sequence[str], most: int = 8) -> str:
    """Return some labels in a row, and how many more there are."""
    more = len(labels) - most
    return ", ".join(labels[:most]) + (f" and {more} more" if more > 0 else "")


def seeds_text(row: Configuration, group: Group) -> str:
    seeds, of_all = len(row.seeds), len(group.seeds)
    return str(seeds) if seeds == of_all else f"{seeds} of {of_all}"


def version_note(rows: Sequence[Configuration]) -> list[str]:
    """Say so where the rows were not made by one version of the code."""
    makers: dict[str, list[str]] = {}
    for row in rows:
        for code in sorted({run.code for run in row.runs.values()}):
            makers.setdefault(code, []).append(row.label)
    if len(makers) < 2:
        return []
    who = "; ".join(f"{code}: {listed(labels)}" for code, labels in sorted(makers.items()))
    return [f"made by different versions of metasp ({who})."]


def matrix_tables(records: Sequence[Record]) -> list[Table]:
    """Return two tables of accuracies for each run, class-IL and task-IL."""
    return [matrix_table(record, scenario) for record in records for scenario in SCENARIOS]


def matrix_table(record: Record, scenario: str) -> Table:
    matrix = record.result[scenario]["matrix"]
    rows = []
    for trained, accuracies in enumerate(matrix):
        if any(accuracy is not None for accuracy in accuracies):  # something was tested
            texts = ["" if a is None else f"{100 * a:.2f}" for a in accuracies]
            cells = [Cell(text, bold=tested == trained) for tested, text in enumerate(texts)]
            rows.append((Cell(f"after task {trained + 1}"), *cells))
    header = ("", *(f"task {tested + 1}" for tested in range(len(matrix))))
    title = f"{record.name}: accuracy, {SCENARIO_WORDS[scenario]}, %"
    return Table(title, header, tuple(rows), ())


def tidy_matrix(records: Sequence[Record]) -> Table:
    """Return all accuracies, as fractions: a line for each run, task trained and task tested."""
    data = []
    for record in records:
        matrices = [record.result[scenario]["matrix"] for scenario in SCENARIOS]
        about = (record.name, record.spec["method"], record.seed)
        for trained, rows in enumerate(zip(*matrices), 1):
            for tested, accuracies in enumerate(zip(*rows), 1):
                if None not in accuracies:
                    data.append(dict(zip(MATRIX, (*about, trained, tested, *accuracies))))
    return Table("accuracy after each task", MATRIX, (), tuple(data))

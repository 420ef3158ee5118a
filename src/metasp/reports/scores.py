"""Tables of scores, of their differences from one row with paired tests, and accuracy matrices."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.groups import Configuration, Group, Line, seeds_text
from metasp.reports.labels import UPPER_BOUND
from metasp.reports.notes import (
    MARKS,
    Comparison,
    diverged_seeds,
    family_of,
    notes_of,
    reference_line,
    schedule_of,
)
from metasp.reports.runs import Record
from metasp.reports.significance import LEVEL, check_reference, holm, paired, summarise
from metasp.reports.tables import Cell, Table, difference_text, plus_minus

if TYPE_CHECKING:
    import pandas as pd

OURS = "metasp"  # begins the names of the methods of the paper
MATRIX = ("run", "method", "seed", "trained_task", "tested_task", *SCENARIOS)
REPORTS: "dict[str, Callable[[pd.DataFrame], pd.DataFrame]]" = {}
"""Tables of the user's own, for `metasp report --table NAME`: each is computed from all scores, a
data frame as `frame_of` returns it."""
Number = dict[str, Any]  # a score of one row with its test and marks, by column name
Column = tuple[str, int]  # a metric, and the index of a value of the field


def frame_of(groups: Sequence[Group]) -> "pd.DataFrame":
    """Return every score as a data frame, a row for each run, scenario and metric.

    Columns: benchmark, memory, data, label, method, seed, scenario, metric and score, which is in
    percent."""
    import pandas as pd

    rows = []
    for group in groups:
        about = {"benchmark": group.benchmark, "memory": group.memory, "data": group.variant}
        for row in group.rows:
            named = {**about, "label": row.label, "method": row.method}
            for scenario in SCENARIOS:
                for metric in METRICS:
                    for seed, score in row.scores(scenario, metric).items():
                        where = {"seed": seed, "scenario": SCENARIO_WORDS[scenario]}
                        rows.append({**named, **where, "metric": metric, "score": score})
    return pd.DataFrame(rows)


def score_tables(groups: Sequence[Group], how: Comparison) -> list[Table]:
    """Return the scores of each group, class-IL and task-IL.

    Columns are metrics; with a field there is a table for each metric, whose columns are the
    values of the field."""
    rows: list[Configuration] = []
    for group in groups:
        rows += group.rows
    check_reference(rows, how.against)
    tables = []
    for group, scenario, columns in each_table(groups, how):
        numbers = numbers_of(group, scenario, columns, how)
        tables.append(score_table(group, scenario, columns, numbers, how))
    return tables


def difference_tables(groups: Sequence[Group], how: Comparison) -> list[Table]:
    """Return each row minus the reference in points, with p-values, for groups with tests."""
    tables = []
    for group, scenario, columns in each_table(groups, how):
        numbers = numbers_of(group, scenario, columns, how)
        if any(number["p"] is not None for number in numbers.values()):
            tables.append(difference_table(group, scenario, columns, numbers, how))
    return tables


def each_table(groups: Sequence[Group], how: Comparison) -> list[tuple[Group, str, list[Column]]]:
    """Return group, scenario and columns of each table of scores."""
    metrics = how.metrics or tuple(METRICS)
    tables = []
    for group in groups:
        for chosen in [[metric] for metric in metrics] if group.field else [metrics]:
            columns: list[Column] = []
            for metric in chosen:
                columns += [(metric, index) for index in range(len(group.values))]
            tables += [(group, scenario, columns) for scenario in SCENARIOS]
    return tables


def numbers_of(
    group: Group, scenario: str, columns: Sequence[Column], how: Comparison
) -> dict[tuple[int, Column], Number]:
    """Return the scores of a table by line and column, tested and marked.

    A column is one family of Holm's correction; with a field the table is."""
    reference = reference_line(group, how)
    numbers: dict[tuple[int, Column], Number] = {}
    families: dict[Any, list[Number]] = {}
    for column in columns:
        scores = []
        for index, line in enumerate(group.lines):
            if column[1] in line.at:
                scores.append(number_of(group, line, scenario, column, reference))
                numbers[index, column] = scores[-1]
        mark_best(scores)
        families.setdefault(None if group.field else column, []).extend(scores)
    for family in families.values():
        tested = [number for number in family if number["p"] is not None]
        for number, corrected in zip(tested, holm([number["p"] for number in tested])):
            number["p_corrected"] = corrected
            gain = number["reference_minus_this"]
            if METRICS[number["metric"]].lower_is_better:
                gain = -gain
            if (corrected if how.holm else number["p"]) < LEVEL and gain:
                number["mark"] = "reference better" if gain > 0 else "reference worse"
    return numbers


def number_of(
    group: Group, line: Line, scenario: str, column: Column, reference: Line | None
) -> Number:
    """Return a score of a line with its test against the reference in the same column."""
    metric, index = column
    row = line.at[index]
    scores = row.scores(scenario, metric)
    summary, test = summarise(list(scores.values())), None
    if reference is not None and line is not reference and index in reference.at:
        test = paired(reference.at[index].scores(scenario, metric), scores)
    number: Number = {
        "benchmark": group.benchmark,
        "memory": group.memory,
        "data": group.variant,
        "scenario": SCENARIO_WORDS[scenario],
        "label": row.label,
        "method": row.method,
        "schedule": schedule_of(row),
        "metric": metric,
        "mean": summary.mean if summary else None,
        "std": summary.std if summary else None,
        "seeds": len(row.seeds),
        "diverged": diverged_seeds(row),
        "best": False,
        "best_of_its_kind": False,
        "mark": "",
        "pairs": len(test.seeds) if test else None,
        "reference_minus_this": test.difference if test else None,
        "t": test.t if test and test.t is not None and isfinite(test.t) else None,
        "p": test.p if test else None,
        "p_corrected": None,
    }
    if group.field:
        return {**number, "by": group.field, "value": group.values[index]}
    missing = [str(seed) for seed in group.seeds if seed not in row.runs]
    return {**number, "missing_seeds": " ".join(missing)}


def mark_best(numbers: Sequence[Number]) -> None:
    """Mark the best mean of a column, and the best of our methods and of the others.

    Joint training is an upper bound, not a competitor. Equal to two digits is equally good."""
    kinds: dict[bool, list[Number]] = {True: [], False: []}
    for number in numbers:
        if number["mean"] is not None and number["method"] != UPPER_BOUND:
            kinds[number["method"].startswith(OURS)].append(number)
    for mark, rivals in (
        ("best", kinds[True] + kinds[False]),
        ("best_of_its_kind", kinds[True]),
        ("best_of_its_kind", kinds[False]),
    ):
        means = [round(number["mean"], 2) for number in rivals]
        for number, mean in zip(rivals, means):
            lower = METRICS[number["metric"]].lower_is_better
            number[mark] = mean == (min(means) if lower else max(means))


def score_table(
    group: Group,
    scenario: str,
    columns: Sequence[Column],
    numbers: dict[tuple[int, Column], Number],
    how: Comparison,
) -> Table:
    """Return the table of the scores of a group."""
    rows = []
    for index, line in enumerate(group.lines):
        cells = [Cell(line.label)]
        if not group.field:
            cells.append(Cell(seeds_text(line.any, group)))
        for column in columns:
            cells.append(score_cell(numbers.get((index, column))))
        rows.append(tuple(cells))
    title = f"{title_of(group, columns)}{SCENARIO_WORDS[scenario]}, %"
    marks = {number["mark"] for number in numbers.values()}
    notes, cautions = notes_of(group, how, marks)
    header = header_of(group, columns, "seeds")
    return Table(title, header, tuple(rows), tuple(numbers.values()), notes, cautions)


def score_cell(number: Number | None) -> Cell:
    """Return mean ± standard deviation with its mark; `–` where there is no run."""
    if number is None:
        return Cell("–")
    text = plus_minus(number["mean"], number["std"])
    if number["mark"]:
        text += f" {MARKS[number['mark']]}"
    kind = "ours" if number["method"].startswith(OURS) else "others"
    return Cell(text, number["best"], kind if number["best_of_its_kind"] else "")


def difference_table(
    group: Group,
    scenario: str,
    columns: Sequence[Column],
    numbers: dict[tuple[int, Column], Number],
    how: Comparison,
) -> Table:
    """Return the table of the rows of a group minus the reference."""
    reference = reference_line(group, how)
    assert reference is not None
    rows = []
    for index, line in enumerate(group.lines):
        if line is reference:
            continue
        cells, pairs = [], 0
        for column in columns:
            number = numbers.get((index, column))
            if number is None or number["reference_minus_this"] is None:
                cells.append(Cell("–"))
            else:
                pairs = max(pairs, number["pairs"])
                gap = -number["reference_minus_this"]
                cells.append(Cell(difference_text(gap, number["p"], number["p_corrected"])))
        counted = [] if group.field else [Cell(str(pairs))]
        rows.append((Cell(line.label), *counted, *cells))
    title = f"{title_of(group, columns)}{SCENARIO_WORDS[scenario]}, row minus {reference.label}"
    note = (
        "in brackets: p of a two-sided paired t-test over seeds; after the semicolon, p after "
        f"Holm's correction over {family_of(group)}."
    )
    header = header_of(group, columns, "pairs")
    return Table(f"{title}, points", header, tuple(rows), (), (note,))


def title_of(group: Group, columns: Sequence[Column]) -> str:
    """Return how the title of a table of a group begins."""
    if not group.field:
        return f"{group.title}: "
    return f"{group.title}: {METRICS[columns[0][0]].name} by {group.axis}, "


def header_of(group: Group, columns: Sequence[Column], count: str) -> tuple[str, ...]:
    """Return the headings of a table of a group."""
    if group.field:
        return ("method", *group.headings)
    return ("method", count, *(METRICS[metric].name for metric, _ in columns))


def matrix_tables(records: Sequence[Record]) -> list[Table]:
    """Return two tables of accuracies for each run, class-IL and task-IL."""
    tables = []
    for record in records:
        for scenario in SCENARIOS:
            matrix, rows = record.result[scenario]["matrix"], []
            for trained, accuracies in enumerate(matrix):
                cells = []
                for tested, accuracy in enumerate(accuracies):
                    text = "" if accuracy is None else f"{100 * accuracy:.2f}"
                    cells.append(Cell(text, bold=tested == trained))
                if any(cell.text for cell in cells):
                    rows.append((Cell(f"after task {trained + 1}"), *cells))
            header = ("", *(f"task {task + 1}" for task in range(len(matrix))))
            title = f"{record.name}: accuracy, {SCENARIO_WORDS[scenario]}, %"
            tables.append(Table(title, header, tuple(rows), ()))
    return tables


def tidy_matrix(records: Sequence[Record]) -> Table:
    """Return all accuracies as fractions, a row for each run, trained task and tested task."""
    data = []
    for record in records:
        about = (record.name, record.spec["method"], record.seed)
        matrices = [record.result[scenario]["matrix"] for scenario in SCENARIOS]
        for trained in range(len(matrices[0])):
            for tested in range(len(matrices[0])):
                accuracies = [matrix[trained][tested] for matrix in matrices]
                if None not in accuracies:
                    values = (*about, trained + 1, tested + 1, *accuracies)
                    data.append(dict(zip(MATRIX, values)))
    return Table("accuracy after each task", MATRIX, (), tuple(data))

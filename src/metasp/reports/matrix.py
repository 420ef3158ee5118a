"""The accuracy matrix of runs: for people one by one, for programs as one tidy table."""

from collections.abc import Sequence

from metasp.metrics import SCENARIO_WORDS, SCENARIOS
from metasp.reports.runs import Record
from metasp.reports.table import Cell, Table

COLUMNS = ("run", "method", "seed", "trained_task", "tested_task", *SCENARIOS)


def matrix_tables(records: Sequence[Record]) -> list[Table]:
    """Two tables for each run, class-IL and task-IL."""
    return [matrix_table(record, scenario) for record in records for scenario in SCENARIOS]


def matrix_table(record: Record, scenario: str) -> Table:
    matrix = record.result[scenario]["matrix"]
    rows = []
    for trained, accuracies in enumerate(matrix):
        if all(accuracy is None for accuracy in accuracies):
            continue  # nothing was tested after this task
        cells = [Cell(f"after task {trained + 1}")]
        for tested, accuracy in enumerate(accuracies):
            text = "" if accuracy is None else f"{100 * accuracy:.2f}"
            cells.append(Cell(text, bold=tested == trained))
        rows.append(tuple(cells))
    header = ("", *(f"task {tested + 1}" for tested in range(len(matrix))))
    title = f"{record.name}: accuracy, {SCENARIO_WORDS[scenario]}, %"
    return Table(title, header, tuple(rows), ())


def tidy_matrix(records: Sequence[Record]) -> Table:
    """All accuracies, as fractions: a line for each run, task trained and task tested after it."""
    data = []
    for record in records:
        matrices = [record.result[scenario]["matrix"] for scenario in SCENARIOS]
        for trained, rows in enumerate(zip(*matrices)):
            for tested, accuracies in enumerate(zip(*rows)):
                if None not in accuracies:
                    about = (record.name, record.spec["method"], record.seed)
                    numbers = (trained + 1, tested + 1, *accuracies)
                    data.append(dict(zip(COLUMNS, (*about, *numbers))))
    return Table("accuracy after each task", COLUMNS, (), tuple(data))

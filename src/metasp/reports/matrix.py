"""The accuracy matrix of one run."""

from metasp.metrics import SCENARIO_WORDS, SCENARIOS
from metasp.reports.records import Record
from metasp.reports.table import Cell, Table


def matrix_tables(record: Record) -> list[Table]:
    """Two tables, class-IL and task-IL."""
    tables = []
    for scenario in SCENARIOS:
        matrix = record.result[scenario]["matrix"]
        lines = tuple(
            (
                Cell(f"after task {t + 1}"),
                *(Cell("" if a is None else f"{100 * a:.2f}", bold=k == t)
                  for k, a in enumerate(row)),
            )
            for t, row in enumerate(matrix)
        )  # fmt: skip
        data = tuple(
            {
                "scenario": SCENARIO_WORDS[scenario],
                "after_task": t + 1,
                "task": k + 1,
                "accuracy": a,
            }
            for t, row in enumerate(matrix)
            for k, a in enumerate(row)
            if a is not None
        )
        header = ("", *(f"task {k + 1}" for k in range(len(matrix))))
        title = f"{record.path.name}: accuracy, {SCENARIO_WORDS[scenario]}, %"
        tables.append(Table(title, header, lines, data))
    return tables

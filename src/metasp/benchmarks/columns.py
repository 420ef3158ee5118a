"""Small tables beside the data: the columns of a CSV or Parquet file, by name."""

import csv
from pathlib import Path
from typing import Any

from metasp.errors import UserError, unknown

Columns = dict[str, list[Any]]


def read_columns(path: Path) -> Columns:
    """All columns of a file: text from a CSV, with the names in its first line, else as typed."""
    if path.suffix.lower() == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq  # slow to load: only for those who have such a file

        try:
            return dict(pq.read_table(path).to_pydict())
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is not a sound Parquet file: get it again.") from error
    if path.suffix.lower() != ".csv":
        raise UserError(f"{path} is neither a .csv nor a .parquet file: write it as one of them.")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV ({error}): repair it.") from error
    if not lines:
        raise UserError(f"{path} is empty: its first line names the columns.")
    names, rows = lines[0], lines[1:]
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise UserError(
                f"row {number + 1} of {path} has {len(row)} values and there are {len(names)} "
                "columns: correct it."
            )
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def column(table: Columns, name: str, path: Path) -> list[Any]:
    """One column, or the nearest name to one that is not there."""
    if name not in table:
        raise unknown(f"column of {path}", name, table)
    return table[name]

"""Labels out of a small CSV or Parquet file: other ones for the train data, whose labels become the
true ones."""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metasp.data.request import sought_file
from metasp.data.source import Source, check_classes
from metasp.errors import UserError, unknown

IDS = ("id", "row")

FileColumns = dict[str, list[Any]]


def with_labels(source: Source, file: str, name: str | None, data: Path | None) -> Source:
    """Return the source under the train labels of a file with a column `id` (or `row`) and one of
    labels: class names, or numbers from 0. Ids that are not in it keep their label."""
    path = sought_file(file, data, "--labels FILE.csv or FILE.parquet")
    table = read_columns(path)
    given = _by_id(table, column(table, name or "label", path), source.class_names, path)
    place = {number: row for row, number in enumerate(source.train.ids.tolist())}
    labels = source.labels.clone()
    for number, label in given.items():
        if number not in place:
            raise UserError(
                f"id {number} of {path} is not one of the {len(place)} train examples of "
                f"{source.name}: remove it."
            )
        labels[place[number]] = label
    content = hashlib.sha256(source.digest.encode() + labels.numpy().tobytes()).hexdigest()
    true = source.labels if source.true_labels is None else source.true_labels
    return check_classes(replace(source, labels=labels, true_labels=true, digest=content[:16]))


def _by_id(
    table: FileColumns, labels: Sequence[Any], class_names: Sequence[str], path: Path
) -> dict[int, int]:
    """Return the class of each id; an id may come twice with the same label only."""
    found = [name for name in IDS if name in table]
    if len(found) != 1:
        raise UserError(f"{path} needs one column of ids, called id (or row): name it so.")
    numbers = {name: number for number, name in enumerate(class_names)}
    given: dict[int, int] = {}
    for identity, label in zip(table[found[0]], labels):
        try:
            number = int(identity)
        except (TypeError, ValueError):
            raise UserError(f"{path} has the id {identity!r}: ids are whole numbers.") from None
        chosen = numbers.get(str(label), _number(label, len(class_names)))
        if chosen is None:
            raise UserError(
                f"id {number} of {path} has label {label!r}, which is not a class: give a name, or "
                f"a number from 0 to {len(class_names) - 1}."
            )
        if given.setdefault(number, chosen) != chosen:
            raise UserError(f"id {number} is in {path} with two labels: keep one of them.")
    return given


def _number(label: Any, classes: int) -> int | None:
    """Return a class by its number, if it is one."""
    try:
        number = int(label)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < classes else None


def read_columns(path: Path) -> FileColumns:
    """Return all columns of a file: text from a CSV, whose first line names them, else as typed."""
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


def column(table: FileColumns, name: str, path: Path) -> list[Any]:
    """Return one column, or name the nearest name to one that is not there."""
    if name not in table:
        raise unknown(f"column of {path}", name, table)
    return table[name]

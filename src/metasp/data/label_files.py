"""CSV files, and labels out of a small CSV or Parquet file: other ones for the train data, whose
labels become the true ones."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasp.data.source import Source, check_classes
from metasp.errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

IDS = ("id", "row")
SEPARATORS = (";", "\t", "|")

TextColumns = Mapping[str, Sequence[Any]]


def with_labels(source: Source, path: Path, name: str | None) -> Source:
    """Return the source under the train labels of a file with a column `id` (or `row`) and one of
    labels: class names, or numbers from 0. Ids that are not in it keep their label."""
    table = text_columns(path)
    new = labels_by_id(table, column_of(table, name or "label", path), source.class_names, path)
    rows = {number: row for row, number in enumerate(source.train.ids.tolist())}
    labels = source.labels.clone()
    for number, label in new.items():
        if number not in rows:
            raise UserError(
                f"id {number} of {path} is not one of the {len(rows)} train examples of "
                f"{source.name}: remove it."
            )
        labels[rows[number]] = label
    content = hashlib.sha256(source.digest.encode() + labels.numpy().tobytes()).hexdigest()
    true = source.labels if source.true_labels is None else source.true_labels
    return check_classes(replace(source, labels=labels, true_labels=true, digest=content[:16]))


def labels_by_id(
    table: TextColumns, labels: Sequence[Any], class_names: Sequence[str], path: Path
) -> dict[int, int]:
    """Return the class of each id; an id may come twice with the same label only."""
    ids = [name for name in IDS if name in table]
    if len(ids) != 1:
        raise UserError(f"{path} needs one column of ids, called id (or row): name it so.")
    numbers = {str(number): number for number in range(len(class_names))}
    numbers |= {name: number for number, name in enumerate(class_names)}
    by_id: dict[int, int] = {}
    for identity, label in zip(table[ids[0]], labels):
        try:
            number = int(identity)
        except (TypeError, ValueError):
            raise UserError(f"{path} has the id {identity!r}: ids are whole numbers.") from None
        if str(label) not in numbers:
            raise UserError(
                f"id {number} of {path} has label {label!r}, which is not a class: give a name, or "
                f"a number from 0 to {len(class_names) - 1}."
            )
        chosen = numbers[str(label)]
        if by_id.setdefault(number, chosen) != chosen:
            raise UserError(f"id {number} is in {path} with two labels: keep one of them.")
    return by_id


def text_columns(path: Path) -> TextColumns:
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
    table = read_csv(path, dtype=str, na_filter=False)
    return {str(name): table[name].tolist() for name in table.columns}


def read_csv(path: Path, **options: Any) -> "pd.DataFrame":
    """Return the table of a CSV file, whose first line names its columns."""
    import pandas as pd

    try:
        with warnings.catch_warnings():  # it would drop what no name belongs to
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                path, encoding="utf-8-sig", low_memory=False, index_col=False, **options
            )
    except pd.errors.ParserWarning:
        raise UserError(
            f"{path} has more values in a row than names in its first line: repair it."
        ) from None
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise UserError(f"{path} cannot be read as CSV ({reason}): repair it.") from error
    used = [sign for sign in SEPARATORS if sign in str(table.columns[0])]
    if len(table.columns) == 1 and used:
        raise UserError(f"{path} separates its values by {used[0]!r}: write it with commas.")
    return table


def column_of(table: TextColumns, name: str, path: Path) -> Sequence[Any]:
    """Return one column, or name the nearest name to one that is not there."""
    if name not in table:
        raise unknown(f"column of {path}", name, table)
    return table[name]

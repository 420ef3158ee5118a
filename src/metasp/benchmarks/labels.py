"""Other labels for the train data, out of a file; those that it had become the true ones."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metasp.benchmarks.columns import Columns, column, read_columns
from metasp.benchmarks.places import own_place
from metasp.benchmarks.source import Source, check_classes
from metasp.errors import UserError

IDS = ("id", "row")


def with_labels(source: Source, file: str, name: str | None, data: Path | None) -> Source:
    """The same source under the train labels of a file with a column `id` (or `row`) and one of
    labels: class names, or numbers from 0. Ids that are not in it keep their label."""
    path = own_place(file, data, Path.is_file)
    if not path.is_file():
        raise UserError(f"{file} is not a file: give --labels FILE.csv or FILE.parquet.")
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
    table: Columns, labels: Sequence[Any], class_names: Sequence[str], path: Path
) -> dict[int, int]:
    """The class of each id; an id may come twice with the same label only."""
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
    """A class by its number, where there is such a one."""
    try:
        number = int(label)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < classes else None

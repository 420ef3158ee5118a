"""The columns of a table by what they are for: inputs (pictures, texts or numbers), labels, ids."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metasp.data.arrays import as_inputs, by_name, inputs_source
from metasp.data.lazy_images import picture_source
from metasp.data.source import (
    Columns,
    Source,
    columns_of,
    refuse,
    source_of,
    split_column,
    with_constants,
)
from metasp.data.table_files import Table
from metasp.errors import UserError, unknown
from metasp.spec import RunSpec

LABELS = ("label", "labels", "fine_label", "class", "target")
PICTURES = ("image", "img")
INPUTS = "inputs"  # a column of this name, or of several by name where it holds them
TEXT = "text"


def table_source(table: Table, spec: RunSpec, pool: Sequence[str] = ()) -> Source:
    """Return the source of a table. Inputs are its pictures if it has any; else the texts that are
    asked for, or else its numbers, or else its texts."""
    label = spec.label_column or label_column(table)
    roles = (label, spec.true_label_column, split_column(spec), spec.id_column)
    for name in (*roles, spec.text_column):
        if name is not None and name not in table.names:
            raise unknown("column", name, table.names)
    columns = columns_of(
        lambda name: table.columns.column(name).to_pylist(),
        table.splits,
        names_of_classes(table, *roles[:2]),
        *roles,
    )
    if table.picture_names and spec.text_column is None:
        return pictures_of(table, columns, spec, pool)
    inputs = flat(table.columns.drop_columns([name for name in {*roles} if name is not None]))
    numbers = [field.name for field in inputs.schema if holds_numbers(field.type)]
    texts = [field.name for field in inputs.schema if holds_texts(field.type)]
    if spec.text_column is not None:
        if spec.text_column not in texts:
            raise UserError(f"column {spec.text_column!r} does not hold texts: name another.")
        numbers, texts = [], [spec.text_column]
    if numbers:
        source = numbers_of(table.name, inputs, numbers, columns, spec)
    elif texts:
        refuse(spec, "texts", "label_column", "true_label_column", "text_column", "id_column")
        name = one_of(texts, (TEXT,), "texts", "name it with --text-column")
        source = texts_of(table.name, plain_texts(inputs, name), name, columns)
    else:
        raise UserError(
            f"this data has no columns of pictures, numbers or texts among {some(table.names)} "
            "besides its labels: there is nothing to learn from."
        )
    return replace(source, origin=origin_by_id(table, columns.ids))


def label_column(table: Table) -> str:
    """Return the column that is plainly the label."""
    classes = [*table.class_names]
    named = [name for name in LABELS if name in table.names]
    if len(classes) == 1 or named:
        return classes[0] if len(classes) == 1 else named[0]
    raise UserError(
        f"it is not clear which of the columns {some(table.names)} is the label: name it with "
        "--label-column."
    )


def names_of_classes(table: Table, *labels: str | None) -> Sequence[str] | None:
    """Return what the classes are called by either column of labels."""
    named = [table.class_names[name] for name in labels if name and name in table.class_names]
    if len(named) == 2 and named[0] != named[1]:
        raise UserError(
            f"columns {labels[0]!r} and {labels[1]!r} name different classes: make them alike."
        )
    return named[0] if named else None


def origin_by_id(table: Table, ids: Sequence[int] | None) -> Callable[[int], Any]:
    """Return what leads from the id of an example to its file and row."""
    if ids is None:
        return table.origin
    rows = {identity: row for row, identity in enumerate(ids)}
    return lambda identity: table.origin(rows[identity])


def one_of(names: Sequence[str], usual: Sequence[str], kind: str, remedy: str) -> str:
    """Return the only column of a kind, or the one of a usual name."""
    chosen = [name for name in usual if name in names] or names
    if len(chosen) > 1 and chosen is names:
        raise UserError(
            f"this data has {len(names)} columns with {kind}, {', '.join(names)}: {remedy}."
        )
    return chosen[0]


def pictures_of(table: Table, columns: Columns, spec: RunSpec, pool: Sequence[str]) -> Source:
    """Return the source of a column of encoded pictures; a read takes them out of mapped files."""
    name = one_of(table.picture_names, PICTURES, "pictures", "exactly one is needed")

    def describe(row: int) -> str:
        split, within = table.split_of(row)
        return f"the picture in row {within} of the {split} split"

    def read(rows: Sequence[int]) -> list[bytes]:
        values = table.pictures[list(rows)][name] if len(rows) else []
        contents = []
        for row, value in zip(rows, values):
            content = value.get("bytes") if isinstance(value, Mapping) else value
            if not isinstance(content, bytes):
                raise UserError(
                    f"{describe(row)} is not stored in the table itself but refers to another "
                    "file: store the pictures in the table."
                )
            contents.append(content)
        return contents

    key = table.pictures._fingerprint
    source = picture_source(table.name, read, describe, key, columns, spec, pool)
    return replace(source, origin=table.origin)


def plain_texts(table: pa.Table, name: str) -> list[str]:
    """Return a column of texts."""
    texts: list[Any] = table.column(name).to_pylist()
    if None in texts:
        raise UserError(
            f"row {texts.index(None)} has no {name}: fill it, or remove the row; test data needs "
            "that column too."
        )
    return texts


def texts_of(name: str, texts: Sequence[str], column: str, columns: Columns) -> Source:
    """Return the source of texts as features."""
    from metasp.data.texts import text_features

    features, description = text_features(texts)
    content = repr((description, list(texts))).encode()
    source = with_constants(source_of(name, features, columns, content))
    note = f"the texts of column {column!r} are learned as {description}."
    return replace(source, texts=texts, notes=(note,))


def numbers_of(
    name: str, table: pa.Table, numbers: Sequence[str], columns: Columns, spec: RunSpec
) -> Source:
    """Return the source of numbers. Columns called `inputs`, or `inputs.NAME`, are the inputs;
    where there are none, all columns of numbers are. Columns of single numbers are the rows of one
    table; of others each is an input by its name."""
    named = [n for n in numbers if n == INPUTS or n.startswith(f"{INPUTS}.")]
    chosen = named or list(numbers)
    arrays = {column: array_of(table.column(column), column) for column in chosen}
    inputs: Any
    if chosen == [INPUTS]:
        inputs = arrays[INPUTS]
    elif named:
        inputs = by_name(arrays, INPUTS)
    elif all(array.ndim == 1 for array in arrays.values()):
        inputs = np.stack(list(arrays.values()), axis=1)
    else:
        inputs = arrays[chosen[0]] if len(chosen) == 1 else by_name(arrays, "")
    source = inputs_source(name, as_inputs(inputs, spec), columns)
    if TEXT in table.column_names and holds_texts(table.schema.field(TEXT).type):
        source = replace(source, texts=plain_texts(table, TEXT))
    left = sorted({*table.column_names} - {*chosen, *LABELS, TEXT}, key=table.column_names.index)
    if left:
        note = f"learned from the columns {some(chosen)}; not from {some(left)}."
        source = replace(source, notes=(note,))
    return source


def some(names: Sequence[str]) -> str:
    """Return some names in a sentence."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def array_of(column: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a column of numbers (n,), or of lists of them (n, …), which must be of one length."""
    values: Any = column.combine_chunks()
    shape = [len(values)]
    while is_list(values.type):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) > 1:
            raise UserError(
                f"column {name!r} holds lists of different lengths: bring them to one, for "
                "instance by padding."
            )
        shape += lengths
        values = values.flatten()
    if None in shape or values.null_count:
        raise UserError(
            f"column {name!r} has empty cells: fill them, or remove their rows; test data needs "
            "that column too."
        )
    numbers: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)


def flat(table: pa.Table) -> pa.Table:
    """Return a table with structs taken apart."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def holds_numbers(kind: Any) -> bool:
    while is_list(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def holds_texts(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

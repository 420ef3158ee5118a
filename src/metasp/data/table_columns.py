"""The columns of tables by what they are for: inputs (pictures, texts or numbers), labels, ids."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from metasp.data.arrays import as_inputs, by_name, joined_source
from metasp.data.pictures import picture_source
from metasp.data.request import Request
from metasp.data.source import Columns, Source, source_of, with_constants
from metasp.data.tables import Tables, starts, translated
from metasp.errors import UserError, unknown

LABELS = ("label", "labels", "fine_label", "class", "target")
PICTURES = ("image", "img")
INPUTS = "inputs"  # a column of this name, or of several by name where it holds them
TEXT = "text"


@dataclass(frozen=True)
class Roles:
    """The names of the columns that are not inputs, and the types of all."""

    label: str
    truth: str | None
    domain: str | None
    ids: str | None
    features: Mapping[str, Any]

    @classmethod
    def of(cls, features: Mapping[str, Any], request: Request) -> Self:
        """Find the columns that are asked for, and the label if it is not."""
        asked = (request.label_column, request.true_label_column, request.domain_column,
                 request.id_column, request.text_column)  # fmt: skip
        for name in asked:
            if name is not None and name not in features:
                raise unknown("column", name, features)
        label, truth, domain, ids, _ = asked
        label = label_column(features) if label is None else label
        if label == truth:
            raise UserError(
                f"column {label!r} is both the label and the true label: name the other one with "
                "--label-column."
            )
        return cls(label, truth, domain, ids, features)

    @property
    def names(self) -> set[str | None]:
        return {self.label, self.truth, self.domain, self.ids}

    @property
    def class_names(self) -> list[str] | None:
        """What the classes are called, by either column of labels."""
        labels = [name for name in (self.label, self.truth) if name is not None]
        named = [names for n in labels if (names := getattr(self.features[n], "names", None))]
        if len(named) == 2 and named[0] != named[1]:
            raise UserError(
                f"columns {self.label!r} and {self.truth!r} name different classes: make them "
                "alike."
            )
        return list(named[0]) if named else None

    def columns(self, tables: Tables) -> Columns:
        """Return the values of these columns, over all splits."""
        labels: list[Any] = []
        for split, table in tables.splits.items():
            values = values_of(table, self.label)
            # Test data may have no other labels. Train data without them is a mistake.
            if self.truth is not None and split != "train" and set(values) <= {None}:
                values = values_of(table, self.truth)
            labels += values
        every = [
            None if name is None else
            [value for table in tables.splits.values() for value in values_of(table, name)]
            for name in (self.truth, self.domain, self.ids)
        ]  # fmt: skip
        sizes = {split: len(table) for split, table in tables.splits.items()}
        return Columns(labels, sizes, self.class_names, *every)


def values_of(table: Any, name: str) -> list[Any]:
    """Return a column as plain values; one that is not there is empty."""
    if name not in table.column_names:
        return [None] * len(table)
    return list(table.data.column(name).to_pylist())


def label_column(features: Mapping[str, Any]) -> str:
    """Return the column that is plainly the label."""
    classes = [name for name, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    named = [name for name in LABELS if name in features]
    if len(classes) == 1 or named:
        return classes[0] if len(classes) == 1 else named[0]
    raise UserError(
        f"it is not clear which of the columns {', '.join(features)} is the label: name it with "
        "--label-column."
    )


def table_source(tables: Tables, request: Request, pool: Sequence[str] = ()) -> Source:
    """Return the source of tables. Inputs are their pictures if they have any; else the texts that
    are asked for, or else their numbers, or else their texts. Those of pictures are without
    constants."""
    roles = Roles.of(tables.features, request)
    pictures = [name for name, kind in tables.features.items() if is_image(kind)]
    if pictures and request.text_column is None:
        return pictures_of(tables, one_of(pictures, PICTURES, "pictures"), roles, request, pool)
    arrow = {split: flat(table.data.table) for split, table in tables.splits.items()}
    schema = next(iter(arrow.values())).schema
    numbers = [n for n in schema.names if holds_numbers(schema.field(n).type)]
    numbers = [name for name in numbers if name not in roles.names]
    texts = [n for n in schema.names if is_text_type(schema.field(n).type)]
    texts = [name for name in texts if name not in roles.names]
    if request.text_column is not None:
        if request.text_column not in texts:
            raise UserError(f"column {request.text_column!r} does not hold texts: name another.")
        numbers, texts = [], [request.text_column]
    if not numbers and not texts:
        raise UserError(
            f"this data has no columns of pictures, numbers or texts among "
            f"{', '.join(tables.features)} besides its labels: there is nothing to learn from."
        )
    columns = roles.columns(tables)
    if numbers:
        source = numbers_of(tables.name, arrow, numbers, columns, request)
        beside = columns_in_words(arrow, TEXT) if TEXT in schema.names else None
        source = replace(source, texts=beside)
    else:
        name = one_of(texts, (TEXT,), "texts")
        request.refuse("texts", "label_column", "true_label_column", "text_column", "id_column")
        source = texts_of(tables.name, columns_in_words(arrow, name), name, columns)
    return replace(source, origin=origin_by_id(tables, columns.ids))


def origin_by_id(tables: Tables, ids: Sequence[int] | None) -> Callable[[int], Any]:
    """Return what leads from the id of an example to its file and row."""
    if ids is None:
        return tables.origin
    rows = {identity: row for row, identity in enumerate(ids)}
    return lambda identity: tables.origin(rows[identity])


def one_of(names: Sequence[str], usual: Sequence[str], kind: str) -> str:
    """Return the only column of a kind, or the one of a usual name."""
    for name in usual:
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    remedy = "name it with --text-column" if kind == "texts" else "exactly one is needed"
    raise UserError(
        f"this data has {len(names)} columns with {kind}, {', '.join(names)}: {remedy}."
    )


def is_image(kind: Any) -> bool:
    if isinstance(kind, Mapping):
        return "bytes" in kind
    binary = ("binary", "large_binary")
    return type(kind).__name__ == "Image" or getattr(kind, "dtype", "") in binary


def pictures_of(
    tables: Tables, name: str, roles: Roles, request: Request, pool: Sequence[str]
) -> Source:
    """Return the source of a column of encoded pictures; a read takes them out of mapped files."""
    with translated(tables.name) as datasets:
        parts = []
        for (split, table), start in zip(tables.splits.items(), starts(tables)):
            table = table.select_columns([name])
            if type(table.features[name]).__name__ == "Image":
                table = table.cast_column(name, datasets.Image(decode=False))
            parts.append((split, start, table))

    def describe(row: int) -> str:
        split, start, _ = next(part for part in reversed(parts) if part[1] <= row)
        return f"the picture in row {row - start} of the {split} split"

    def read(rows: Sequence[int]) -> list[bytes]:
        contents: dict[int, bytes] = {}
        for _, start, table in parts:
            inside = [row for row in rows if start <= row < start + len(table)]
            if inside:
                values = table[[row - start for row in inside]][name]
                for row, value in zip(inside, values):
                    contents[row] = raw_bytes(value, describe, row)
        return [contents[row] for row in rows]

    columns = roles.columns(tables)
    key = [table._fingerprint for table in tables.splits.values()]
    source = picture_source(tables.name, read, describe, key, columns, request, pool)
    return replace(source, origin=tables.origin)


def raw_bytes(value: Any, describe: Callable[[int], str], row: int) -> bytes:
    """Return an encoded picture; one that is only a path to somewhere else is refused."""
    content = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(content, bytes):
        raise UserError(
            f"{describe(row)} is not stored in the table itself but refers to another file: store "
            "the pictures in the table."
        )
    return content


def columns_in_words(arrow: Mapping[str, pa.Table], name: str) -> list[str]:
    """Return a column of texts, over all splits."""
    texts: list[Any] = []
    for split, table in arrow.items():
        if name not in table.column_names:
            raise UserError(f"the {split} data lacks the column {name!r}: add it.")
        texts += table.column(name).to_pylist()
    if None in texts:
        raise UserError(f"row {texts.index(None)} has no {name}: fill it, or remove the row.")
    return [str(text) for text in texts]


def texts_of(name: str, texts: Sequence[str], column: str, columns: Columns) -> Source:
    """Return the source of texts as features."""
    from metasp.data.texts import text_features

    features, words = text_features(texts)
    content = repr((words, list(texts))).encode()
    source = with_constants(source_of(name, features, columns, content))
    note = f"the texts of column {column!r} are learned as {words}."
    return replace(source, texts=texts, notes=(note,))


def flat(table: pa.Table) -> pa.Table:
    """Return a table with structs taken apart."""
    while any(pa.types.is_struct(column.type) for column in table.columns):
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


def is_text_type(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def numbers_of(
    name: str,
    arrow: Mapping[str, pa.Table],
    numbers: Sequence[str],
    columns: Columns,
    request: Request,
) -> Source:
    """Return the source of numbers. Columns called `inputs`, or `inputs.NAME`, are the inputs;
    where there are none, all columns of numbers are. Columns of single numbers are the rows of one
    table; of others each is an input by its name."""
    named = [n for n in numbers if n == INPUTS or n.startswith(f"{INPUTS}.")]
    used = named or list(numbers)
    sides = [as_inputs(inputs_of(table, used), request) for table in arrow.values()]
    source = joined_source(name, sides, columns)
    every = next(iter(arrow.values())).column_names
    asked = (request.label_column, request.true_label_column, request.id_column)
    left = [n for n in every if n not in (*used, *asked, request.domain_column, *LABELS, TEXT)]
    if not left:
        return source
    note = f"learned from the columns {some(used)}; not from {some(left)}."
    return replace(source, notes=(note,))


def some(names: Sequence[str]) -> str:
    """Return some names in a sentence."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def inputs_of(table: pa.Table, names: Sequence[str]) -> Any:
    """Return one array (n, …), or several by name."""
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise UserError(f"the test data lacks the column {missing[0]!r}: add it.")
    arrays = {name: array_of(table.column(name), name) for name in names}
    if names == [INPUTS]:
        return arrays[INPUTS]
    if names[0].startswith(f"{INPUTS}."):
        return by_name(arrays, INPUTS)
    if all(array.ndim == 1 for array in arrays.values()):
        return np.stack(list(arrays.values()), axis=1)
    return arrays[names[0]] if len(names) == 1 else by_name(arrays, "")


def array_of(column: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a column of numbers (n,), or of lists of them (n, …), which must be of one length."""
    import pyarrow.compute as pc

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
        raise UserError(f"column {name!r} has empty cells: fill them, or remove their rows.")
    if not holds_numbers(values.type):
        raise UserError(f"column {name!r} of the test data does not hold numbers: mend it.")
    numbers: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)

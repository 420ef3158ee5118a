"""Parquet tables without pictures: columns of numbers, or of lists of numbers, as inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from metasp.benchmarks.arrays import array_source, by_name
from metasp.benchmarks.features import is_image, stored_features
from metasp.benchmarks.parquet import (
    class_names,
    label_column,
    splits_in,
    splits_in_order,
    true_label_column,
)
from metasp.benchmarks.request import Request
from metasp.benchmarks.source import Source
from metasp.errors import UserError, unknown

INPUTS = "inputs"  # a column of this name, or of several by name where it holds them
TEXT = "text"


def table_source(folder: Path, request: Request) -> Source | None:
    """The Parquet files of a folder as a source; None where they hold pictures, or no numbers.

    Columns called `inputs`, or `inputs.NAME` (a struct is taken apart so), are the inputs; where
    there are none, all columns of numbers but the labels are. Columns of single numbers are the
    rows of one table; of others each is an input by its name."""
    splits = splits_in(folder)
    features = features_in(splits)
    if features is None:
        return None
    train, test = sides({split: read_all(files) for split, files in splits.items()})
    asked = {request.label_column, request.true_label_column, request.domain_column}
    numbers = [name for name in train.column_names if holds_numbers(train.schema.field(name).type)]
    if not {*numbers} - asked - {*features_of_labels(features)}:
        return None
    label = label_column(features, request.label_column)
    truth = true_label_column(features, request.true_label_column, label)
    domain = request.domain_column
    if domain is not None and domain not in train.column_names:
        raise unknown("column", domain, [name for name in train.column_names if name != label])
    names = [name for name in numbers if name not in (label, truth, domain)]
    told = [name for name in names if name == INPUTS or name.startswith(f"{INPUTS}.")]

    def pair(table: pa.Table) -> tuple[Any, list[Any]]:
        inputs = inputs_of(table, told or names)
        return inputs, table.column(label if truth is None or table is train else truth).to_pylist()

    return array_source(
        folder.name,
        pair(train),
        None if test is None else pair(test),
        request,
        class_names(features, label, truth),
        None if domain is None else [domain_of(table, domain) for table in (train, test)],
        None if truth is None else np.asarray(train.column(truth).to_pylist()),
    )


def table_texts(folder: Path, size: int) -> list[str] | None:
    """What the rows are in words, for people to read: the column `text`, where there are as many
    texts as inputs."""
    splits = splits_in(folder)
    features = features_in(splits)
    if features is None or TEXT not in features:
        return None
    train, _ = sides({split: read_all(files) for split, files in splits.items()})
    texts = train.column(TEXT).to_pylist()
    return [str(text) for text in texts] if len(texts) == size else None


def features_in(splits: Mapping[str, Sequence[Path]]) -> dict[str, Any] | None:
    """The type of each column, without reading any; None where there are pictures among them, or
    the first file cannot be read, which the reader of pictures tells better."""
    try:
        features = stored_features(splits[splits_in_order(splits)[0]][0])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None if any(map(is_image, features.values())) else features


def features_of_labels(features: Mapping[str, Any]) -> list[str]:
    """The column that is plainly the label, if there is one."""
    try:
        return [label_column(features, None)]
    except UserError:
        return []


def read_all(files: Sequence[Path]) -> pa.Table:
    """The rows of several files, with structs taken apart."""
    import pyarrow.parquet as pq

    try:
        table = pa.concat_tables([pq.read_table(path) for path in files])
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"the Parquet files in {files[0].parent} are damaged, or unlike each other "
            f"({str(error).splitlines()[0][:120].rstrip('.')}): get them again."
        ) from error
    while any(pa.types.is_struct(column.type) for column in table.columns):
        table = table.flatten()
    return table


def sides(tables: Mapping[str, pa.Table]) -> tuple[pa.Table, pa.Table | None]:
    """Train and test data: without test data that for validation, and without either all of it as
    one, of which a part will be held out."""
    test = tables.get("test", tables.get("validation"))
    if "train" in tables and test is not None:
        return tables["train"], test
    return pa.concat_tables([tables[split] for split in splits_in_order(tables)]), None


def holds_numbers(kind: Any) -> bool:
    while is_list(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def inputs_of(table: pa.Table, names: Sequence[str]) -> Any:
    """One array, or several by name."""
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
    """A column of numbers (n,), or of lists of them (n, …), which must be of one length."""
    import pyarrow.compute as pc  # slow to load: only for those who have such files

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
    found: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
    return found.reshape(shape)


def domain_of(table: pa.Table | None, name: str) -> np.ndarray[Any, Any] | None:
    if table is None or name not in table.column_names:
        return None
    return np.asarray(table.column(name).to_pylist())

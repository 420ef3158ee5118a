"""The types of the columns of a table, as the Hugging Face `datasets` library knows them, or as a
Parquet file tells them without it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa


class ClassLabel(NamedTuple):
    """The type of a column of labels whose classes have names, as `datasets` writes it."""

    names: tuple[str, ...]
    dtype: str = "int64"


class Image(NamedTuple):
    """The type of a column of pictures, as `datasets` writes it."""

    dtype: str = "PIL.Image.Image"


def stored_features(path: Path) -> dict[str, Any]:
    """The type of each column of a file, without `datasets`: that of the table, or what the hub's
    note in it says of pictures and classes."""
    import pyarrow.parquet as pq

    schema = pq.read_schema(path)
    features: dict[str, Any] = dict(zip(schema.names, schema.types))
    told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    for name, kind in told.get("info", {}).get("features", {}).items():
        if kind.get("_type") == "ClassLabel":
            features[name] = ClassLabel(tuple(kind["names"]))
        elif kind.get("_type") == "Image":
            features[name] = Image()
    return features


def is_image(kind: Any) -> bool:
    if isinstance(kind, Mapping):
        return "bytes" in kind
    if isinstance(kind, pa.DataType):
        return is_picture(kind)
    return type(kind).__name__ == "Image" or getattr(kind, "dtype", "") in (
        "binary",
        "large_binary",
    )


def is_picture(kind: Any) -> bool:
    """Whether it is a table's type of encoded pictures: bytes, or the hub's struct around them."""
    if pa.types.is_struct(kind):
        return any(is_picture(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

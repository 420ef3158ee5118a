"""Small data sets on disk, in the layouts that users have."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def png(array: Any) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.asarray(array, dtype=np.uint8)).save(sink, "PNG")
    return sink.getvalue()


def noise_picture(seed: int, size: int = 8, colour: bool = True) -> Any:
    shape = (size, size, 3) if colour else (size, size)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_parquet(
    path: Path,
    pictures: Sequence[bytes | None],
    labels: Sequence[Any],
    names: Sequence[str] | None = None,
    paths: Sequence[str | None] | None = None,
    **columns: Sequence[Any],
) -> None:
    """One split as the hub stores it: pictures as bytes and path, feature types in metadata."""
    images = pa.array(
        [{"bytes": b, "path": p} for b, p in zip(pictures, paths or [None] * len(pictures))],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"image": images, "label": list(labels), **columns})
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    kind = {"_type": "ClassLabel", "names": list(names)} if names is not None else None
    plain = {"dtype": "string" if isinstance(labels[0], str) else "int64", "_type": "Value"}
    features["label"] = kind or plain
    for name, values in columns.items():
        dtype = "string" if isinstance(values[0], str) else "int64"
        features[name] = {"dtype": dtype, "_type": "Value"}
    about = json.dumps({"info": {"features": features}})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"huggingface": about}), path)


def table_set(folder: Path, classes: int = 4, each: int = 6, test_each: int = 2) -> Path:
    """A sound data set in the hub's layout with random pictures."""
    names = [f"kind {label}" for label in range(classes)]
    for split, count in (("train", each), ("test", test_each)):
        labels = [label for _ in range(count) for label in range(classes)]
        offset = 0 if split == "train" else 10_000
        pictures = [png(noise_picture(offset + row)) for row in range(len(labels))]
        write_parquet(folder / "data" / f"{split}-00000-of-00001.parquet", pictures, labels, names)
    return folder


def class_folder_set(folder: Path, classes: Sequence[str], each: int = 5, size: int = 8) -> Path:
    """One folder per class with random PNG files."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for row in range(each):
            picture = png(noise_picture(100 * label + row, size))
            (folder / name / f"{row:03d}.png").write_bytes(picture)
    return folder

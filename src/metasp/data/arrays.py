"""The user's own arrays: an .npz file or a torch Dataset, pictures or rows of a table."""

import hashlib
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metasp import trees
from metasp.data.source import (
    Columns,
    Source,
    columns_of,
    refuse,
    source_of,
    split_column,
    with_constants,
)
from metasp.errors import UserError, unknown
from metasp.spec import RunSpec
from metasp.trees import Tree

Array = np.ndarray[Any, Any]
LUMA = (0.299, 0.587, 0.114)
ALIASES = {
    "x": ("train", "inputs"),
    "x_train": ("train", "inputs"),
    "y": ("train", "labels"),
    "y_train": ("train", "labels"),
    "x_test": ("test", "inputs"),
    "y_test": ("test", "labels"),
}
"""Other names of arrays: the split and the name that they stand for."""

Splits = Mapping[str, Mapping[str, Any]]
"""Arrays by split and name: `inputs` (or `inputs.NAME`), `labels` and further columns."""


def npz_source(path: Path, spec: RunSpec) -> Source:
    """Return the arrays of an .npz file as a source: `inputs`, `labels` and further columns, those
    of test data with `test_` before their names, `class_names` and `text`."""
    refuse(spec, "arrays", "image_size", "colour", "label_column", "true_label_column")
    splits: dict[str, dict[str, Array]] = {"train": {}, "test": {}}
    for name, array in read_npz(path).items():
        split = "test" if name.startswith("test_") else "train"
        split, column = ALIASES.get(name, (split, name.removeprefix("test_")))
        splits[split][column] = array
    class_names = splits["train"].pop("class_names", None)
    if class_names is not None and class_names.ndim != 1:
        raise UserError(f"class_names of {path} is not a list: store one name for each class.")
    source = array_source(
        path.stem, splits, spec, None if class_names is None else [*map(str, class_names.tolist())]
    )
    texts = splits["train"].get("text")
    if texts is not None and texts.dtype.kind == "U" and texts.ndim == 1:
        source = replace(source, texts=texts.tolist())
    return source


# What numpy and zipfile raise for bytes that are not those of an archive.
DAMAGED = (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, TypeError, ValueError,
           OverflowError, SyntaxError, tokenize.TokenError, MemoryError)  # fmt: skip


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name. Nothing in it is unpickled or unpacked to disk."""
    try:
        if not zipfile.is_zipfile(path):
            raise UserError(f"{path} is not an .npz file: write it with numpy.savez.")
        with np.load(path, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except UserError:
        raise
    except DAMAGED as error:
        if "allow_pickle" in str(error):
            raise UserError(
                f"{path} holds pickled objects, which could run code: store plain numbers."
            ) from error
        raise UserError(f"{path} is damaged ({str(error) or 'too large'}): write it again.") from (
            error
        )


def raw_inputs(arrays: Mapping[str, Any]) -> Any:
    """Return the array `inputs`, or those called `inputs.NAME` by their names, for a model that
    takes several; None where there are none."""
    named = {name: array for name, array in arrays.items() if name.startswith("inputs.")}
    if named and "inputs" in arrays:
        raise UserError(f"the file holds both inputs and {min(named)}: leave one of them out.")
    return by_name(named, "inputs") if named else arrays.get("inputs")


def by_name(arrays: Mapping[str, Array], key: str) -> Any:
    """Return arrays called `key.NAME`, or just NAME, as a tree: a dot leads into a dictionary."""
    root: dict[str, Any] = {}
    for name in sorted(arrays):  # a.b comes after a
        *path, last = name.removeprefix(f"{key}.").split(".")
        node = root
        for step in path:
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                raise UserError(f"{name} lies within another input: rename one of them.")
        node[last] = arrays[name]
    return root


def array_source(
    name: str, splits: Splits, spec: RunSpec, class_names: Sequence[str] | None = None
) -> Source:
    """Return the source of arrays in memory, of train data and perhaps of test data. Test data may
    have the column `labels` alone, which are true."""
    label, true, domain = (
        None if asked is None else ALIASES.get(asked, ("", asked))[1]
        for asked in (spec.label_column or "labels", spec.true_label_column, split_column(spec))
    )
    inputs: dict[str, Tree] = {}
    for split, arrays in splits.items():
        raw = raw_inputs(arrays)
        labelled = not {label, true, "labels"}.isdisjoint(arrays)
        if split == "train" and (raw is None or not labelled):
            raise UserError(
                f"{name} holds the arrays {', '.join(sorted(arrays)) or '(none)'}: it needs "
                "`inputs` and `labels` (and `test_inputs` and `test_labels`, if there is test "
                "data)."
            )
        if (raw is not None) != labelled:
            raise UserError(f"{name} has only one of test_inputs and test_labels: give both.")
        if raw is not None:
            inputs[split] = as_inputs(raw, spec)
    if len({trees.kind(side) for side in inputs.values()}) > 1:
        raise UserError("train and test inputs differ in shape or kind: make them alike.")
    sizes = {split: trees.size(side) for split, side in inputs.items()}

    def values_of(column: str) -> list[Any]:
        values: list[Any] = []
        for split, size in sizes.items():
            arrays = splits[split]
            if column not in arrays and split == "train":
                raise unknown("column", column, arrays)
            if column not in arrays and column == domain:
                raise UserError(
                    "the test data lacks the column to split by: add it with test_ before its name "
                    "(in `metasp.split` it is test_domains)."
                )
            values += as_list(arrays.get(column, arrays.get("labels", [None] * size)), size, column)
        return values

    columns = columns_of(values_of, sizes, class_names, str(label), true, domain)
    joined = trees.joined([*inputs.values()]) if len(inputs) > 1 else inputs["train"]
    return inputs_source(name, joined, columns)


def as_list(column: Any, size: int, name: str) -> list[Any]:
    """Return a column as plain values, one per row of inputs."""
    values = np.asarray(column)
    if values.ndim != 1 or len(values) != size:
        raise UserError(
            f"{name} have shape {values.shape} and there are {size} inputs: give one per input."
        )
    return list(values.tolist())


def inputs_source(name: str, inputs: Tree, columns: Columns) -> Source:
    """Return the source of inputs in memory with the columns beside them."""
    digest = hashlib.sha256(trees.kind(inputs).encode())
    for path, leaf in sorted(trees.named_leaves(inputs).items()):
        digest.update(path.encode() + leaf.numpy().tobytes())
    return with_constants(source_of(name, inputs, columns, digest.digest()))


def as_inputs(raw: Any, spec: RunSpec) -> Tree:
    """Return pictures (n, c, h, w) as bytes or float32, or rows (n, d) as float32; a tree of
    several inputs as bytes, whole numbers or float32, of any shape."""
    if isinstance(raw, Mapping | tuple):
        refuse(spec, "several inputs", "label_column", "true_label_column", "id_column")
        leaves = trees.named_leaves(raw)
        columns = {place: as_column(dotted(place), leaf) for place, leaf in leaves.items()}
        lengths = {dotted(place): len(column) for place, column in columns.items()}
        if len({*lengths.values()}) > 1:
            sizes = " and ".join(f"{size} of {name}" for name, size in [*lengths.items()][:3])
            raise UserError(
                f"the inputs have different lengths, {sizes}: give one row per example."
            )
        return trees.from_columns("", columns) or {}
    array = raw.numpy() if isinstance(raw, Tensor) else np.asarray(raw)
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3, 4) or 0 in array.shape:
        raise UserError(
            f"inputs have shape {array.shape} of kind {array.dtype}: give numbers as rows (n, d) "
            "or pictures (n, h, w), (n, h, w, c) or (n, c, h, w)."
        )
    if array.ndim == 2:
        refuse(spec, "rows of a table", "label_column", "true_label_column", "id_column")
        return single(array)
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.shape[1] not in (1, 3):
        raise UserError(f"pictures have shape {array.shape}: they need 1 or 3 channels.")
    as_bytes = array.dtype == np.uint8
    pictures = torch.from_numpy(np.ascontiguousarray(array)) if as_bytes else single(array)
    return resized(coloured(pictures, spec.colour), spec.image_size)


def dotted(place: str) -> str:
    """Return a place in a tree as the files name it."""
    return ".".join(map(str, trees.places(place)))


def as_column(name: str, array: Array) -> Tensor:
    """Return one of several inputs: numbers with the example on the first axis."""
    if array.dtype.kind not in "buif" or array.ndim == 0 or 0 in array.shape:
        raise UserError(
            f"inputs.{name} has shape {array.shape} of kind {array.dtype}: give numbers with a row "
            "for each example."
        )
    if array.dtype.kind == "f":
        return single(array)
    small = array.dtype in (np.uint8, np.bool_)
    return torch.from_numpy(np.array(array, array.dtype if small else np.int64))


def single(array: Array) -> Tensor:
    """Return numbers in single precision, all of them finite."""
    with np.errstate(over="ignore"):
        inputs = torch.from_numpy(array.astype(np.float32, order="C"))
    if not inputs.isfinite().all():
        row = int(torch.nonzero(~inputs.isfinite().reshape(len(inputs), -1).all(1))[0])
        if np.isfinite(array[row]).all():
            raise UserError(
                f"row {row} of the inputs holds a number too large for single precision: scale it."
            )
        raise UserError(f"row {row} of the inputs holds NaN or infinity: fill or remove it.")
    return inputs


def coloured(pictures: Tensor, colour: str | None) -> Tensor:
    """Return grey pictures as three equal channels, or colour ones by their brightness."""
    channels = pictures.shape[1]
    if colour == "rgb" and channels == 1:
        return pictures.expand(-1, 3, -1, -1).contiguous()
    if colour == "grey" and channels == 3:
        grey = (pictures.float() * torch.tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
        return grey.round().to(torch.uint8) if pictures.dtype == torch.uint8 else grey
    return pictures


def resized(pictures: Tensor, size: int | None) -> Tensor:
    if size is None or pictures.shape[2:] == (size, size):
        return pictures
    out = F.interpolate(pictures.float(), (size, size), mode="bilinear", antialias=True)
    return out.round().clamp(0, 255).to(torch.uint8) if pictures.dtype == torch.uint8 else out

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
from metasp.data.request import Request, sought_file
from metasp.data.source import Columns, Source, source_of, with_constants
from metasp.errors import UserError, unknown
from metasp.trees import Tree

Array = np.ndarray[Any, Any]
LUMA = (0.299, 0.587, 0.114)
NAMES = {
    "inputs": ("inputs", "x_train", "x"),
    "labels": ("labels", "y_train", "y"),
    "test_inputs": ("test_inputs", "x_test"),
    "test_labels": ("test_labels", "y_test"),
}


def npz_source(file: str, request: Request, data: Path | None) -> Source:
    """Return the arrays `inputs` and `labels` of an .npz file, with `test_inputs` and
    `test_labels`, `class_names`, `text` and further columns (and `test_…` ones), as a source."""
    path = sought_file(file, data, "arrays:FILE.npz")
    request.refuse("arrays", "image_size", "colour", "label_column", "true_label_column")
    arrays = read_npz(path)
    usual = {key: first_of(arrays, names) for key, names in NAMES.items()}
    inputs = several(arrays, "inputs", usual["inputs"])
    test_inputs = several(arrays, "test_inputs", usual["test_inputs"])
    labels, test_labels, true = usual["labels"], usual["test_labels"], None
    if request.label_column is not None:
        labels, test_labels = column_in(arrays, request.label_column, usual["test_labels"])
    if request.true_label_column is not None:
        true, test_labels = column_in(arrays, request.true_label_column, usual["test_labels"])
        if true is labels:
            raise UserError(
                f"array {request.true_label_column!r} is both the labels and the true labels: "
                "name the other one with --label-column."
            )
    if inputs is None or labels is None:
        raise UserError(
            f"{path} holds the arrays {', '.join(sorted(arrays)) or '(none)'}: it needs `inputs` "
            "and `labels` (and `test_inputs` and `test_labels`, if there is test data)."
        )
    if (test_inputs is None) != (test_labels is None):
        raise UserError(f"{path} has only one of test_inputs and test_labels: give both.")
    domains = None
    if request.domain_column is not None:
        used = {name for names in NAMES.values() for name in names}
        others = {name: array for name, array in arrays.items() if name not in used}
        domains = column_in(others, request.domain_column, None)
    names = arrays.get("class_names")
    if names is not None and names.ndim != 1:
        raise UserError(f"class_names of {path} is not a list: store one name for each class.")
    source = array_source(
        path.stem,
        [inputs] if test_inputs is None else [inputs, test_inputs],
        (labels, test_labels),
        request,
        None if names is None else [str(name) for name in names.tolist()],
        domains,
        true,
    )
    texts = arrays.get("text")
    if texts is not None and texts.dtype.kind == "U" and texts.ndim == 1:
        source = replace(source, texts=texts.tolist())
    return replace(source, origin=lambda identity: (file, identity))


def column_in(
    arrays: Mapping[str, Array], name: str, usual: Array | None
) -> tuple[Array, Array | None]:
    """Return the train values of a column and those of the test data, whose name begins with test_;
    the `usual` ones if there is no such array."""
    if name not in arrays:
        raise unknown("column", name, arrays)
    return arrays[name], arrays.get(f"test_{name}", usual)


# What numpy and zipfile raise for bytes that are not those of an archive.
DAMAGED = (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, TypeError,
           OverflowError, SyntaxError, tokenize.TokenError)  # fmt: skip


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of a file by name. Nothing in it is unpickled, and nothing is unpacked to disk."""
    try:
        if not zipfile.is_zipfile(path):
            raise UserError(
                f"{path} is not an .npz file: write it with numpy.savez, or give folder:PATH of a "
                "folder with Parquet files."
            )
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                if "/" in name or "\\" in name or ".." in name:
                    raise UserError(
                        f"{path} holds an entry named {name!r}, which is a path and not the name "
                        "of an array: write it with numpy.savez."
                    )
            return {name: pictures_or_rows(archive, name, path) for name in archive.files}
    except UserError:
        raise
    except (*DAMAGED, MemoryError, ValueError) as error:
        raise UserError(f"{path} is damaged ({str(error) or 'too large'}): write it again.") from (
            error
        )


def pictures_or_rows(archive: Any, name: str, path: Path) -> Array:
    try:
        array = archive[name]
    except ValueError as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise UserError(
                f"array {name!r} of {path} holds pickled objects, which could run code: store "
                "plain numbers."
            ) from error
        raise UserError(f"array {name!r} of {path} is damaged: write it again.") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"entry {name!r} of {path} is not an array: write it with numpy.savez.")
    return array


def several(arrays: Mapping[str, Array], key: str, one: Array | None) -> Any:
    """The arrays `inputs.NAME` by their names, for a model that takes several inputs; or the one
    array of inputs."""
    found = {name: array for name, array in arrays.items() if name.startswith(f"{key}.")}
    if not found:
        return one
    if one is not None:
        raise UserError(f"the file holds both {key} and {min(found)}: leave one of them out.")
    return by_name(found, key)


def by_name(arrays: Mapping[str, Array], key: str) -> Any:
    """Arrays called `key.NAME`, or just NAME, as a tree: a dot leads into a dictionary."""
    paths = {name: name.removeprefix(f"{key}.").split(".") for name in arrays}
    for name, path in paths.items():
        if not all(path) or any(path == other[: len(path)] != other for other in paths.values()):
            raise UserError(f"{name} is an input and the name of others: rename one of them.")
    places = {"".join(f"[{part!r}]" for part in path): name for name, path in paths.items()}
    return trees.from_columns("", {place: arrays[name] for place, name in places.items()})


def first_of(arrays: Mapping[str, Array], names: tuple[str, ...]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def array_source(
    name: str,
    sides: Sequence[Any],
    labels: Sequence[Any],
    request: Request,
    class_names: Sequence[str] | None = None,
    domains: Sequence[Any] | None = None,
    true_labels: Any | None = None,
) -> Source:
    """Return the source of arrays in memory: inputs, labels and domains of the train data and, if
    there are two `sides`, of the test data. Where there are `true_labels` of the train data, those
    of the test data are true as well."""
    if domains is not None and len(sides) > 1 and domains[1] is None:
        raise UserError(
            "the test data lacks the column to split by: add it with test_ before its name (in "
            "`metasp.split` it is test_domains)."
        )
    inputs = [as_inputs(side, request) for side in sides]
    sizes = [trees.size(side) for side in inputs]
    values = joined_lists(labels, sizes, "labels")
    true = None
    if true_labels is not None:
        true = [*as_list(true_labels, sizes[0], "true labels"), *values[sizes[0] :]]
    columns = Columns(
        values,
        dict(zip(("train", "test"), sizes)),
        class_names,
        true,
        None if domains is None else joined_lists(domains, sizes, "domains"),
    )
    return joined_source(name, inputs, columns)


def joined_source(name: str, inputs: Sequence[Tree], columns: Columns) -> Source:
    """Return the source of inputs split by split, with the columns beside them."""
    if len({trees.kind(side) for side in inputs}) > 1:
        raise UserError("train and test inputs differ in shape or kind: make them alike.")
    joined = inputs[0] if len(inputs) == 1 else trees.joined(inputs)
    digest = hashlib.sha256(trees.kind(joined).encode())
    for path, leaf in sorted(trees.named_leaves(joined).items()):
        digest.update(path.encode() + leaf.numpy().tobytes())
    return with_constants(source_of(name, joined, columns, digest.digest()))


def joined_lists(columns: Sequence[Any], sizes: Sequence[int], what: str) -> list[Any]:
    """Return the columns of train and test data as one list."""
    values: list[Any] = []
    for column, size in zip(columns, sizes):
        values += as_list(column, size, what)
    return values


def as_list(column: Any, size: int, what: str) -> list[Any]:
    """Return a column as plain values, one per row of inputs."""
    values = np.asarray(column)
    if values.ndim != 1 or len(values) != size:
        raise UserError(
            f"{what} have shape {values.shape} and there are {size} inputs: give one per input."
        )
    return list(values.tolist())


def as_inputs(raw: Any, request: Request) -> Tree:
    """Pictures (n, c, h, w) as bytes or float32, or rows (n, d) as float32; a tree of several
    inputs as bytes, whole numbers or float32, of any shape."""
    if isinstance(raw, Mapping | tuple):
        request.refuse("several inputs", "label_column", "true_label_column", "id_column")
        leaves = trees.named_leaves(raw)
        found = {place: as_column(dotted(place), leaf) for place, leaf in leaves.items()}
        lengths = {dotted(place): len(column) for place, column in found.items()}
        if len({*lengths.values()}) > 1:
            told = " and ".join(f"{size} of {name}" for name, size in [*lengths.items()][:3])
            raise UserError(f"the inputs have different lengths, {told}: give one row per example.")
        tree = trees.from_columns("", found)
        assert tree is not None
        return tree
    array = raw.numpy() if isinstance(raw, Tensor) else np.asarray(raw)
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3, 4) or 0 in array.shape:
        raise UserError(
            f"inputs have shape {array.shape} of kind {array.dtype}: give numbers as rows (n, d) "
            "or pictures (n, h, w), (n, h, w, c) or (n, c, h, w)."
        )
    if array.ndim == 2:
        request.refuse("rows of a table", "label_column", "true_label_column", "id_column")
        return single(array)
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.shape[1] not in (1, 3):
        raise UserError(f"pictures have shape {array.shape}: they need 1 or 3 channels.")
    whole = array.dtype == np.uint8
    pictures = torch.from_numpy(np.ascontiguousarray(array)) if whole else single(array)
    return resized(coloured(pictures, request.colour), request.image_size)


def dotted(place: str) -> str:
    """A place in a tree as the files name it."""
    return ".".join(map(str, trees.places(place)))


def as_column(name: str, array: Array) -> Tensor:
    """One of several inputs: numbers with the example on the first axis."""
    if array.dtype.kind not in "buif" or array.ndim == 0 or 0 in array.shape:
        raise UserError(
            f"inputs.{name} has shape {array.shape} of kind {array.dtype}: give numbers with a row "
            "for each example."
        )
    if array.dtype.kind == "f":
        return single(array)
    kept = array.dtype in (np.uint8, np.bool_)
    return torch.from_numpy(np.array(array, array.dtype if kept else np.int64))


def single(array: Array) -> Tensor:
    """Numbers in single precision, all of them finite."""
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
    """Grey pictures as three equal channels, or colour ones by their brightness."""
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

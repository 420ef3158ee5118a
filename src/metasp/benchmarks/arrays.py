"""The user's own arrays: an .npz file or a torch Dataset, pictures or rows of a table."""

import hashlib
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metasp import trees
from metasp.benchmarks.numbering import check_names, number_domains, number_labels
from metasp.benchmarks.places import own_place
from metasp.benchmarks.request import Request
from metasp.benchmarks.source import Source, check_classes, constants, default_tasks, held_out
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
    """Arrays `inputs` and `labels` of an .npz file, with `test_inputs` and `test_labels`,
    `class_names`, and further columns (and `test_…` columns) if there are any."""
    path = own_place(file, data, Path.is_file)
    if not path.is_file():
        raise UserError(f"{file} is not a file: give arrays:FILE.npz.")
    request.refuse("arrays", "image_size", "colour", "label_column", "true_label_column")
    arrays = read_npz(path)
    parts: dict[str, Any] = {key: first_of(arrays, names) for key, names in NAMES.items()}
    for key in ("inputs", "test_inputs"):
        parts[key] = several(arrays, key, parts[key])
    true = None
    usual = parts["test_labels"]
    if request.label_column is not None:
        parts["labels"], parts["test_labels"] = labels_in(arrays, request.label_column, usual)
    if request.true_label_column is not None:
        true, parts["test_labels"] = labels_in(arrays, request.true_label_column, usual)
        if true is parts["labels"]:
            raise UserError(
                f"array {request.true_label_column!r} is both the labels and the true labels: "
                "name the other one with --label-column."
            )
    if parts["inputs"] is None or parts["labels"] is None:
        raise UserError(
            f"{path} holds the arrays {', '.join(sorted(arrays)) or '(none)'}: it needs `inputs` "
            "and `labels` (and `test_inputs` and `test_labels`, if there is test data)."
        )
    if (parts["test_inputs"] is None) != (parts["test_labels"] is None):
        raise UserError(f"{path} has only one of test_inputs and test_labels: give both.")
    column = request.domain_column
    domains = None
    if column is not None:
        if column not in arrays:
            used = [name for names in NAMES.values() for name in names]
            raise unknown("column", column, [n for n in arrays if n not in used])
        domains = [arrays[column], arrays.get(f"test_{column}")]
    names = arrays.get("class_names")
    if names is not None and names.ndim != 1:
        raise UserError(f"class_names of {path} is not a list: store one name for each class.")
    return array_source(
        path.stem,
        (parts["inputs"], parts["labels"]),
        None if parts["test_inputs"] is None else (parts["test_inputs"], parts["test_labels"]),
        request,
        None if names is None else [str(name) for name in names.tolist()],
        domains,
        true,
    )


def npz_texts(file: str, data: Path | None, size: int) -> list[str] | None:
    """What the rows of an .npz file are in words, for people to read: its array `text`, where it
    has one text for each of the `size` inputs."""
    texts = read_npz(own_place(file, data, Path.is_file)).get("text")
    if texts is None or texts.dtype.kind != "U" or texts.shape != (size,):
        return None
    return [str(text) for text in texts.tolist()]


def labels_in(
    arrays: Mapping[str, Array], name: str, usual: Array | None
) -> tuple[Array, Array | None]:
    """Train labels by their name; the test labels are called so with test_ before it, or as
    usual."""
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
    train: tuple[Any, Any],
    test: tuple[Any, Any] | None,
    request: Request,
    class_names: list[str] | None = None,
    domains: list[Array | None] | None = None,
    true_labels: Array | None = None,
) -> Source:
    """A source from arrays in memory; without test data a fixed part of each class is held out.
    Where there are `true_labels` of the train data, those of the test data are true as well."""
    sides = [train] if test is None else [train, test]
    inputs = [as_inputs(x, request) for x, _ in sides]
    sizes = [trees.size(x) for x in inputs]
    values = [as_list(y, size, "labels") for (_, y), size in zip(sides, sizes)]
    if len({trees.kind(x) for x in inputs}) > 1:
        raise UserError("train and test inputs differ in shape or kind: make them alike.")
    if class_names is not None:
        check_names(class_names)
    true = [] if true_labels is None else as_list(true_labels, sizes[0], "true labels")
    given = [y for side in values for y in side]
    labels, names = number_labels([*given, *true], class_names)
    digest = hashlib.sha256(repr((labels, names, sizes)).encode())
    for x in inputs:
        for place, leaf in sorted(trees.named_leaves(x).items()):
            digest.update(place.encode() + leaf.numpy().tobytes())  # one array has no place
    for column in domains or ():
        digest.update(repr(None if column is None else column.tolist()).encode())
    every = torch.tensor(labels[: len(given)])
    ids = torch.arange(len(every))
    size = sizes[0]
    source = Source(
        name=name,
        inputs=inputs[0],
        labels=every[:size],
        test_inputs=inputs[-1],
        test_labels=every[size:],
        class_names=tuple(names),
        mean=(),
        std=(),
        digest=digest.hexdigest()[:16],
        tasks=default_tasks(len(names)),
        ids=ids[:size],
        true_labels=torch.tensor(labels[len(given) :]) if true else None,
    )
    if domains is not None:
        source = with_domains(source, domains, sizes)
    if test is None:
        source = hold_out(source)
    mean, std = constants(check_classes(source).train)
    return replace(source, mean=mean, std=std)


def hold_out(source: Source) -> Source:
    """The same source with a fixed part of each class as its test data."""
    out = held_out(source.labels, source.class_names)
    kept, given = torch.nonzero(~out).flatten(), torch.nonzero(out).flatten()
    domains, true = source.domains, source.true_labels
    return replace(
        source,
        labels=source.labels[kept],
        true_labels=None if true is None else true[kept],
        test_labels=(source.labels if true is None else true)[given],
        ids=kept,
        rows=kept,
        test_rows=given,
        domains=None if domains is None else domains[kept],
        test_domains=None if domains is None else domains[given],
        pooled=True,
    )


def with_domains(source: Source, columns: list[Array | None], sizes: list[int]) -> Source:
    if len(sizes) > 1 and columns[1] is None:
        raise UserError(
            "the test data lacks the column to split by: add it with test_ before its name (in "
            "`metasp.split` it is test_domains)."
        )
    lists = [as_list(column, size, "domains") for column, size in zip(columns, sizes)]
    codes, names = number_domains([value for part in lists for value in part])
    every = torch.tensor(codes)
    return replace(
        source,
        domains=every[: sizes[0]],
        test_domains=every[sizes[0] :],
        domain_names=tuple(names),
    )


def as_list(column: Any, size: int, what: str) -> list[Any]:
    """A column as plain values, one per row of inputs."""
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
        request.refuse("several inputs", "label_column", "true_label_column")
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
        request.refuse("rows of a table", "label_column", "true_label_column")
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

"""Single columns of a user's examples as tensors, and inputs as trees of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metasp import trees
from metasp.errors import UserError
from metasp.trees import Tree

LabelColumn = Tensor | np.ndarray[Any, Any]
"""Labels as numbers, or as an array of texts."""


def tensor_of(value: Any, what: str) -> Tensor:
    """A tensor of a tensor, array, number, list or picture (channels first)."""
    if isinstance(value, Tensor):
        return value
    array = array_of(value, what)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"the {what} holds {array.dtype.name} values: turn them into numbers first, for "
            "instance by numbering the classes."
        )
    kinds = {"u": np.uint8 if array.dtype == np.uint8 else np.int64, "i": np.int64, "b": np.bool_}
    return torch.from_numpy(np.array(array, kinds.get(array.dtype.kind, array.dtype)))


def array_of(value: Any, what: str) -> np.ndarray[Any, Any]:
    """What NumPy makes of a value; of a picture with its channels first."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserError(
            f"the {what} holds rows of different lengths: bring them to one shape first."
        ) from error
    if hasattr(value, "getbands"):  # a PIL image
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return array


def labels_of(value: Any, what: str) -> LabelColumn:
    """Labels as a tensor of numbers, or as an array of texts where they are names."""
    if isinstance(value, Tensor):
        return value
    array = array_of(value, what)
    if array.dtype.kind not in "OUST":
        return tensor_of(array, what)
    found = array.reshape(-1).tolist()
    for row, name in enumerate(found):
        if name is None or name != name or str(name) == "<NA>":
            raise UserError(
                f"example {row} of the {what} has no label: give it one, or leave it out."
            )
    if all(isinstance(name, int) for name in found):
        return torch.tensor(found, dtype=torch.long).reshape(array.shape)
    texts = [name.decode() if isinstance(name, bytes) else str(name) for name in found]
    return np.array(texts, dtype=object).reshape(array.shape)


def inputs_of(value: Any, count: int | None, what: str) -> Tree:
    """Inputs as a tree of tensors. A dictionary is one, and so is a tuple of columns; but where
    `count` examples are known and it has as many parts, which are no columns of that length, the
    tuple holds the rows, as a list does."""
    if isinstance(value, Mapping):
        if not value or not all(isinstance(key, str) for key in value):
            raise UserError(
                f"the {what} has a dictionary of inputs whose keys are not all names, or that is "
                "empty: name each input as an argument of the model."
            )
        return {key: inputs_of(part, count, f"{key} of the {what}") for key, part in value.items()}
    if isinstance(value, tuple | list) and value and all(map(is_column, value)):
        rows = count is not None and len(value) == count
        parts = tuple(inputs_of(part, count, what) for part in value)
        fits = count is not None and all(
            leaf.dim() and len(leaf) == count for leaf in trees.named_leaves(parts).values()
        )
        if (fits and not rows) or (isinstance(value, tuple) and (fits or not rows)):
            return parts
    if isinstance(value, str):
        raise words_as_input(what)
    return tensor_of_inputs(value, what)


def tensor_of_inputs(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        array = array_of(value, what)
        if array.size and array.dtype.kind in "OUST" and isinstance(array.flat[0], str | bytes):
            raise words_as_input(what)
    return tensor_of(value, what)


def words_as_input(what: str) -> UserError:
    return UserError(
        f"the {what} holds text as inputs: give the numbers that a tokenizer makes of it, and "
        "leave the words out."
    )


def is_column(part: Any) -> bool:
    """Whether something inside a tuple is an input of its own and not a number of a row."""
    if isinstance(part, Mapping) or hasattr(part, "getbands"):
        return True
    if isinstance(part, tuple | list):
        return bool(part) and all(map(is_column, part))
    return isinstance(part, Tensor | np.ndarray) and part.ndim > 0


def joined_inputs(parts: Sequence[Tree], what: str, join: Any) -> Tree:
    """Single examples (stacked) or batches (end to end) of one kind as one tree."""
    columns = [trees.named_leaves(part) for part in parts]
    for other in columns:
        if other.keys() != columns[0].keys():
            odd = sorted({*other} ^ {*columns[0]})[0]
            raise UserError(
                f"some examples of the {what} have the input {odd} and some have not: give all the "
                "same ones."
            )
    whole = {
        place: joined([column[place] for column in columns], f"inputs{place}", what, join)
        for place in columns[0]
    }
    found = trees.from_columns("", whole)
    assert found is not None
    return found


def joined(parts: Sequence[Any], name: str, what: str, join: Any) -> Any:
    """One column of the parts of it, which are of one shape."""
    if len({tuple(p.shape) if join is torch.stack else tuple(p.shape[1:]) for p in parts}) > 1:
        shapes = sorted({str(tuple(part.shape)) for part in parts})[:2]
        raise UserError(
            f"the {name} of the {what} have different shapes, {' and '.join(shapes)}: bring them "
            "to one shape first, for instance by padding."
        )
    if all(isinstance(part, Tensor) for part in parts):
        return join(parts)
    texts = [np.asarray(part) if isinstance(part, Tensor) else part for part in parts]
    return np.stack(texts) if join is torch.stack else np.concatenate(texts)


def numbered(labels: LabelColumn) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers, and the names that the numbers stand for, in their order: none where
    labels are numbers anyway."""
    if isinstance(labels, Tensor):
        return labels, ()
    names = sorted({str(name) for name in labels.reshape(-1).tolist()})
    place = {name: number for number, name in enumerate(names)}
    found = [place[str(name)] for name in labels.reshape(-1).tolist()]
    return torch.tensor(found, dtype=torch.long).reshape(labels.shape), tuple(names)

"""Whatever holds a user's examples, as aligned tensors."""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from metasp.errors import UserError
from metasp.types import ArrayLike, Rows

Examples = Dataset[object] | DataLoader[object] | Iterable[tuple[object, object]]
Data = tuple[Rows, Rows] | Examples
"""What a learner learns from: inputs and labels, as two columns or as pairs."""

Ids = int | ArrayLike | Iterable[int]
"""Ids of examples: one, or any collection of them."""

LARGEST = 2**62  # of ids: the next one must still be a number


class Arrivals(NamedTuple):
    """Inputs (n, …) and labels (n, …): whole numbers for classes, floats for anything else."""

    inputs: Tensor
    labels: Tensor

    @property
    def are_classes(self) -> bool:
        return self.labels.dim() == 1 and not self.labels.is_floating_point()

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes among the labels, ascending; none where labels are no classes."""
        return tuple(sorted({*self.labels.tolist()})) if self.are_classes else ()


class Arriving(NamedTuple):
    """What a task brings: examples, their ids if they have any, tests, and verified examples."""

    found: Arrivals
    ids: Any
    test: Arrivals | None
    trusted: Arrivals | None


class Removal(TypedDict):
    """What is kept of examples that were forgotten."""

    ids: list[int]
    when: str
    reason: str
    from_memory: int


def kind(rows: Tensor) -> str:
    """What a column holds, in words: its type and the shape of one row."""
    return f"{str(rows.dtype).removeprefix('torch.')} of shape {tuple(rows.shape[1:])}"


def read(dataset: Any, dtype: torch.dtype, what: str = "dataset") -> Arrivals:
    """All examples of a torch Dataset or DataLoader, or of a pair (inputs, labels) of tensors or
    arrays. Floats take the model's `dtype`."""
    if isinstance(dataset, TensorDataset):
        dataset = dataset.tensors
        if len(dataset) != 2:
            raise not_pairs(what)
    if is_pair(dataset):
        inputs, labels = (tensor_of(part, what) for part in dataset)
    elif isinstance(dataset, DataLoader):
        parts = [pair_of(batch, what) for batch in dataset]
        single = dataset.batch_sampler is None and all(label.dim() == 0 for _, label in parts)
        inputs, labels = joined(parts, what, torch.stack if single else torch.cat)
    elif indexed(dataset):
        rows = (dataset[index] for index in range(len(dataset)))
        inputs, labels = joined([pair_of(row, what) for row in rows], what, torch.stack)
    elif isinstance(dataset, Iterable) and not isinstance(dataset, Mapping):
        inputs, labels = joined([pair_of(row, what) for row in dataset], what, torch.stack)
    else:
        raise not_pairs(what)
    labels = labels.to(dtype) if labels.is_floating_point() else labels.long()
    if inputs.is_floating_point():
        inputs = inputs.to(dtype)
    return checked(Arrivals(inputs.detach().cpu(), labels.detach().cpu()), what)


def indexed(dataset: Any) -> bool:
    """Whether its examples are found by their numbers."""
    if isinstance(dataset, IterableDataset | Mapping) or hasattr(dataset, "to_numpy"):
        return False  # a table of pandas' is one of columns
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def is_pair(dataset: Any) -> bool:
    """Whether it is a pair of columns, not a list of two examples."""
    if isinstance(dataset, tuple):
        return len(dataset) == 2
    if not isinstance(dataset, list) or len(dataset) != 2:
        return False
    return all(isinstance(part, Tensor | np.ndarray) for part in dataset)


def checked(found: Arrivals, what: str) -> Arrivals:
    inputs, labels = found
    if not inputs.dim() or not labels.dim() or len(inputs) != len(labels):
        raise UserError(
            f"the {what} has inputs of shape {tuple(inputs.shape)} and labels of shape "
            f"{tuple(labels.shape)}: give one label per input."
        )
    if not len(inputs):
        raise UserError(f"the {what} is empty: give at least one example.")
    for name, column in (("input", inputs), ("label", labels)):
        if column.is_floating_point() and not bool(column.isfinite().all()):
            bad = int((~column.reshape(len(column), -1).isfinite().all(1)).nonzero()[0])
            raise UserError(
                f"the {name} of example {bad} of the {what} is not finite: mend it or leave that "
                "example out."
            )
    return found


def pair_of(item: Any, what: str) -> tuple[Tensor, Tensor]:
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise not_pairs(what)
    return tensor_of(item[0], what), tensor_of(item[1], what)


def not_pairs(what: str) -> UserError:
    return UserError(
        f"the {what} does not hold pairs of input and label: give a torch Dataset or DataLoader of "
        "such pairs, or a pair (inputs, labels) of tensors or arrays."
    )


def tensor_of(value: Any, what: str) -> Tensor:
    """A tensor of a tensor, array, number, list or picture (channels first)."""
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserError(
            f"the {what} holds rows of different lengths: bring them to one shape first."
        ) from error
    if hasattr(value, "getbands"):  # a PIL image
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"the {what} holds {array.dtype.name} values: turn them into numbers first, for "
            "instance by numbering the classes."
        )
    kinds = {"u": np.uint8 if array.dtype == np.uint8 else np.int64, "i": np.int64, "b": np.bool_}
    return torch.from_numpy(np.array(array, kinds.get(array.dtype.kind, array.dtype)))


def joined(pairs: Sequence[tuple[Tensor, Tensor]], what: str, join: Any) -> tuple[Tensor, Tensor]:
    """The columns of single examples (stacked) or of batches (end to end)."""
    if not pairs:
        raise UserError(f"the {what} is empty: give at least one example.")
    columns = []
    for name, parts in zip(("inputs", "labels"), zip(*pairs)):
        if len({part.shape if join is torch.stack else part.shape[1:] for part in parts}) > 1:
            shapes = sorted({str(tuple(part.shape)) for part in parts})[:2]
            raise UserError(
                f"the {name} of the {what} have different shapes, {' and '.join(shapes)}: bring "
                "them to one shape first."
            )
        columns.append(join(parts))
    return columns[0], columns[1]


def ids_of(given: Any, count: int, first: int) -> Tensor:
    """The ids (n,) that a user gave to n examples, or running numbers from `first`."""
    if given is None:
        return torch.arange(first, first + count)
    ids = tensor_of(given, "ids")
    whole = not ids.is_floating_point() and ids.dtype != torch.bool
    if not whole or ids.shape != (count,) or bool((ids < 0).any()):
        raise UserError(
            f"ids must be {count} whole numbers from 0 on, one per example; keep a table of your "
            "own for other names."
        )
    if int(ids.max()) >= LARGEST:
        raise UserError(f"id {int(ids.max())} is too large: keep ids below {LARGEST}.")
    if len({*ids.tolist()}) < count:
        twice = next(i for i in ids.tolist() if int((ids == i).sum()) > 1)
        raise UserError(f"id {twice} is given to two examples: give each its own.")
    return ids.long().cpu()


def whole_numbers(given: Any) -> set[int]:
    """Ids to be forgotten: one, or any collection of them."""
    rows = given.reshape(-1).tolist() if hasattr(given, "reshape") else given
    rows = [rows] if isinstance(rows, numbers.Number) else rows
    if isinstance(rows, str) or not isinstance(rows, Iterable):
        raise UserError(f"ids must be whole numbers, not {given!r}.")
    found = set()
    for row in rows:
        one = row.item() if hasattr(row, "item") else row
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < LARGEST:
            raise UserError(
                f"ids must be whole numbers from 0 on, and {one!r} is none: a mask must be turned "
                "into ids first, for instance ids[mask]."
            )
        found.add(one)
    return found


def check_order(dataset: Any) -> None:
    """Raise if a loader does not give its examples in their own order: ids would go astray."""
    if not isinstance(dataset, DataLoader) or isinstance(dataset.dataset, IterableDataset):
        return
    batches = dataset.batch_sampler
    sampler = dataset.sampler if batches is None else getattr(batches, "sampler", None)
    if type(batches) not in (BatchSampler, type(None)) or not isinstance(
        sampler, SequentialSampler
    ):
        raise UserError(
            "ids name the examples in the order of the dataset, and this DataLoader shuffles or "
            "picks them: give ids with the dataset itself, or a loader with shuffle=False."
        )


class Inputs:
    """Raw examples to network inputs: the user's transform and augmentation, or bytes made numbers
    from 0 to 1 and all else as it is."""

    def __init__(self, transform: Any, augment: Any, dtype: torch.dtype) -> None:
        self.transform, self.augment, self.dtype = transform, augment, dtype

    def __call__(self, raw: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.transform is not None:
            raw = self.transform(raw)
        elif raw.dtype == torch.uint8:
            raw = raw.to(self.dtype) / 255
        elif raw.is_floating_point():  # what a memory of floats made of bytes
            raw = raw.to(self.dtype)
        if self.augment is not None and generator is not None:
            raw = self.augment(raw, generator)
        return raw

    def undo(self, inputs: Tensor) -> Tensor:
        if self.transform is not None:
            raise UserError(
                "gmed edits the examples it stores and cannot undo your transform: transform the "
                "dataset beforehand, or use another method."
            )
        return inputs

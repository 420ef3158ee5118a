"""Whatever holds a user's examples, as aligned tensors."""

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from metasp import trees
from metasp.errors import UserError
from metasp.learner.columns import (
    LabelColumn,
    inputs_of,
    joined,
    joined_inputs,
    labels_of,
    numbered,
    tensor_of,
)
from metasp.trees import Tree
from metasp.types import Rows

Columns = Rows | Mapping[str, object] | tuple[object, ...]
"""Inputs: one column, or several by name or in order."""

Examples = Dataset[object] | DataLoader[object] | Iterable[object]
Data = tuple[Columns, Rows] | Mapping[str, object] | Examples
"""What a learner learns from: inputs and labels, as columns, as examples or as batches."""


class Arrivals(NamedTuple):
    """Inputs (n, …), or a tree of them, and labels (n, …): whole numbers for classes, floats for
    anything else; `names` are what the numbers stand for where labels are text."""

    inputs: Tree
    labels: Tensor
    names: tuple[str, ...] = ()

    @property
    def are_classes(self) -> bool:
        return self.labels.dim() == 1 and not self.labels.is_floating_point()

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes among the labels, ascending; none where labels are not classes."""
        return tuple(sorted({*self.labels.tolist()})) if self.are_classes else ()

    def at(self, index: Tensor) -> "Arrivals":
        """Some of the examples."""
        return Arrivals(trees.rows(self.inputs, index), self.labels[index], self.names)


class Arriving(NamedTuple):
    """What a task brings: examples, their ids if they have any, tests, verified examples, and
    examples by which training stops, or the share of the others that is held out for it."""

    found: Arrivals
    ids: Any
    test: Arrivals | None
    trusted: Arrivals | None
    validation: Arrivals | float | None


class Removal(TypedDict):
    """What is kept of examples that were forgotten."""

    ids: list[int]
    when: str
    reason: str
    from_memory: int


class Part(NamedTuple):
    """One example, or a batch of them."""

    inputs: Tree
    labels: LabelColumn


def read(dataset: Any, dtype: torch.dtype, what: str = "dataset") -> Arrivals:
    """All examples of a torch Dataset or DataLoader, of a pair (inputs, labels) of columns, of a
    dictionary of columns with the labels among them, or of a list or iterator of examples or
    batches. Floats take the model's `dtype`."""
    if isinstance(dataset, TensorDataset):
        dataset = dataset.tensors
        if len(dataset) != 2:
            raise not_pairs(what)
    if isinstance(dataset, Mapping) or is_pair(dataset):
        found = part_of(dataset, what)
    elif isinstance(dataset, DataLoader):
        batches = [part_of(batch, what, collated=True) for batch in dataset]
        single = dataset.batch_sampler is None and all(part.labels.ndim == 0 for part in batches)
        found = whole_of(batches, what, torch.stack if single else torch.cat)
    elif indexed(dataset) and not isinstance(dataset, list | tuple):
        rows = (dataset[index] for index in range(len(dataset)))
        found = whole_of([part_of(row, what) for row in rows], what, torch.stack)
    elif isinstance(dataset, Iterable):
        parts = [part_of(item, what, collated=True) for item in dataset]
        batched = bool(parts) and all(map(is_batch, parts))
        found = whole_of(parts, what, torch.cat if batched else torch.stack)
    else:
        raise not_pairs(what)
    return checked(found, dtype, what)


def held_out_of(validation: Any, read: Callable[[Any, str], Arrivals]) -> Arrivals | float | None:
    """Examples for validation, or the share of a task's own that is to be held out for it."""
    if validation is None:
        return None
    if isinstance(validation, numbers.Real):
        share = float(validation)
        if not 0 < share < 1:
            raise UserError(
                f"validation is {validation!r}: give a share between 0 and 1 of the dataset, or a "
                "dataset of its own."
            )
        return share
    return read(validation, "validation dataset")


def checked_patience(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, numbers.Integral) or given < 1:
        raise UserError(f"patience is {given!r}: give a whole number of epochs, 1 or more.")
    return int(given)


def indexed(dataset: Any) -> bool:
    """Whether its examples are found by their numbers."""
    if isinstance(dataset, IterableDataset) or hasattr(dataset, "to_numpy"):
        return False  # a table of pandas' is one of columns
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def is_pair(dataset: Any) -> bool:
    """Whether it is a pair of columns, not a list of two examples."""
    if isinstance(dataset, tuple):
        return len(dataset) == 2
    if not isinstance(dataset, list) or len(dataset) != 2:
        return False
    return all(isinstance(part, Tensor | np.ndarray) for part in dataset)


def is_batch(part: Part) -> bool:
    """Whether an item of a list or iterator is a batch: its labels are one axis, and its inputs
    have the same one and further ones."""
    leaves = trees.named_leaves(part.inputs).values()
    return (
        part.labels.ndim == 1
        and all(leaf.dim() and len(leaf) == len(part.labels) for leaf in leaves)
        and any(leaf.dim() > 1 for leaf in leaves)
    )


def part_of(item: Any, what: str, collated: bool = False) -> Part:
    """An example, a batch or a whole data set: a pair, or a dictionary with the labels inside. In
    one that a loader has `collated`, a list is a tuple of columns: loaders make lists of them."""
    if isinstance(item, Mapping):
        key = trees.label_key(item)
        if key is None:
            raise UserError(
                f"the {what} holds a dictionary without labels ({', '.join(map(str, item))}): put "
                "them in under `labels`, or give pairs of input and label."
            )
        given = {name: value for name, value in item.items() if name != key}
        labels = labels_of(item[key], what)
    elif isinstance(item, tuple | list) and len(item) == 2:
        given, labels = item[0], labels_of(item[1], what)
    else:
        raise not_pairs(what)
    count = len(labels) if labels.ndim else None
    if collated and labels.ndim and isinstance(given, list):
        given = tuple(given)
    return Part(inputs_of(given, count, what), labels)


def whole_of(parts: list[Part], what: str, join: Callable[..., Tensor]) -> Part:
    """Single examples (stacked) or batches (end to end) as one."""
    if not parts:
        raise UserError(f"the {what} is empty: give at least one example.")
    inputs = joined_inputs([part.inputs for part in parts], what, join)
    return Part(inputs, joined([part.labels for part in parts], "labels", what, join))


def checked(found: Part, dtype: torch.dtype, what: str) -> Arrivals:
    """The examples on the CPU, or one sentence on why they are none."""
    labels, names = numbered(found.labels)
    labels = labels.to(dtype) if labels.is_floating_point() else labels.long()

    def detached(leaf: Tensor) -> Tensor:
        if leaf.layout != torch.strided:
            raise UserError(f"the {what} holds sparse tensors: make them dense, with x.to_dense().")
        return (leaf.to(dtype) if leaf.is_floating_point() else leaf).detach().cpu()

    whole = Arrivals(trees.each(detached, found.inputs), labels.detach().cpu(), names)
    columns = {f"inputs{place}": leaf for place, leaf in trees.named_leaves(whole.inputs).items()}
    check_lengths(whole.inputs, f"the inputs of the {what}")
    for name, leaf in columns.items():
        if not leaf.dim() or not labels.dim() or len(leaf) != len(labels):
            raise UserError(
                f"the {what} has {name} of shape {tuple(leaf.shape)} and labels of shape "
                f"{tuple(labels.shape)}: give one label per input."
            )
    if not len(labels):
        raise UserError(f"the {what} is empty: give at least one example.")
    for name, column in {**columns, "labels": labels}.items():
        if column.is_floating_point() and not bool(column.isfinite().all()):
            bad = int((~column.reshape(len(column), -1).isfinite().all(1)).nonzero()[0])
            one = name.replace("inputs", "input").replace("labels", "label")
            raise UserError(
                f"the {one} of example {bad} of the {what} is not finite: correct it, or leave "
                "that example out."
            )
    return whole


def check_lengths(inputs: Tree, what: str) -> None:
    """Raise unless all columns have a row for each example."""
    columns = trees.named_leaves(inputs)
    lengths = {place: len(leaf) if leaf.dim() else 0 for place, leaf in columns.items()}
    if len({*lengths.values()}) > 1:
        told = " and ".join(f"{n} of inputs{place}" for place, n in [*lengths.items()][:3])
        raise UserError(f"{what} have different lengths, {told}: give one row of each per example.")


def adopted(found: Arrivals, known: Sequence[str], learned: bool) -> tuple[Arrivals, list[str]]:
    """What has come under the learner's own numbers, and all names with the new ones at the end.
    `learned` says whether there were labels before, which must then have been of the same kind."""
    if learned and bool(found.names) != bool(known):
        raise other_kind(found, f"and were {kind_of(known)} before")
    names = [*known, *(name for name in found.names if name not in known)]
    return translated(found, names), names


def translated(found: Arrivals, names: Sequence[str]) -> Arrivals:
    """The same under the numbers of these names; others get numbers beyond, as classes that the
    learner has not met."""
    if bool(found.names) != bool(names):
        raise other_kind(found, f"and the learner's classes are {kind_of(names)}")
    if not names:
        return found
    more = [name for name in found.names if name not in names]
    place = {name: number for number, name in enumerate([*names, *more])}
    numbers = torch.tensor([place[name] for name in found.names])
    return Arrivals(found.inputs, numbers[found.labels])


def kind_of(names: Sequence[str]) -> str:
    return "names" if names else "numbers"


def other_kind(found: Arrivals, instead: str) -> UserError:
    return UserError(
        f"the labels are {kind_of(found.names)} {instead}: a learner keeps to one kind."
    )


def inputs_alone(x: Any, held: Tree | None, dtype: torch.dtype) -> Tree:
    """Inputs without labels, as those that the memory holds, where it holds any."""
    if isinstance(x, Dataset | DataLoader):
        raise UserError("this takes inputs, not a dataset: use score, or give its inputs.")
    if isinstance(x, Mapping):
        known = held if isinstance(held, Mapping) else {}
        x = {name: value for name, value in x.items() if name not in trees.LABELS or name in known}
        if isinstance(held, Tensor):
            raise UserError(
                f"the inputs are a dictionary ({', '.join(map(str, x))}) and were one tensor "
                "before: bring them to one kind."
            )
    inputs = tensor_of(x, "inputs") if isinstance(held, Tensor) else inputs_of(x, None, "inputs")
    inputs = trees.each(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)
    found, one = trees.named_leaves(inputs), {} if held is None else trees.named_leaves(held)
    alone = [found[place].shape == leaf.shape[1:] for place, leaf in one.items() if place in found]
    if alone and all(alone):
        raise UserError("this is a single input without a batch around it: give x[None].")
    check_lengths(inputs, "the inputs")
    return inputs


def not_pairs(what: str) -> UserError:
    return UserError(
        f"the {what} does not hold pairs of input and label: give a torch Dataset or DataLoader of "
        "such pairs, or a pair (inputs, labels) of tensors or arrays."
    )


class Inputs:
    """Raw examples to network inputs: the user's transform and augmentation, or bytes made numbers
    from 0 to 1 and all else as it is."""

    def __init__(self, transform: Any, augment: Any, dtype: torch.dtype) -> None:
        self.transform, self.augment, self.dtype = transform, augment, dtype

    def __call__(self, raw: Tree, generator: torch.Generator | None = None) -> Tree:
        raw = trees.each(self._numbers, raw) if self.transform is None else self.transform(raw)
        if self.augment is not None and generator is not None:
            raw = self.augment(raw, generator)
        return raw

    def _numbers(self, raw: Tensor) -> Tensor:
        if raw.dtype == torch.uint8:
            return raw.to(self.dtype) / 255
        # Floats may be what a memory of floats made of bytes.
        return raw.to(self.dtype) if raw.is_floating_point() else raw

    def undo(self, inputs: Tensor) -> Tensor:
        if self.transform is not None:
            raise UserError(
                "gmed edits the examples it stores and cannot undo your transform: transform the "
                "dataset beforehand, or use another method."
            )
        return inputs

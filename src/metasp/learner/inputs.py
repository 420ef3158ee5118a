"""Turn whatever holds a user's examples into aligned tensors: inputs, labels and ids."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from metasp import trees
from metasp.errors import UserError
from metasp.trees import Tree
from metasp.types import ArrayLike, Examples, Rows

Columns = Rows | Mapping[str, object] | tuple[object, ...]
"""Inputs: one column, or several by name or in order."""

Data = (
    tuple[Columns, Rows]
    | Mapping[str, object]
    | Dataset[object]
    | DataLoader[object]
    | Iterable[object]
)
"""What a learner learns from: inputs and labels, as columns, as examples or as batches."""

Ids = int | str | ArrayLike | Iterable[int] | Iterable[str]
"""Ids of examples: one, or any collection of them."""

Labels = Tensor | np.ndarray[Any, Any]
"""Labels as numbers, or as an array of texts."""

LARGEST_ID = 2**62  # the next one must still be a number


class Labelled(NamedTuple):
    """Inputs (n, …), or a tree of them, and labels (n, …): whole numbers for classes, floats for
    anything else. `names` are what the numbers stand for where labels are text."""

    inputs: Tree
    labels: Tensor
    names: tuple[str, ...] = ()

    @property
    def are_classes(self) -> bool:
        return self.labels.dim() == 1 and not self.labels.is_floating_point()

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes among the labels, ascending; none where labels are not classes."""
        return tuple(sorted({*self.labels.tolist()})) if self.are_classes else ()

    def at(self, index: "Tensor | slice[None, int, None]") -> "Labelled":
        """Select some of the examples."""
        return Labelled(trees.rows(self.inputs, index), self.labels[index], self.names)

    def no_examples(self) -> Examples:
        """Return no examples of the same kind."""
        return self.at(torch.zeros(0, dtype=torch.long)).examples()

    def examples(self, ids: Tensor | None = None) -> Examples:
        """Return them as training or test data, under these ids (n,)."""
        return Examples.of(self.inputs, self.labels, ids)


def read_examples(data: Any, dtype: torch.dtype, what: str = "dataset") -> Labelled:
    """Read all examples of a torch Dataset or DataLoader, of a pair (inputs, labels) of columns, of
    a dictionary of columns with the labels among them, or of an iterable of examples or batches.
    Floats take the model's `dtype`; `what` names the data in errors."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Mapping) or (isinstance(data, tuple) and len(data) == 2):
        return checked(*split_item(data, what), dtype, what)
    iterated = isinstance(data, DataLoader | IterableDataset | list | tuple)
    if not iterated and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        items = [split_item(data[index], what) for index in range(len(data))]
        batched = False
    elif isinstance(data, Iterable):
        items = [split_item(item, what, collated=True) for item in data]
        of_loader = isinstance(data, DataLoader) and data.batch_sampler is not None
        batched = of_loader or all(is_batch(*item) for item in items)
    else:
        raise not_pairs(what)
    if not items:
        raise empty(what)
    inputs, labels = zip(*items)
    join = torch.cat if batched else torch.stack
    return checked(*joined(inputs, labels, join, what), dtype, what)


def read_inputs(x: Any, stored: Tree | None, dtype: torch.dtype) -> Tree:
    """Read inputs without labels; they are of the kind that the memory has `stored`, if it has."""
    if isinstance(x, Mapping):
        inputs_of_model = stored if isinstance(stored, Mapping) else {}
        x = {k: v for k, v in x.items() if k not in trees.LABELS or k in inputs_of_model}
    inputs = as_tensor(x, "inputs") if isinstance(stored, Tensor) else as_tree(x, "inputs")
    inputs = trees.each(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)
    leaves = trees.named_leaves(inputs)
    before = {} if stored is None else trees.named_leaves(stored)
    single = [leaves[name].shape == t.shape[1:] for name, t in before.items() if name in leaves]
    if single and all(single):
        raise UserError("this is a single input without a batch around it: give x[None].")
    check_lengths(inputs, "the batch")
    return inputs


def is_batch(inputs: Tree, labels: Labels) -> bool:
    """Tell whether an item of an iterable is a batch: its labels are one axis, and its inputs have
    the same one and further ones."""
    leaves = trees.named_leaves(inputs).values()
    return (
        labels.ndim == 1
        and all(leaf.dim() and len(leaf) == len(labels) for leaf in leaves)
        and any(leaf.dim() > 1 for leaf in leaves)
    )


def split_item(item: Any, what: str, collated: bool = False) -> tuple[Tree, Labels]:
    """Split an example, a batch or a whole data set into inputs and labels: a pair, or a dictionary
    with the labels inside. In what a loader has `collated`, a list is a tuple of columns."""
    if isinstance(item, Mapping):
        key = trees.label_key(item)
        if key is None:
            raise UserError(
                f"the {what} holds a dictionary without labels ({', '.join(map(str, item))}): put "
                "them in under `labels`, or give pairs of input and label."
            )
        inputs: Any = {name: value for name, value in item.items() if name != key}
        labels = as_labels(item[key], what)
    elif isinstance(item, tuple | list) and len(item) == 2:
        inputs, labels = item[0], as_labels(item[1], what)
    else:
        raise not_pairs(what)
    if collated and labels.ndim and isinstance(inputs, list):
        inputs = tuple(inputs)
    return as_tree(inputs, what), labels


def as_tensor(value: Any, what: str) -> Tensor:
    """Make a tensor of a tensor, array, number, list or picture (channels first)."""
    if isinstance(value, Tensor):
        return value
    array = as_array(value, what)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"the {what} holds {'text' if array.dtype.kind in 'US' else array.dtype.name} as "
            "inputs: give numbers, such as those that a tokenizer makes of words."
        )
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array))


def as_array(value: Any, what: str) -> np.ndarray[Any, Any]:
    """Make an array of a value; of a picture with its channels first."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserError(
            f"the {what} holds rows of different lengths: bring them to one shape first."
        ) from error
    if hasattr(value, "getbands"):  # a PIL image
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return array


def as_labels(value: Any, what: str) -> Labels:
    """Make a tensor of labels that are numbers, an array of texts of those that are names."""
    if isinstance(value, Tensor):
        return value
    array = as_array(value, what)
    if array.dtype.kind not in "OUST":
        return as_tensor(array, what)
    labels = array.reshape(-1).tolist()
    for row, label in enumerate(labels):
        if label is None or label != label or str(label) == "<NA>":
            raise UserError(
                f"example {row} of the {what} has no label: give it one, or leave it out."
            )
    if all(isinstance(label, int) for label in labels):
        return torch.tensor(labels, dtype=torch.long).reshape(array.shape)
    texts = [label.decode() if isinstance(label, bytes) else str(label) for label in labels]
    return np.array(texts, dtype=object).reshape(array.shape)


def as_tree(value: Any, what: str) -> Tree:
    """Make a tree of tensors of inputs: a dictionary and a tuple of columns are one, all else is a
    single column."""
    if isinstance(value, Mapping):
        if not value or not all(isinstance(key, str) for key in value):
            raise UserError(
                f"the {what} has a dictionary of inputs whose keys are not all names, or that is "
                "empty: name each input as an argument of the model."
            )
        return {key: as_tree(item, f"{key} of the {what}") for key, item in value.items()}
    if isinstance(value, tuple) and value and all(map(is_column, value)):
        return tuple(as_tree(item, what) for item in value)
    return as_tensor(value, what)


def is_column(item: Any) -> bool:
    """Tell whether an item of a tuple is an input of its own and not a number of a row."""
    return isinstance(item, Mapping | tuple) or getattr(item, "ndim", 0) > 0


def joined(
    inputs: Sequence[Tree], labels: Sequence[Labels], join: Callable[..., Tensor], what: str
) -> tuple[Tree, Labels]:
    """Join single examples (stacked) or batches (end to end); numbers become text beside names."""
    try:
        tree: Tree = tree_map(lambda *leaves: join(leaves), *inputs)
        if all(isinstance(one, Tensor) for one in labels):
            return tree, join(labels)
        arrays = [np.asarray(one) for one in labels]
        return tree, np.stack(arrays) if join is torch.stack else np.concatenate(arrays)
    except (ValueError, RuntimeError) as error:
        reason = str(error).split("\n")[0][:160].rstrip(".")
        raise UserError(
            f"the examples of the {what} are not all of one kind ({reason}): give all of them the "
            "same inputs in one shape, for instance by padding."
        ) from error


def checked(inputs: Tree, labels: Labels, dtype: torch.dtype, what: str) -> Labelled:
    """Return the examples on the CPU, or raise one sentence on why they are none."""
    numbers_of, names = numbered(labels)
    target = dtype if numbers_of.is_floating_point() else torch.long
    numbers_of = numbers_of.to(target).detach().cpu()

    def on_cpu(leaf: Tensor) -> Tensor:
        return (leaf.to(dtype) if leaf.is_floating_point() else leaf).detach().cpu()

    inputs = trees.each(on_cpu, inputs)
    check_lengths(inputs, f"the {what}", {"labels": numbers_of})
    if not len(numbers_of):
        raise empty(what)
    columns = {f"input{path}": leaf for path, leaf in trees.named_leaves(inputs).items()}
    for name, column in {**columns, "label": numbers_of}.items():
        finite = column.reshape(len(column), -1).isfinite().all(1)
        if not bool(finite.all()):
            raise UserError(
                f"the {name} of example {int((~finite).nonzero()[0])} of the {what} is not finite: "
                "correct it, or leave that example out."
            )
    return Labelled(inputs, numbers_of, names)


def numbered(labels: Labels) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as numbers (n, …), and the names that these stand for, in their order: none
    where labels are numbers anyway."""
    if isinstance(labels, Tensor):
        return labels, ()
    names, numbers_of = np.unique(labels.astype(str), return_inverse=True)
    return torch.from_numpy(numbers_of.reshape(labels.shape)), tuple(names.tolist())


def check_lengths(inputs: Tree, what: str, more: Mapping[str, Tensor] | None = None) -> None:
    """Raise unless all columns, of the inputs and more, have a row for each example."""
    columns = {f"inputs{path}": leaf for path, leaf in trees.named_leaves(inputs).items()}
    lengths = {k: len(v) if v.dim() else 0 for k, v in {**columns, **(more or {})}.items()}
    if len({*lengths.values()}) > 1 or not all(t.dim() for t in columns.values()):
        counts = [f"{length} of {name}" for name, length in lengths.items()][:3]
        raise UserError(
            f"{what} has columns of different lengths, {' and '.join(counts)}: give one row of "
            "each per example."
        )


def renumbered(data: Labelled, names: Sequence[str]) -> Labelled:
    """Return examples under the numbers that a learner has for its classes `names`. Other classes
    get numbers beyond, in their order, as classes that the learner has not met; `names` of the
    result are then all of them."""
    if bool(data.names) != bool(names):
        ours, theirs = ("names" if one else "numbers" for one in (names, data.names))
        raise UserError(
            f"the labels are {theirs} and the learner's classes are {ours}: a learner keeps to one "
            "kind."
        )
    if not names:
        return data
    every = [*names, *(name for name in data.names if name not in names)]
    numbers_of = torch.tensor([every.index(name) for name in data.names])
    return Labelled(data.inputs, numbers_of[data.labels], tuple(every))


def as_ids(ids: Any, count: int | None = None) -> list[int] | list[str]:
    """Return the ids that a user gave: whole numbers from 0, or texts. `count`: of how many
    examples, each of which needs its own; None: of any number, ascending."""
    listed = (
        isinstance(ids, Iterable) and not isinstance(ids, str) and not hasattr(ids, "__array__")
    )
    rows = np.atleast_1d(as_array(list(ids) if listed else ids, "ids"))
    texts = rows.dtype.kind in "OUT" and all(isinstance(one, str) for one in rows.tolist())
    numbers = rows.dtype.kind in "iu" and bool(((rows >= 0) & (rows < LARGEST_ID)).all())
    if (rows.size and not texts and not numbers) or rows.ndim > 1 or count not in (None, len(rows)):
        of_each = "" if count is None else f"{count}, one for each example: "
        raise UserError(
            f"ids must be {of_each}whole numbers from 0, or texts, not {str(ids)[:60]}: turn a "
            "mask into ids first, for instance by ids[mask]."
        )
    values, counts = np.unique(rows, return_counts=True)
    if count is None:
        return cast(list[int], values.tolist()) if rows.size else []
    if len(values) < count:
        twice = values[counts > 1].tolist()[0]
        raise UserError(f"id {twice!r} is given to two examples: give each its own.")
    return cast(list[int], rows.tolist())


def check_order(data: Any) -> None:
    """Raise if a loader does not give its examples in their own order: ids would go astray."""
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return
    batches = data.batch_sampler
    sampler = data.sampler if batches is None else getattr(batches, "sampler", None)
    ordered = isinstance(sampler, SequentialSampler)
    if not ordered or type(batches) not in (BatchSampler, type(None)):
        raise UserError(
            "ids name the examples in the order of the dataset, and this DataLoader shuffles or "
            "picks them: give ids with the dataset itself, or a loader with shuffle=False."
        )


def not_pairs(what: str) -> UserError:
    return UserError(
        f"the {what} does not hold pairs of input and label: give a torch Dataset or DataLoader of "
        "such pairs, or a pair (inputs, labels) of tensors or arrays."
    )


def empty(what: str) -> UserError:
    return UserError(f"the {what} is empty: give at least one example.")

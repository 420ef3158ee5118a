"""What travels between the parts: batches, examples, tasks, random streams."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp import trees
from metasp.encoded import LazyRows, ahead
from metasp.trees import Tree

LossFn = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) to one loss per example, shape (n,)."""


class ArrayLike(Protocol):
    """What NumPy can read: a tensor, an array, a column of a table."""

    def __array__(self) -> object: ...


Rows = ArrayLike | Sequence[object]
"""One value, or row of values, per example."""

CROSS_ENTROPY: LossFn = partial(F.cross_entropy, reduction="none")

TensorPair = tuple[Tensor, Tensor]
"""Inputs that are one tensor, and their targets."""

State = dict[str, Tensor]
"""Everything a part must keep across a kill, as tensors by name."""


def as_rows(values: Tensor) -> Tensor:
    """Whatever is known of n examples, (n, …) or just (n,), as one row (n, d) of each."""
    return values.reshape(len(values), -1)


class Batch(NamedTuple):
    """Aligned rows: inputs (n, …), or a tuple or dictionary of such tensors, labels (n,) or, where
    they are not classes, (n, …), ids (n,)."""

    inputs: Tree
    labels: Tensor
    ids: Tensor

    @property
    def size(self) -> int:
        return int(self.ids.shape[0])

    def at(self, index: "Tensor | slice[int, int, None]") -> "Batch":
        return Batch(trees.rows(self.inputs, index), self.labels[index], self.ids[index])

    @staticmethod
    def join(batches: Sequence["Batch"]) -> "Batch":
        parts = [batch for batch in batches if batch.size]
        if len(parts) == 1:
            return parts[0]
        inputs, labels, ids = zip(*parts)
        return Batch(trees.joined(inputs), torch.cat(labels), torch.cat(ids))


@dataclass(frozen=True)
class Examples:
    """A selection of rows of a larger array (or tree of them), which is never copied as a whole, or
    of pictures that are decoded when they are taken."""

    source: Tree
    rows: Tensor
    labels: Tensor
    ids: Tensor

    @classmethod
    def of(cls, inputs: Tree, labels: Tensor, ids: Tensor | None = None) -> Self:
        rows = torch.arange(trees.size(inputs))
        return cls(inputs, rows, labels, rows if ids is None else ids)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor) -> Batch:
        rows = self.rows[index]
        inputs = trees.each(lambda t: t[rows.to(t.device)], self.source)
        return Batch(inputs, self.labels[index], self.ids[index])

    def batches(self, parts: Iterable[Tensor], pin: bool = False) -> Iterator[Batch]:
        """The batch of each part (rows of this selection), in order. Pictures are decoded while
        the batches before them are used, `pin` into memory that a GPU reads by itself."""

        def taken(index: Tensor) -> Batch:
            batch = self.take(index)
            if not pin:
                return batch
            return batch._replace(inputs=trees.each(Tensor.pin_memory, batch.inputs))

        return ahead(taken, parts) if isinstance(self.source, LazyRows) else map(self.take, parts)

    def only(self, index: Tensor) -> "Examples":
        return Examples(self.source, self.rows[index], self.labels[index], self.ids[index])

    def without(self, ids: Tensor) -> "Examples":
        """All but the examples of these ids."""
        return self.only(torch.nonzero(~torch.isin(self.ids, ids)).flatten())

    def without_rows(self, rows: Tensor) -> "Examples":
        """All but these rows of the source."""
        return self.only(torch.nonzero(~torch.isin(self.rows, rows)).flatten())

    def to(self, device: torch.device) -> "Examples":
        source = trees.each(lambda t: t.to(device), self.source)
        return Examples(source, self.rows, self.labels.to(device), self.ids)

    @staticmethod
    def join(parts: Sequence["Examples"]) -> "Examples":
        """Several selections of one array as one."""
        if any(part.source is not parts[0].source for part in parts):
            raise ValueError("the parts are rows of different arrays")
        rows, labels, ids = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("rows", "labels", "ids")
        )
        return Examples(parts[0].source, rows, labels, ids)


@dataclass(frozen=True)
class Task:
    """One step of the stream; `classes` are the labels it may be asked for with its id given.
    `trusted` are examples whose labels a person has verified, `validation` those by which training
    stops; neither are in `train`."""

    index: int
    classes: tuple[int, ...]
    train: Examples
    test: Examples
    trusted: Examples | None = None
    validation: Examples | None = None

    @property
    def ids(self) -> Tensor:
        """The ids of all its examples that are not for testing."""
        held = self.trusted, self.validation
        return torch.cat([self.train.ids, *(part.ids for part in held if part is not None)])

    def without(self, ids: Tensor) -> "Task":
        """The same task, but for the examples of these ids that are not for testing."""
        trusted = None if self.trusted is None else self.trusted.without(ids)
        validation = None if self.validation is None else self.validation.without(ids)
        train = self.train.without(ids)
        return replace(self, train=train, trusted=trusted, validation=validation)

    def without_rows(self, rows: Tensor) -> "Task":
        """The same task, but for these rows of the source, those for testing too."""
        names = ("train", "test", "trusted", "validation")
        parts = {name: part for name in names if (part := getattr(self, name)) is not None}
        return replace(self, **{name: part.without_rows(rows) for name, part in parts.items()})

    def with_trusted_in_train(self) -> "Task":
        """The same task with its trusted examples among the others, for who keeps no memory."""
        if self.trusted is None:
            return self
        parts = [self.train, self.trusted]
        if parts[0].source is not parts[1].source:
            batches = [part.take(torch.arange(len(part))) for part in parts]
            joined = Batch.join(batches)
            train = Examples.of(joined.inputs, joined.labels, joined.ids)
        else:
            train = Examples.join(parts)
        return replace(self, train=train, trusted=None)


class Streams:
    """Named random streams, each its own generator, so that a draw in one never moves another."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[str, torch.Generator] = {}

    def __getitem__(self, name: str) -> torch.Generator:
        if name not in self._generators:
            digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
            generator = torch.Generator()
            generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            self._generators[name] = generator
        return self._generators[name]

    def state_dict(self) -> State:
        return {name: generator.get_state() for name, generator in self._generators.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        self._generators = {}
        for name, value in state.items():
            self[name].set_state(value.to(torch.uint8).contiguous())

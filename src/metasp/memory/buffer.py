"""The memory: a fixed number of slots for raw examples. It stores; it decides nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from metasp import trees
from metasp.encoded import EncodedRows, EncodedSlots
from metasp.errors import UserError
from metasp.lazy import load
from metasp.trees import Tree
from metasp.types import Batch, Examples, State

EMPTY = -1

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Column:
    """One value per slot. A method or a selection that declares it needs to do nothing else: the
    memory writes, clears, forgets, checkpoints, restores, lists and widens it.

    name: its name, `memory[name]`.
    of: "scalar", a shape, or "outputs" or "features": what the model says of an example or what its
        head sees, whose width is that of the first rows written. Outputs become wider when a head
        grows; older rows then hold `blank` in their new places.
    blank: what an empty slot holds, and a slot whose writer gives no value."""

    name: str
    of: Literal["scalar", "outputs", "features"] | Shape = "scalar"
    dtype: torch.dtype = torch.float32
    blank: float = math.nan

    def __post_init__(self) -> None:
        if not self.dtype.is_floating_point and math.isnan(self.blank):
            object.__setattr__(self, "blank", 0)

    @property
    def scalar(self) -> bool:
        return self.of == "scalar"

    def empty(self, slots: int) -> Tensor:
        """Return the column of a memory that holds nothing; outputs and features have no width
        yet."""
        shape = () if self.scalar else (0,) if isinstance(self.of, str) else self.of
        return torch.full((slots, *shape), self.blank, dtype=self.dtype)

    def widened(self, values: Tensor, width: int) -> Tensor:
        """Return the same rows with `width` values each, unknown ones blank."""
        more = values.new_full((len(values), width - values.shape[1]), self.blank)
        return torch.cat([values, more], dim=1)

    def fitted(self, values: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return new values and the stored ones, both as wide as the wider of the two."""
        values = values.detach().to(stored)
        if self.scalar or not isinstance(self.of, str):
            return values, stored
        values = values.flatten(1) if values.dim() > 1 else values[:, None]
        width = max(values.shape[1], stored.shape[1])
        return self.widened(values, width), self.widened(stored, width)


CORE = (
    Column("ids", dtype=torch.long, blank=EMPTY),
    Column("tasks", dtype=torch.long, blank=EMPTY),
    Column("entered", dtype=torch.long, blank=EMPTY),
    Column("influence", dtype=torch.float64),
    Column("pinned", dtype=torch.bool),
)
"""The columns of every memory, beside inputs and labels."""

Values = Mapping[str, Tensor]
"""Values of columns by their names, aligned with the rows they are of."""


@dataclass(frozen=True)
class Placement:
    """Row `chosen[i]` of what was offered goes into slot `slots[i]`; slots are all different.
    `columns` are the values of the selection's own columns for the chosen rows."""

    chosen: Tensor
    slots: Tensor
    columns: Values = field(default_factory=dict)

    @staticmethod
    def of(pairs: list[tuple[int, int]]) -> "Placement":
        """From (row, slot) decisions in order; a later one for the same slot overrides."""
        last: dict[int, int] = {}
        for row, slot in pairs:
            last.pop(slot, None)  # a slot decided again is written in the place of the later row
            last[slot] = row
        return Placement(
            torch.tensor(list(last.values()), dtype=torch.long),
            torch.tensor(list(last.keys()), dtype=torch.long),
        )


LISTED = {"ids": "id", "labels": "label", "tasks": "task"}  # a table has one example per row


class Memory:
    """Raw, un-augmented examples with id, label, task, order of entry and statistics, and whatever
    `columns` a method or a selection keeps beside them (`memory["logits"]`). `floats` makes it hold
    bytes as numbers from 0 to 1, for a method that edits what it holds. Examples that are rows of
    `pictures`, their ids the rows, are held encoded as there, and decoded when they are read.

    A pinned slot stays while its class has a share: selections replace it after all others."""

    floats = False

    def __init__(
        self,
        capacity: int,
        columns: Sequence[Column | str] = (),
        pictures: EncodedRows | None = None,
    ) -> None:
        self.capacity, self.pictures = capacity, pictures
        self.columns: dict[str, Column] = {}
        for declared in (*CORE, *columns):
            column: Column = load(declared) if isinstance(declared, str) else declared
            if self.columns.setdefault(column.name, column) != column:
                raise ValueError(f"two different columns are called {column.name!r}.")
        self._values = {name: column.empty(capacity) for name, column in self.columns.items()}
        self.inputs: Tree | None = None
        self.labels = torch.zeros(capacity, dtype=torch.long)
        self.offered = 0
        self.written = 0

    def __len__(self) -> int:
        return int((self.ids != EMPTY).sum())

    def __getitem__(self, name: str) -> Tensor:
        """A column (capacity, …)."""
        return self._values[name]

    @property
    def ids(self) -> Tensor:
        """The id in each slot; -1 in an empty one."""
        return self._values["ids"]

    @property
    def tasks(self) -> Tensor:
        """The task that each slot's example came with."""
        return self._values["tasks"]

    @property
    def entered(self) -> Tensor:
        """The position of each slot's example in the order of all that ever came in."""
        return self._values["entered"]

    @property
    def influence(self) -> Tensor:
        """The influence by which each slot's example was last judged; NaN: never."""
        return self._values["influence"]

    @property
    def pinned(self) -> Tensor:
        """Marks the slots whose example stays while its class has a share."""
        return self._values["pinned"]

    @property
    def occupied(self) -> Tensor:
        """Slots in use, ascending."""
        return torch.nonzero(self.ids != EMPTY).flatten()

    @property
    def empty(self) -> Tensor:
        """Slots free, ascending."""
        return torch.nonzero(self.ids == EMPTY).flatten()

    def apply(self, placement: Placement, offered: Batch, task: int, **columns: Tensor) -> None:
        """Write the chosen rows of what was offered into the slots decided for them."""
        rows = offered.at(placement.chosen)
        self.write(placement.slots, rows, task, **{**placement.columns, **columns})
        self.offered += offered.size

    def write(self, slots: Tensor, batch: Batch, task: int, **columns: Tensor) -> None:
        """Fill slots (k,), all different, with the k rows of a batch and the values of columns
        that are known of them; of the others they hold blanks."""
        inputs = trees.each(trees.as_floats, batch.inputs) if self.floats else batch.inputs
        if self.inputs is None:
            self.inputs = self._room_for(inputs)
        if self.labels.shape[1:] != batch.labels.shape[1:]:
            self.labels = batch.labels.new_zeros((self.capacity, *batch.labels.shape[1:]))
        self.labels = self.labels.to(batch.labels)
        if isinstance(self.inputs, EncodedSlots):
            self.inputs.put(slots, batch.ids, trees.one_tensor(inputs, "an encoded memory"))
        else:
            trees.put(self.inputs, slots, inputs)
        self.labels[slots] = batch.labels
        self._blank(slots)
        order = self.written + torch.arange(len(slots))
        tasks = torch.full_like(order, task)
        self.update(slots, ids=batch.ids, tasks=tasks, entered=order, **columns)
        self.written += len(slots)

    def update(self, slots: Tensor, **columns: Tensor) -> None:
        """Change what is kept of the examples in the slots (k,): values (k, …) by column."""
        for name, values in columns.items():
            fitted, stored = self.columns[name].fitted(values, self._values[name])
            stored[slots] = fitted
            self._values[name] = stored

    def edit(self, slots: Tensor, inputs: Tensor) -> None:
        """Change the inputs in the slots (k,); they remain the same examples."""
        if not isinstance(self.inputs, Tensor) or not self.inputs.is_floating_point():
            raise ValueError("only a memory of floats that has been written to can be edited")
        self.inputs[slots] = inputs.to(self.inputs)

    def read(self, slots: Tensor) -> Batch:
        """The examples in the given slots."""
        if self.inputs is None:
            raise ValueError("the memory has never been written to")
        return Batch(trees.rows(self.inputs, slots), self.labels[slots], self.ids[slots])

    def draw(self, count: int, generator: torch.Generator, slots: Tensor | None = None) -> Tensor:
        """Up to `count` different ones of the slots, or of those in use, uniformly at random."""
        slots = self.occupied if slots is None else slots
        return slots[torch.randperm(len(slots), generator=generator)[:count]]

    def clear(self, slots: Tensor) -> None:
        """Forget what is in the slots, content included."""
        if isinstance(self.inputs, EncodedSlots):
            self.inputs.clear(slots)
        elif self.inputs is not None:
            trees.each(lambda t: t.index_fill_(0, slots.to(t.device), 0), self.inputs)
        self.labels[slots] = 0
        self._blank(slots)

    def forget(self, ids: Tensor) -> None:
        """Clear the slots of the examples of these ids, where there are any."""
        forgotten = torch.isin(self.ids, ids) & (self.ids != EMPTY)
        self.clear(torch.nonzero(forgotten).flatten())

    def examples(self) -> Examples:
        """All that is stored, as a data set."""
        slots = self.occupied
        if self.inputs is None:
            return Examples(torch.zeros(0), slots, self.labels[slots], slots)
        return Examples(self.inputs, slots, self.labels[slots], self.ids[slots])

    def table(self) -> dict[str, list[float]]:
        """Return a table of the slots in use: slot, id, label and every scalar column."""
        slots = self.occupied
        columns = {"slot": slots, "id": self.ids[slots], "label": self.labels[slots]}
        for name, column in self.columns.items():
            if column.scalar:
                columns[LISTED.get(name, name)] = self._values[name][slots]
        return {name: column.tolist() for name, column in columns.items()}

    def state_dict(self) -> State:
        state = {**self._values, "labels": self.labels}
        state["counters"] = torch.tensor([self.offered, self.written])
        if self.inputs is not None:
            slots = self.inputs
            inputs = slots.state() if isinstance(slots, EncodedSlots) else slots
            state |= trees.to_columns("inputs", inputs)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        """Stand where the state was taken. A column that it lacks is blank, as in a memory that
        never had it; so is an empty slot, whatever it was left with on disk."""
        self.labels = state["labels"].to(self.labels.device).clone()
        inputs = trees.from_columns("inputs", state)
        if self.pictures is None or self.floats or inputs is None:
            self.inputs = None if inputs is None else trees.each(Tensor.clone, inputs)
        else:
            assert isinstance(inputs, dict)
            self.inputs = slots = EncodedSlots(self.capacity, self.pictures)
            slots.restore(inputs, state["ids"])
        for name, column in self.columns.items():
            blank = column.empty(self.capacity)
            self._values[name] = state[name].to(blank.device).clone() if name in state else blank
        self.offered, self.written = (int(count) for count in state["counters"])
        self._blank(self.empty)

    def _room_for(self, inputs: Tree) -> Tree:
        """Empty slots for examples like these."""
        if self.pictures is not None and not self.floats:
            return EncodedSlots(self.capacity, self.pictures)
        try:
            return trees.each(lambda t: t.new_zeros((self.capacity, *t.shape[1:])), inputs)
        except RuntimeError as error:
            raise UserError(
                f"{self.capacity} examples of {trees.kind(inputs)} do not fit into working memory: "
                "give a smaller memory."
            ) from error

    def _blank(self, slots: Tensor) -> None:
        """Leave nothing in the slots of any column."""
        for name, column in self.columns.items():
            self._values[name][slots] = column.blank


@dataclass(frozen=True)
class Offer:
    """Rows that may enter: labels (n,), ids (n,), their task, and how many tasks there will be.

    `points` gives the rows to cluster, (m, d) for m row numbers; `influence` (n,) is NaN where
    unknown, and so are the mean `loss` (n,) of the rows and `held_loss` (capacity,) of the slots,
    both over the steps that measured influence. `final_loss` gives the loss (n,) of the rows under
    the model as it stands.
    `right` (n,) is the probability that each row's label is right, by a method that judges labels,
    and `task_loss` (n,) its mean loss over the task.
    `redundancy` (n,) of the rows says from 0 to 2 how much a gradient resembles others in memory.
    `shared_classes`: tasks have the same classes, so a class counts anew in each task; else the
    first task would fill every class's share for good."""

    labels: Tensor
    ids: Tensor
    task: int
    tasks: int
    points: Callable[[Tensor], Tensor] | None = None
    influence: Tensor | None = None
    loss: Tensor | None = None
    held_loss: Tensor | None = None
    final_loss: Callable[[], Tensor] | None = None
    right: Tensor | None = None
    task_loss: Tensor | None = None
    redundancy: Tensor | None = None
    shared_classes: bool = False

    def groups(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return the class of each slot (capacity,) and of each offered row (n,), as numbers over
        which a memory is balanced."""
        if not self.shared_classes:
            return memory.labels.cpu(), self.labels
        least = min(0, int(memory.labels.min()), int(self.labels.min()))
        kinds = int(max(memory.labels.max(), self.labels.max())) + 1 - least
        return memory.labels.cpu() + kinds * memory.tasks, self.labels + kinds * self.task


Decide = Callable[[Memory, Offer, torch.Generator], Placement]

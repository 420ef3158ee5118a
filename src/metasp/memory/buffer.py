"""The memory: a fixed number of slots for raw examples. It stores; it decides nothing."""

from collections.abc import Mapping

import torch
from torch import Tensor

from metasp.memory.placement import Placement
from metasp.types import Batch, Examples, State

EMPTY = -1


class Memory:
    """Raw, un-augmented examples with id, label, task, order of entry and statistics. `floats`
    makes it hold bytes as numbers from 0 to 1, for a method that edits what it holds."""

    floats = False

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.inputs: Tensor | None = None
        self.labels = torch.zeros(capacity, dtype=torch.long)
        self.ids = torch.full((capacity,), EMPTY)
        self.tasks = torch.full((capacity,), EMPTY)
        self.entered = torch.full((capacity,), EMPTY)
        self.influence = torch.full((capacity,), torch.nan, dtype=torch.float64)
        self.offered = 0
        self.written = 0

    def __len__(self) -> int:
        return int((self.ids != EMPTY).sum())

    @property
    def occupied(self) -> Tensor:
        """Slots in use, ascending."""
        return torch.nonzero(self.ids != EMPTY).flatten()

    @property
    def empty(self) -> Tensor:
        """Slots free, ascending."""
        return torch.nonzero(self.ids == EMPTY).flatten()

    def apply(self, placement: Placement, offered: Batch, task: int) -> None:
        """Write the chosen rows of what was offered into the slots decided for them."""
        self.write(placement.slots, offered.at(placement.chosen), task)
        self.offered += offered.size

    def write(self, slots: Tensor, batch: Batch, task: int) -> None:
        """Fill slots (k,), all different, with the k rows of a batch."""
        inputs = batch.inputs
        if self.floats and inputs.dtype == torch.uint8:
            inputs = inputs.float() / 255
        if self.inputs is None:
            shape = (self.capacity, *inputs.shape[1:])
            self.inputs = inputs.new_zeros(shape)
        if self.labels.shape[1:] != batch.labels.shape[1:]:
            self.labels = batch.labels.new_zeros((self.capacity, *batch.labels.shape[1:]))
        self.labels = self.labels.to(batch.labels)
        self.inputs[slots] = inputs.to(self.inputs.dtype)
        self.labels[slots] = batch.labels
        self.ids[slots] = batch.ids
        self.tasks[slots] = task
        self.entered[slots] = self.written + torch.arange(len(slots))
        self.influence[slots] = torch.nan
        self.written += len(slots)

    def edit(self, slots: Tensor, inputs: Tensor) -> None:
        """Change the inputs in the slots (k,); they remain the same examples."""
        if self.inputs is None or not self.inputs.is_floating_point():
            raise ValueError("only a memory of floats that has been written to can be edited")
        self.inputs[slots] = inputs.to(self.inputs)

    def read(self, slots: Tensor) -> Batch:
        """The examples in the given slots."""
        if self.inputs is None:
            raise ValueError("the memory has never been written to")
        return Batch(self.inputs[slots], self.labels[slots], self.ids[slots])

    def draw(self, count: int, generator: torch.Generator, slots: Tensor | None = None) -> Tensor:
        """Up to `count` different ones of the slots, or of those in use, uniformly at random."""
        slots = self.occupied if slots is None else slots
        return slots[torch.randperm(len(slots), generator=generator)[:count]]

    def clear(self, slots: Tensor) -> None:
        """Forget what is in the slots, content included."""
        if self.inputs is not None:
            self.inputs[slots] = 0
        self.labels[slots] = 0
        for column in (self.ids, self.tasks, self.entered):
            column[slots] = EMPTY
        self.influence[slots] = torch.nan

    def forget(self, ids: Tensor) -> None:
        """Clear the slots of the examples of these ids, where there are any."""
        held = torch.isin(self.ids, ids) & (self.ids != EMPTY)
        self.clear(torch.nonzero(held).flatten())

    def examples(self) -> Examples:
        """All that is stored, as a data set."""
        slots = self.occupied
        if self.inputs is None:
            return Examples(torch.zeros(0), slots, self.labels[slots], slots)
        return Examples(self.inputs, slots, self.labels[slots], self.ids[slots])

    def table(self) -> dict[str, list[float]]:
        """Columns of what is stored, without the inputs."""
        slots = self.occupied
        columns = {"slot": slots, "id": self.ids[slots], "label": self.labels[slots]}
        columns |= {"task": self.tasks[slots], "entered": self.entered[slots]}
        columns |= {"influence": self.influence[slots]}
        return {name: column.tolist() for name, column in columns.items()}

    def state(self) -> State:
        state = {name: getattr(self, name) for name in self._columns()}
        state["counters"] = torch.tensor([self.offered, self.written])
        if self.inputs is not None:
            state["inputs"] = self.inputs
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name in self._columns():
            setattr(self, name, state[name].to(getattr(self, name).device).clone())
        self.offered, self.written = (int(count) for count in state["counters"])
        self.inputs = state["inputs"].clone() if "inputs" in state else None

    @staticmethod
    def _columns() -> tuple[str, ...]:
        return ("labels", "ids", "tasks", "entered", "influence")

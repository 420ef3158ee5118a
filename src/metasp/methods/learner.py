"""The learner: what a method may touch, and the few moves that every method is made of."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from metasp.benchmarks.transform import Transform
from metasp.memory import Memory, Selection
from metasp.types import Batch, LossFn, Streams


@dataclass(frozen=True)
class Plan:
    """How long and in what portions a task is trained."""

    epochs: int
    batch_size: int
    memory_batch: int
    rehearse_last: int
    tasks: int
    shared_classes: bool = False


@dataclass(frozen=True)
class Step:
    """What one update reports."""

    loss: float
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Learner:
    """Model, optimizer, memory and random streams of one run."""

    model: nn.Module
    optimizer: torch.optim.SGD
    loss_fn: LossFn
    memory: Memory
    selection: Selection
    transform: Transform
    streams: Streams
    plan: Plan
    device: torch.device
    augment: bool = True
    augment_memory: bool = True
    bf16: bool = False

    def prepare(self, raw: Batch) -> Batch:
        """Network inputs of new examples, freshly augmented."""
        return self._prepared(raw, self.streams["augment"] if self.augment else None)

    def prepare_replay(self, raw: Batch) -> Batch:
        """Network inputs of examples from memory, freshly augmented at each replay."""
        stream = self.streams["augment-memory"] if self.augment_memory else None
        return self._prepared(raw, stream)

    def replay(self, count: int | None = None) -> Batch:
        """A random batch from memory as network inputs; empty while the memory is."""
        slots = self.memory.draw(count or self.plan.memory_batch, self.streams["replay"])
        return self.prepare_replay(self.memory.read(slots))

    def with_replay(self, new: Batch) -> Batch:
        """New examples first, then a batch from memory if there is any, as network inputs."""
        prepared = self.prepare(new)
        if not len(self.memory):
            return prepared
        return Batch.join([prepared, self.replay()])

    def outputs(self, inputs: Tensor) -> Tensor:
        """Logits (n, classes) in float32, whatever the precision of the forward pass."""
        with self.autocast():
            out: Tensor = self.model(inputs)
        return out.float() if self.bf16 else out

    def losses(self, batch: Batch) -> Tensor:
        """One loss per example, shape (n,)."""
        return self.loss_fn(self.outputs(batch.inputs), batch.labels)

    def update(self, batch: Batch) -> Step:
        """One SGD step on the mean loss of a prepared batch."""
        losses = self.losses(batch)
        self.descend(losses.mean())
        return Step(float(losses.detach().mean()))

    def descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()

    def autocast(self) -> AbstractContextManager[object]:
        if not self.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _prepared(self, raw: Batch, generator: torch.Generator | None) -> Batch:
        inputs = self.transform(raw.inputs.to(self.device), generator)
        return Batch(inputs, raw.labels.to(self.device), raw.ids)

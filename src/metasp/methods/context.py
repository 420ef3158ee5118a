"""What a method may touch, and the few operations that every method is made of."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from metasp import trees
from metasp.example_stats import INFLUENCE, ExampleStats, TrainingStats, Update, are_classes
from metasp.memory import Memory, Selection
from metasp.memory.balanced import admit
from metasp.methods.losses import Objective, Term
from metasp.stateful import Stateful
from metasp.trees import Tree, call
from metasp.types import Batch, Examples, LossFn, Streams, as_rows


class Transform(Protocol):
    """Turns raw examples into network inputs; augments only when given a generator."""

    def __call__(self, raw: Tree, generator: torch.Generator | None = None) -> Tree: ...

    def undo(self, inputs: Tensor) -> Tensor:
        """Return the raw floats of which these are the network inputs."""
        ...


@dataclass(frozen=True)
class Plan:
    """How long and in which portions a task is trained; `tasks` is 0 where their number is not
    known beforehand."""

    epochs: int
    batch_size: int
    memory_batch: int
    rehearse_last: int
    tasks: int
    shared_classes: bool = False


@dataclass(frozen=True)
class Step:
    """The report of one update: its loss, other numbers, and the outputs of the pass that it
    trained on, without their graph, where they are known."""

    loss: float
    numbers: Mapping[str, float] = field(default_factory=dict)
    outputs: Tensor | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Weighed:
    """Losses of a batch with their graph alive and the weight of each in the update, both (n,), and
    numbers to report."""

    losses: Tensor
    weights: Tensor
    numbers: Mapping[str, float] = field(default_factory=dict)

    def dealt(self, shares: Tensor) -> "Weighed":
        """Return the same with the weight of the new examples, which come first, dealt among them
        in proportion to `shares` (n,) of at least zero; where all are zero nobody has it."""
        weights = self.weights.clone()
        new = weights[: len(shares)]
        dealt = new * shares.to(new)
        total = dealt.sum()
        weights[: len(shares)] = dealt * (new.sum() / total) if total > 0 else 0.0
        return replace(self, weights=weights)


@dataclass(frozen=True)
class WeightedRows:
    """The rows of one update, whose loss is the sum of weights × losses(outputs).

    inputs: network inputs (n, …), as they were augmented.
    losses: outputs (n, classes) to one loss per row (r,).
    weights, ids: of the rows (r,).
    replayed: whether each row (r,) was read from the memory.
    clip_norm: the norm to which the gradient is shortened; None: it is not."""

    inputs: Tree
    losses: Callable[[Tensor], Tensor]
    weights: Tensor
    ids: Tensor
    replayed: Tensor
    clip_norm: float | None = None


class Watcher(Protocol):
    """Is shown what happens to the weights of a run's network, in order."""

    def update(self, rows: WeightedRows) -> None:
        """See the rows of an update just before the step."""
        ...

    def mark(self) -> None:
        """Note that the network as it is may come back."""
        ...

    def set_weights(self, marked: bool) -> None:
        """See the network that was set back to what was marked last, or else drawn anew."""
        ...


Weigh = Callable[["TrainingContext", Objective], Weighed]
"""Gives each row of an objective its weight in the update."""

Scoring = Callable[[Tree], Tensor]
"""Network inputs to a score for each class, (n, classes); the largest is the answer."""

ColumnValues = Callable[[Batch], Mapping[str, Tensor]]
"""Raw examples that are about to be stored to the values of columns that are kept of them."""


class Weigher(Stateful, ABC):
    """Weighs every update of whatever method a learner has, and may keep state for it.

    One that overrides `judged` says how likely labels are right."""

    @property
    def judges(self) -> bool:
        """Return whether it says how likely labels are right."""
        return type(self).judged is not Weigher.judged

    @abstractmethod
    def __call__(self, learner: "TrainingContext", objective: Objective) -> Weighed:
        """Weigh each row of an objective in the update."""

    def begin_task(self, learner: "TrainingContext") -> None:
        """Prepare for a task; called once before its first step."""

    def judged(self, learner: "TrainingContext", ids: Tensor) -> Tensor | None:
        """Return the probability (n,) that the labels of training examples of the task are right,
        by which the memory chooses; None: it cannot tell, NaN: never met."""
        return None

    def label_right(self, learner: "TrainingContext", ids: Tensor) -> Tensor | None:
        """Return the same among the classes of the task alone, by which suspects are listed."""
        return self.judged(learner, ids)


EMPTY = Batch(torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
"""No rows, which joining leaves out."""


@dataclass
class TrainingContext:
    """Model, optimizer, memory and random streams of one run, and where the run stands.

    weigh: weighs (or only observes) every update; None: all rows of a term count alike.
    scored_by: how the method predicts; None: by the model's outputs.
    current: the training data of the current task; in an open task what came last.
    open: nobody knows where the task ends.
    epoch: of the task, from 0.
    arrived: how many rows of a step's batch are new; they come first.
    influence_stats: influences measured in this task; training_stats: how its examples fared.
    told: the true share of wrong labels by class, for controls alone.
    watchers: are shown every update just before the step, and other changes of the weights.
    notes: messages for the user that have not been shown yet."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
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
    fp64: bool = False
    compiled: bool = False
    channels_last: bool = False
    clip_norm: float | None = None  # the norm to which gradients are shortened before a step
    weigh: Weigher | None = None
    scored_by: Callable[[], Scoring] | None = None
    current: Examples | None = None
    task: int = -1
    open: bool = False
    epoch: int = 0
    last_loss: float = 0.0
    arrived: int = 0
    influence_stats: ExampleStats = field(default_factory=lambda: measured())
    training_stats: TrainingStats = field(default_factory=TrainingStats)
    told: Mapping[int | None, float] | None = None
    watchers: list[Watcher] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def prepare(self, raw: Batch) -> Batch:
        """Return new examples as network inputs, freshly augmented."""
        return self._prepared(raw, self.streams["augment"] if self.augment else None)

    def prepare_replay(self, raw: Batch) -> Batch:
        """Return examples from memory as network inputs, freshly augmented at each replay."""
        stream = self.streams["augment-memory"] if self.augment_memory else None
        return self._prepared(raw, stream)

    def unaugmented(self, raw: Batch) -> Batch:
        """Return network inputs without augmentation, for testing and validation."""
        return self._prepared(raw, None)

    def replay(self, count: int | None = None) -> Batch:
        """Return a random batch from memory as network inputs; empty while the memory is."""
        slots = self.memory.draw(count or self.plan.memory_batch, self.streams["replay"])
        return self.replay_of(slots)

    def replay_of(self, slots: Tensor) -> Batch:
        """Return the examples in these slots of the memory as network inputs, freshly augmented."""
        return self.prepare_replay(self.memory.read(slots)) if len(slots) else EMPTY

    def with_replay(self, new: Batch) -> Batch:
        """Return new examples first, then a batch from memory if there is any, as network
        inputs."""
        return Batch.join([self.prepare(new), self.replay()])

    def outputs(self, inputs: Tree) -> Tensor:
        """Return logits (n, classes) in float32, whatever the precision of the forward pass."""
        with self.autocast():
            out: Tensor = call(self.model, inputs)
        return out.float() if self.bf16 else out

    def scoring(self) -> Scoring:
        """Return how the model and the memory as they stand score classes, in evaluation mode."""
        return self.scored_by() if self.scored_by else self.outputs

    def features(self, inputs: Tree) -> Tensor:
        """Return what the head sees (n, d); a model without `features` gives its logits."""
        features = getattr(self.model, "features", None)
        out: Tensor = call(features if callable(features) else self.model, inputs)
        return as_rows(out).float()

    def losses(self, batch: Batch) -> Tensor:
        """Return one loss per example of a prepared batch, shape (n,)."""
        return self.loss_fn(self.outputs(batch.inputs), batch.labels)

    def past(self) -> Tensor:
        """Return the slots that hold examples of earlier tasks; in an open task of all that is no
        longer among the newest."""
        occupied = self.memory.occupied
        if self.open and self.current is not None:
            return occupied[~torch.isin(self.memory.ids[occupied], self.current.ids)]
        return occupied[self.memory.tasks[occupied] != self.task]

    def update(
        self,
        terms: Batch | Sequence[Term],
        weigh: Weigh | None = None,
        goal: LossFn | None = None,
    ) -> Step:
        """Take one step on the sum of loss terms, in one pass over all their rows.

        terms: the terms, or a prepared batch as the only one.
        weigh: weighs the rows, in place of what weighs all updates of the run.
        goal: the loss of other examples that influence looks at; by default the learner's."""
        terms = [Term(terms)] if isinstance(terms, Batch) else terms
        objective = Objective(terms, self.loss_fn, goal)
        weighed = (weigh or self.weigh or unweighed)(self, objective)
        for watcher in self.watchers:
            objective_anew = Objective(terms, self.loss_fn)
            watcher.update(self._rows_of(objective_anew, weighed.weights.detach()))
        self.descend((weighed.weights * weighed.losses).sum())
        self._note_update(weighed, objective)
        losses, shares = weighed.losses.detach(), objective.shares
        mean = losses.mean() if shares is None else (shares * losses).sum()
        outputs = None if objective.outputs is None else objective.outputs.detach()
        return Step(float(mean), weighed.numbers, outputs)

    def trust(
        self, examples: Batch, task: int, classes: Iterable[int], values: ColumnValues
    ) -> None:
        """Pin raw verified examples in the memory, which `classes` share; `values` are those of
        the method's columns."""
        admitted = admit(self.memory, examples.labels.cpu(), classes, self.streams["trusted"])
        slots, rows = admitted.placement.slots, examples.at(admitted.placement.chosen)
        self.memory.update(admitted.unpinned, pinned=torch.zeros_like(admitted.unpinned))
        pinned = torch.ones_like(slots)
        self.memory.write(slots, rows, task, **{**values(rows), "pinned": pinned})
        lost = admitted.refused + len(admitted.unpinned)
        if lost:
            self.notes.append(
                f"{lost} verified examples are more than their class's share of the memory: "
                f"{admitted.refused} did not enter and {len(admitted.unpinned)} may leave it."
            )

    def descend(self, loss: Tensor) -> None:
        """Take one step of the optimizer along the gradient of a loss."""
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.step()

    def step(self) -> None:
        """Take one step of the optimizer along the gradients that there are."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()

    def autocast(self) -> AbstractContextManager[object]:
        if not self.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _rows_of(self, objective: Objective, weights: Tensor) -> WeightedRows:
        """Return the rows of an update; those that arrived with the step come first."""
        batch = objective.batch
        replayed = torch.arange(batch.size) >= self.arrived
        return WeightedRows(
            batch.inputs, objective.losses, weights, batch.ids, replayed, self.clip_norm
        )

    def _note_update(self, weighed: Weighed, objective: Objective) -> None:
        """Note how each example of the task fared in an update."""
        batch, outputs = objective.batch, objective.outputs
        losses = weighed.losses.detach()
        if objective.weighable is not None:  # a distance to something stored is no loss
            losses = losses.masked_fill(~objective.weighable, torch.nan)
        if outputs is not None:
            outputs = outputs.detach() if are_classes(outputs, batch.labels) else None
        even = objective.weights(losses)
        update = Update(batch.ids, losses, weighed.weights, even, batch.labels, outputs)
        self.training_stats.note(update)

    def _prepared(self, raw: Batch, generator: torch.Generator | None) -> Batch:
        # A copy out of pinned memory need not be waited for.
        cuda = self.device.type == "cuda"
        on_device = trees.each(lambda t: t.to(self.device, non_blocking=cuda), raw.inputs)
        inputs = self.transform(on_device, generator)
        # Explicit either way: cropped pictures come out channels-last, and the CPU kernel for the
        # backward pass of narrow strided 1×1 convolutions crashes in that layout (torch 2.13).
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        inputs = trees.each(lambda t: t.contiguous(memory_format=layout), inputs)
        if self.fp64:
            inputs = trees.each(lambda t: t.double() if t.is_floating_point() else t, inputs)
        return Batch(inputs, raw.labels.to(self.device), raw.ids)


def measured() -> ExampleStats:
    """Return empty statistics of influences, and of the losses of the same passes."""
    return ExampleStats(*INFLUENCE, "loss")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Keep the model in evaluation mode for a while; each module's own mode comes back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def unweighed(learner: TrainingContext, objective: Objective) -> Weighed:
    """Give every row the share that the method gives it."""
    losses = objective.losses(learner.outputs(objective.batch.inputs))
    return Weighed(losses, objective.weights(losses))

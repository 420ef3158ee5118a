"""The learner: what a method may touch, and the few moves that every method is made of."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

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
    """Raw examples to network inputs; augments only when given a generator."""

    def __call__(self, raw: Tree, generator: torch.Generator | None = None) -> Tree: ...

    def undo(self, inputs: Tensor) -> Tensor:
        """The raw floats of which these are the network inputs."""
        ...


@dataclass(frozen=True)
class Plan:
    """How long and in what portions a task is trained; `tasks` is 0 where their number is not
    known beforehand."""

    epochs: int
    batch_size: int
    memory_batch: int
    rehearse_last: int
    tasks: int
    shared_classes: bool = False


@dataclass(frozen=True)
class Step:
    """What one update reports; the outputs are those of the pass that it trained on, without their
    graph, where they are known."""

    loss: float
    numbers: Mapping[str, float] = field(default_factory=dict)
    outputs: Tensor | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Weighed:
    """Losses of a batch with their graph alive, the weight of each in the update, both (n,), and
    what else there is to tell."""

    losses: Tensor
    weights: Tensor
    numbers: Mapping[str, float] = field(default_factory=dict)

    def dealt(self, by: Tensor) -> "Weighed":
        """The same with the share of the new examples, which come first, dealt among them by these
        numbers (n,) of at least zero; where all are zero nobody has it."""
        weights = self.weights.clone()
        new = weights[: len(by)]
        shares = new * by.to(new)
        total = shares.sum()
        weights[: len(by)] = shares * (new.sum() / total) if total > 0 else 0.0
        return replace(self, weights=weights)


Weigh = Callable[["TrainingContext", Objective], Weighed]
"""How much each row of an objective counts in the update."""

Scoring = Callable[[Tree], Tensor]
"""Network inputs to what speaks for each class, (n, classes); the largest is the answer."""


class Weigher(Stateful, ABC):
    """Weighs every update of whatever method a learner has, and may keep something meanwhile."""

    judges: ClassVar[bool] = False  #: whether it can tell how likely a label is right

    @abstractmethod
    def __call__(self, learner: "TrainingContext", objective: Objective) -> Weighed:
        """How much each row of an objective counts in the update."""

    def begin_task(self, learner: "TrainingContext") -> None:
        """Called once before a task's first step."""

    def judged(self, learner: "TrainingContext", ids: Tensor) -> Tensor | None:
        """How likely training examples of the task (n,) are what their labels say, if it can tell:
        by this the memory chooses. NaN: never met."""
        return None

    def label_right(self, learner: "TrainingContext", ids: Tensor) -> Tensor | None:
        """The same among the classes of the task alone: by this an example is called a suspect."""
        return self.judged(learner, ids)


EMPTY = Batch(torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
"""No rows, which joining leaves out."""

ColumnValues = Callable[[Batch], Mapping[str, Tensor]]
"""Raw examples that are about to be stored to the values of columns that are kept of them."""


@dataclass
class TrainingContext:
    """Model, optimizer, memory and random streams of one run."""

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
    compiled: bool = False
    channels_last: bool = False
    clip_norm: float | None = None  # the norm to which gradients are shortened before a step
    weigh: Weigher | None = None  # set to weigh (or only observe) every update of a method
    scored_by: Callable[[], Scoring] | None = None  # how the method predicts; None: by outputs
    current: Examples | None = None  # the training data of the task at hand
    task: int = -1  # and its index
    open: bool = False  # whether nobody knows its end: `current` is then what came last
    epoch: int = 0  # of the task, from 0
    last_loss: float = 0.0  # of the last step
    arrived: int = 0  # rows of a step's batch that are new, always the first
    influence_stats: ExampleStats = field(default_factory=lambda: measured())  # in this task
    training_stats: TrainingStats = field(default_factory=TrainingStats)  # of this task's examples
    told: Mapping[int | None, float] | None = None  # the true share of wrong labels, by class
    notes: list[str] = field(default_factory=list)  # what a person should know, until it is told

    def prepare(self, raw: Batch) -> Batch:
        """Network inputs of new examples, freshly augmented."""
        return self._prepared(raw, self.streams["augment"] if self.augment else None)

    def prepare_replay(self, raw: Batch) -> Batch:
        """Network inputs of examples from memory, freshly augmented at each replay."""
        stream = self.streams["augment-memory"] if self.augment_memory else None
        return self._prepared(raw, stream)

    def unaugmented(self, raw: Batch) -> Batch:
        """Network inputs without augmentation, for testing and validation."""
        return self._prepared(raw, None)

    def replay(self, count: int | None = None) -> Batch:
        """A random batch from memory as network inputs; empty while the memory is."""
        slots = self.memory.draw(count or self.plan.memory_batch, self.streams["replay"])
        return self.replay_of(slots)

    def replay_of(self, slots: Tensor) -> Batch:
        """What the memory holds in these slots, as network inputs freshly augmented."""
        return self.prepare_replay(self.memory.read(slots)) if len(slots) else EMPTY

    def with_replay(self, new: Batch) -> Batch:
        """New examples first, then a batch from memory if there is any, as network inputs."""
        return Batch.join([self.prepare(new), self.replay()])

    def outputs(self, inputs: Tree) -> Tensor:
        """Logits (n, classes) in float32, whatever the precision of the forward pass."""
        with self.autocast():
            out: Tensor = call(self.model, inputs)
        return out.float() if self.bf16 else out

    def scoring(self) -> Scoring:
        """How the model and the memory as they stand score classes, in evaluation mode."""
        return self.scored_by() if self.scored_by else self.outputs

    def features(self, inputs: Tree) -> Tensor:
        """What the head sees (n, d); a model without `features` gives its logits."""
        features = getattr(self.model, "features", None)
        out: Tensor = call(features if callable(features) else self.model, inputs)
        return as_rows(out).float()

    def losses(self, batch: Batch) -> Tensor:
        """One loss per example, shape (n,)."""
        return self.loss_fn(self.outputs(batch.inputs), batch.labels)

    def past(self) -> Tensor:
        """The slots that hold examples of earlier tasks; in an open task of all that is no longer
        among the newest."""
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
        """One step on the sum of loss terms, in one pass over all their rows; a prepared batch is
        one term. Rows are weighed if anyone weighs them; `goal` is the loss of other examples that
        influence looks at, by default the learner's."""
        terms = [Term(terms)] if isinstance(terms, Batch) else terms
        objective = Objective(terms, self.loss_fn, goal)
        weighed = (weigh or self.weigh or unweighed)(self, objective)
        self.descend((weighed.weights * weighed.losses).sum())
        losses, shares = weighed.losses.detach(), objective.shares
        self._count(weighed, objective)
        mean = losses.mean() if shares is None else (shares * losses).sum()
        outputs = None if objective.outputs is None else objective.outputs.detach()
        return Step(float(mean), weighed.numbers, outputs)

    def trust(
        self, examples: Batch, task: int, classes: Iterable[int], values: ColumnValues
    ) -> None:
        """Pin raw verified examples in the memory, which `classes` share; `values` are those of
        the method's columns."""
        found = admit(self.memory, examples.labels.cpu(), classes, self.streams["trusted"])
        slots, rows = found.placement.slots, examples.at(found.placement.chosen)
        self.memory.update(found.unpinned, pinned=torch.zeros_like(found.unpinned))
        pinned = torch.ones_like(slots)
        self.memory.write(slots, rows, task, **{**values(rows), "pinned": pinned})
        lost = found.refused + len(found.unpinned)
        if lost:
            self.notes.append(
                f"{lost} verified examples are more than their class's share of the memory: "
                f"{found.refused} did not enter and {len(found.unpinned)} may leave it."
            )

    def _count(self, weighed: Weighed, objective: Objective) -> None:
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

    def descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.step()

    def step(self) -> None:
        """One step of the optimizer along the gradients that there are."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()

    def autocast(self) -> AbstractContextManager[object]:
        if not self.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _prepared(self, raw: Batch, generator: torch.Generator | None) -> Batch:
        # A copy out of pinned memory need not be waited for.
        cuda = self.device.type == "cuda"
        here = trees.each(lambda t: t.to(self.device, non_blocking=cuda), raw.inputs)
        inputs = self.transform(here, generator)
        # Explicit either way: cropped pictures come out channels-last, and the CPU kernel for the
        # backward pass of narrow strided 1×1 convolutions crashes in that layout (torch 2.13).
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        inputs = trees.each(lambda t: t.contiguous(memory_format=layout), inputs)
        return Batch(inputs, raw.labels.to(self.device), raw.ids)


def measured() -> ExampleStats:
    """Return empty statistics of influences, and of the losses of the same passes."""
    return ExampleStats(*INFLUENCE, "loss")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode for a while; each module's own mode comes back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def unweighed(learner: TrainingContext, objective: Objective) -> Weighed:
    """Every row with the share that the method gives it."""
    losses = objective.losses(learner.outputs(objective.batch.inputs))
    return Weighed(losses, objective.weights(losses))

"""The base class of methods: phases of a task, a step, and offers to the memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from metasp.memory import Column, Memory, Offer, Placement, Selection, selection
from metasp.methods.context import Scoring, Step, TrainingContext, Weigher, evaluating
from metasp.methods.settings import Settings
from metasp.stateful import Stateful
from metasp.trees import at_once, one_tensor
from metasp.types import Batch, Examples, Task, as_rows


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs of one kind.

    size: the number of its examples.
    cost: of a step, relative to a plain one.
    lr_factor: by epoch of the phase, a schedule on top of the run's learning rate.
    step: takes the place of the method's own."""

    kind: str
    epochs: int
    batch_size: int
    size: int
    examples: Callable[[], Examples]
    cost: float = 1.0
    lr_factor: Callable[[int], float] | None = None
    step: Callable[[Batch], Step] | None = None

    @property
    def steps(self) -> int:
        return self.epochs * len(batch_bounds(self.size, self.batch_size))


class Method(Stateful, ABC):
    """One paper, one file. A subclass is final and its `step` reads top to bottom."""

    Settings: ClassVar[type[Settings]] = Settings  #: the class of its settings
    lr: ClassVar[float] = 0.1  #: learning rate, unless the user chooses one
    momentum: ClassVar[float] = 0.0  #: of SGD, unless the user chooses it
    weight_decay: ClassVar[float] = 0.0  #: of SGD, unless the user chooses it
    selection: ClassVar[str | None] = "reservoir"  #: of its memory; None: it has no memory
    columns: ClassVar[tuple[Column, ...]] = ()  #: kept in memory beside each example
    needs: ClassVar[Collection[str]] = ()
    """What it cannot do without: "boundaries" (where a task ends, or several epochs of it),
    "classes" as labels, an "elementwise" optimizer, whose steps can be foreseen, its "own loss" or
    "own schedule" (it takes no other), "real inputs", which gradients can move, a "frozen encoder"
    (it learns a head on fixed features)."""
    keeps_verified: ClassVar[bool] = False  #: without a memory: reads `task.trusted` itself
    updates: ClassVar[bool] = True  #: learns by learner.update
    weighted_sum: ClassVar[bool] = False
    """Every update is a weighted sum of losses of rows, tests go by the network's outputs, and the
    network is otherwise only drawn anew or set back to the best epoch."""
    measures: ClassVar[bool] = False  #: records influence (it weighs by InfluenceWeights)

    @classmethod
    def schedules(cls) -> bool:
        """Return whether it obeys `rehearse_last`: it rehearses, in the usual phases."""
        return cls.selection is not None and cls.phases is Method.phases

    @classmethod
    def judges(cls) -> bool:
        """Return whether it says how likely labels are right, as its own selection wants it."""
        return cls.selection is not None and selection(cls.selection).judged

    @classmethod
    def observable(cls) -> bool:
        """Return whether others may observe or weigh its updates, which it leaves unweighed."""
        weighs = cls.measures or cls.judges()
        return cls.updates and cls.selection is not None and not weighs

    @classmethod
    def check(cls, settings: Any, memory_batch: int, selection: Selection) -> None:
        """Refuse what the method cannot do, before anything is trained."""

    @classmethod
    def weigher(cls, learner: TrainingContext, settings: Any) -> Weigher | None:
        """Return what weighs the updates, its own and those of a method that this one's weights
        are added to; None: all rows of a term count alike."""
        return None

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        self.learner = learner
        self.settings = settings
        learner.weigh = self.weigher(learner, settings) or learner.weigh

    @abstractmethod
    def step(self, new: Batch, phase: Phase) -> Step:
        """Learn from a raw batch of the current task."""

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        """Return how the task is trained; `seen` are the tasks up to and including it."""
        return rehearsal_phases(self.learner, task.train)

    def held_out(self, seen: Sequence[Task]) -> Sequence[Examples]:
        """Return the examples whose loss says when a phase has learned enough: the last task's, as
        others are of the past."""
        return validation_of(seen[-1:])

    def begin_task(self, task: Task) -> None:
        """Prepare for a task; called once before its first phase."""

    def begin_epoch(self, task: Task, epoch: int) -> None:
        """Prepare for an epoch of a task, from 0; called once before its first step."""

    def offers(self, epoch: int) -> bool:
        """Return whether the batches of an epoch of a task, from 0, are offered to the memory."""
        return epoch == 0

    def remember(self, new: Batch, task: Task) -> Placement | None:
        """Offer the raw batch of a step to the memory; called after each step of an epoch that
        `offers`. Returns the decision, if this was the moment."""
        if self.selection is None or self.learner.selection.at_step is None:
            return None
        return offer_step(self, new, task)

    def end_task(self, task: Task) -> Placement | None:
        """Offer the task to the memory; called once after its last phase. Returns the decision, if
        this was the moment."""
        if self.selection is None or self.learner.selection.at != "task":
            return None
        return offer_task(self, task)

    def column_values(self, stored: Batch, rows: Tensor | None = None) -> Mapping[str, Tensor]:
        """Return the values of the method's columns for raw examples that are about to be stored.

        `rows` (n,) are their rows in the batch of the last step, if they come from there. Unless a
        method says otherwise, outputs and features are those of the model as it stands."""
        values = {}
        with evaluating(self.learner.model), torch.no_grad():
            for column in self.columns:
                if column.of in ("outputs", "features") and stored.size:
                    look = getattr(self.learner, str(column.of))
                    inputs = self.learner.unaugmented(stored).inputs
                    values[column.name] = look(inputs).cpu()
        return values

    def scoring(self) -> Scoring:
        """Return how the model and the memory as they stand score classes, for testing and
        predicting."""
        return self.learner.outputs


def validation_of(tasks: Sequence[Task]) -> list[Examples]:
    """Return the held-out examples of those tasks that have any."""
    parts = []
    for task in tasks:
        if task.validation is not None and len(task.validation):
            parts.append(task.validation)
    return parts


def rehearsal_phases(learner: TrainingContext, examples: Examples) -> list[Phase]:
    """Return epochs without rehearsal first where the plan says so, then those with it."""
    plan = learner.plan
    phases = [
        finetune_phase(learner, examples, plan.epochs - plan.rehearse_last),
        rehearsal_phase(learner, examples, plan.rehearse_last),
    ]
    return [phase for phase in phases if phase.epochs]


def rehearsal_phase(learner: TrainingContext, examples: Examples, epochs: int) -> Phase:
    """Return epochs of the method's own steps, on new examples and as many from memory as
    planned."""
    plan = learner.plan
    cost = 1 + plan.memory_batch / plan.batch_size
    return Phase("rehearse", epochs, plan.batch_size, len(examples), lambda: examples, cost)


def finetune_phase(learner: TrainingContext, examples: Examples, epochs: int) -> Phase:
    """Return epochs that look at the new examples alone, whatever the method does in the
    others."""

    def step(new: Batch) -> Step:
        return learner.update(learner.prepare(new))

    size = len(examples)
    batch_size = learner.plan.batch_size
    return Phase("finetune", epochs, batch_size, size, lambda: examples, step=step)


def batch_bounds(size: int, batch_size: int) -> list[tuple[int, int]]:
    """Cut `size` rows into batches; a single left-over row joins the batch before it, as
    BatchNorm cannot train on one example (nor does it where batches of one are asked for)."""
    starts = list(range(0, size, batch_size))
    if 1 < batch_size < size and size - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], size]))


def not_in_memory(memory: Memory, new: Batch) -> Tensor:
    """Return the rows of a batch whose examples the memory does not hold: others may be learned
    again, but are not stored twice."""
    return torch.nonzero(~torch.isin(new.ids, memory.ids)).flatten()


def offer_step(
    method: Method,
    new: Batch,
    task: Task,
    redundancy: Tensor | None = None,
    loss: Tensor | None = None,
) -> Placement | None:
    """Let the run's selection decide about the rows of a step's batch that the memory does not hold
    yet, and write the decision. `redundancy` and `loss` are those of these rows."""
    learner, memory = method.learner, method.learner.memory
    rows = not_in_memory(memory, new)
    if not len(rows):
        return None
    offer = Offer(
        new.labels[rows].cpu(),
        new.ids[rows],
        task.index,
        learner.plan.tasks,
        redundancy=redundancy,
        loss=loss,
        shared_classes=learner.plan.shared_classes,
    )
    decide = learner.selection.at_step or learner.selection.decide
    placement = decide(memory, offer, learner.streams["selection"])
    chosen = rows[placement.chosen]
    store(method, placement, new.at(chosen), task, chosen)
    memory.offered += len(rows)
    return placement


def offer_task(method: Method, task: Task) -> Placement:
    """Let the run's selection decide about a whole task, and write the decision. Examples of the
    task that were stored step by step are offered again like the rest of it."""
    learner, memory = method.learner, method.learner.memory
    if learner.selection.interim is not None:
        interim = (memory.tasks == task.index) & ~memory.pinned
        memory.clear(torch.nonzero(interim).flatten())
    examples, plan, stats = task.train, learner.plan, learner.influence_stats
    influence = stats.means(examples.ids, "fused")
    offer = Offer(
        examples.labels.cpu(),
        examples.ids,
        task.index,
        plan.tasks,
        points=points(learner, examples),
        influence=influence,
        loss=stats.means(examples.ids, "loss"),
        held_loss=stats.means(memory.ids, "loss"),
        final_loss=lambda: over_task(learner, examples, learner.losses),
        right=right_labels(learner, examples),
        task_loss=learner.training_stats.examples.means(examples.ids, "loss"),
        shared_classes=plan.shared_classes,
    )
    placement = learner.selection.decide(memory, offer, learner.streams["selection"])
    chosen = placement.chosen
    store(method, placement, examples.take(chosen), task, influence=influence[chosen])
    memory.offered += len(examples)
    return placement


def right_labels(learner: TrainingContext, examples: Examples) -> Tensor | None:
    """Return the probability (n,) that each label is right, by a weigher that judges labels; 1 for
    an example that it has not met."""
    if learner.weigh is None or not learner.weigh.judges:
        return None
    right = learner.weigh.judged(learner, examples.ids)
    return torch.ones(len(examples)) if right is None else right.nan_to_num(nan=1.0)


def store(
    method: Method,
    placement: Placement,
    examples: Batch,
    task: Task,
    rows: Tensor | None = None,
    **columns: Tensor,
) -> None:
    """Write the chosen examples with the columns that the selection and the method keep."""
    values = {**placement.columns, **method.column_values(examples, rows), **columns}
    method.learner.memory.write(placement.slots, examples, task.index, **values)


def points(learner: TrainingContext, examples: Examples) -> Callable[[Tensor], Tensor]:
    """Return the rows a selection may cluster: pixels read in place, or features of the current
    model."""
    if learner.selection.points == "pixels":
        who = "a selection that clusters pixels"
        return lambda rows: as_rows(one_tensor(examples.take(rows).inputs, who)).float().cpu()
    features = over_task(learner, examples, lambda batch: learner.features(batch.inputs))
    return lambda rows: features[rows]


def over_task(
    learner: TrainingContext, examples: Examples, look: Callable[[Batch], Tensor]
) -> Tensor:
    """Apply `look` to all examples in portions, without augmentation and in evaluation mode.
    Returns one row per example, on the CPU."""
    portions = torch.split(torch.arange(len(examples)), at_once(examples.source))
    rows = []
    with evaluating(learner.model), torch.no_grad():
        for batch in examples.batches(portions):
            rows.append(look(learner.unaugmented(batch)).cpu())
    return torch.cat(rows)

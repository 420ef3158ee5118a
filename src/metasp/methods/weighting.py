"""Influence as example weights: one function from losses, batch and validation sets to weights,
which any method can use by setting `learner.weigh`."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from metasp.influence import Influence, fuse, record, sp_influence
from metasp.influence.pseudo import Pair
from metasp.memory import Memory
from metasp.methods.context import Objective, TrainingContext, Weighed, Weigher, unweighed
from metasp.types import Batch, LossFn, State

GAMMA_MARGIN = 1e-3  # the released rule keeps gamma this far from 0 and 1
FEWEST_FOR_BATCHNORM = 2  # examples of the past: fewer have no statistics
LONGEST = 2.0  # times the step of plain rehearsal: the most that dividing by the total may make it


class Weights(NamedTuple):
    """Example weights (n,), the fused influence (n,) behind them, and the gamma of the fusion."""

    weights: Tensor
    fused: Tensor
    gamma: float


def released(influence: Influence, gamma: float | None = None, strength: float = 1.0) -> Weights:
    """(1 − I*)/Σ(1 − I*), each influence first scaled to the size of its validation loss.

    All weights are zero where they cannot be used: with losses far above one, as in regression, so
    many fall below zero that hardly any total is left to divide by."""
    stability = scaled(influence.stability, influence.old_loss)
    plasticity = scaled(influence.plasticity, influence.new_loss)
    if gamma is None:
        best = fuse(stability, plasticity).gamma
        gamma = min(max(best, GAMMA_MARGIN), 1 - GAMMA_MARGIN)
    fused = gamma * stability + (1 - gamma) * plasticity
    weights = cut(1 - strength * fused, strength)
    total = weights.sum()
    # A small total would make the step arbitrarily long, one below zero turn every sign.
    usable = weights.abs().sum() <= LONGEST * total
    return Weights(weights / total if usable else torch.zeros_like(weights), fused, gamma)


def as_written(influence: Influence, gamma: float | None = None, strength: float = 1.0) -> Weights:
    """1/n − I*, with the influence as it is."""
    both = fuse(influence.stability, influence.plasticity, gamma)
    weights = cut(1 / len(both.fused) - strength * both.fused, strength)
    return Weights(weights, both.fused, both.gamma)


def cut(weights: Tensor, strength: float) -> Tensor:
    """Stronger than published, a harmful example is left out, but its loss is never raised."""
    return weights.clamp_min(0) if strength > 1 else weights


def scaled(influence: Tensor, size: float) -> Tensor:
    """The vector with the given norm; a zero vector stays zero."""
    norm = influence.norm()
    return influence * (size / norm) if norm > 0 else influence


RULES: dict[str, Callable[[Influence, float | None, float], Weights]] = {
    "released": released,
    "as-written": as_written,
}


@dataclass(frozen=True)
class InfluenceWeights(Weigher):
    """Weigh a batch by influence, and write every influence into the learner's statistics.

    `strength` multiplies the influence in the weights; `running` takes each example's mean
    influence so far in the task instead of this batch's. `observe` records but leaves the weights
    uniform; `shuffle` deals the weights at random."""

    rule: str = "released"
    gamma: float | None = None
    strength: float = 1.0
    running: bool = False
    steps: int = 1
    scope: str | None = None
    validation_old: float | None = None
    validation_new: float | None = None
    shuffle: bool = False
    observe: bool = False

    def __call__(self, learner: TrainingContext, batch: Batch, objective: Objective) -> Weighed:
        if len(learner.past()) < FEWEST_FOR_BATCHNORM:
            return unweighed(learner, batch, objective)
        goals = self.goals(learner)
        watched = Watched(objective.loss_fn)
        objective = replace(objective, loss_fn=watched)
        losses, influence = self.measure(learner, batch, objective, goals)
        outputs = watched.outputs
        shares = objective.weights(losses)
        weights, fused, gamma = RULES[self.rule](influence, self.gamma, self.strength)
        rows = slice(None) if objective.weighable is None else objective.weighable
        if fused.isfinite().all():
            learner.influence_stats.add(
                batch.ids[rows],
                stability=influence.stability,
                plasticity=influence.plasticity,
                fused=fused,
                loss=losses[rows],
            )
            if self.running:
                means = averaged(learner, batch.ids[rows], influence)
                weights, _, gamma = RULES[self.rule](means, self.gamma, self.strength)
        usable = bool(weights.isfinite().all() and weights.sum() > 0)
        numbers = {"gamma": gamma, "fallback": float(not usable)}
        if self.observe or not usable:
            return Weighed(losses, shares, numbers, outputs)
        if self.shuffle:
            weights = weights[torch.randperm(len(weights), generator=learner.streams["shuffle"])]
        if objective.shares is not None:  # the rule weighs a mean: here each row has a share
            factors = torch.ones_like(shares)
            factors[rows] = len(weights) * weights
            weights = shares * factors
        return Weighed(losses, weights, numbers, outputs)

    def goals(self, learner: TrainingContext) -> tuple[Batch, Batch]:
        """V_old and V_new."""
        return validation_sets(learner, self.validation_old, self.validation_new)

    def measure(
        self,
        learner: TrainingContext,
        batch: Batch,
        objective: Objective,
        goals: tuple[Batch, Batch],
    ) -> tuple[Tensor, Influence]:
        """The losses of the batch, by the forward pass that the update shares if it can, and the
        influence of its weighable rows."""
        summed = as_mean(objective, batch.size)
        old, new = ((goal.inputs, summed.goal(goal.labels)) for goal in goals)
        losses, found = self.look(learner, (batch.inputs, summed.targets), summed, (old, new))
        if objective.shares is None:
            return losses, found
        scale = (batch.size * objective.shares).to(losses)
        rows = slice(None) if objective.weighable is None else objective.weighable
        stability, plasticity = (found.stability / scale)[rows], (found.plasticity / scale)[rows]
        return losses / scale, replace(found, stability=stability, plasticity=plasticity)

    def look(
        self, learner: TrainingContext, pair: Pair, summed: Objective, goals: tuple[Pair, Pair]
    ) -> tuple[Tensor, Influence]:
        """The losses of a batch under the mean objective, and their influence on the goals."""
        with eager(learner):
            # In bf16 the influence is still computed in fp32, by a forward pass of its own.
            recorded = None if learner.bf16 else record(learner.model, summed.loss_fn, pair)
            found = sp_influence(
                learner.model,
                summed.loss_fn,
                batch=pair,
                old=goals[0],
                new=goals[1],
                steps=self.steps,
                optimizer=learner.optimizer,
                scope=self.scope,
                clip_norm=learner.clip_norm,
                recorded=recorded,
            )
        if recorded is None:
            return summed.loss_fn(learner.outputs(pair[0]), pair[1]), found
        return recorded.losses, found


class Watched:
    """A loss that keeps the first outputs it is asked about: those of the batch."""

    def __init__(self, loss_fn: LossFn) -> None:
        self.loss_fn = loss_fn
        self.outputs: Tensor | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.outputs is None:
            self.outputs = outputs
        return self.loss_fn(outputs, targets)


class ScheduledWeights(Weigher):
    """Weighs every `every`-th step only and, where `last` is given, of these only the ones in that
    many last epochs of a task with a past, or in a task that is open; plain rehearsal otherwise."""

    def __init__(self, weights: InfluenceWeights, every: int = 1, last: int | None = None) -> None:
        self.weights, self.every, self.last = weights, every, last
        self.taken = 0  # steps in those epochs

    def __call__(self, learner: TrainingContext, batch: Batch, objective: Objective) -> Weighed:
        epochs_left = learner.plan.epochs - learner.epoch
        scheduled = self.last is not None and not learner.open  # which has no epochs
        if scheduled and (learner.task == 0 or epochs_left > (self.last or 0)):
            return unweighed(learner, batch, objective)
        weighs = self.taken % self.every == 0
        self.taken += 1
        return (self.weights if weighs else unweighed)(learner, batch, objective)

    def forget(self, ids: Tensor) -> None:
        self.weights.forget(ids)

    def state(self) -> State:
        return {"taken": torch.tensor(self.taken), **self.weights.state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.taken = int(state["taken"])
        self.weights.restore(state)


def as_mean(objective: Objective, size: int) -> Objective:
    """The same objective as a mean over its rows, which is what an influence is measured on: each
    row's loss times `size` × its share, a number that joins its targets."""
    if objective.shares is None:
        return objective

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        return targets[:, -1] * objective.loss_fn(outputs, targets[:, :-1])

    def with_factor(targets: Tensor, factor: Tensor) -> Tensor:
        return torch.cat([targets, factor[:, None].to(targets)], dim=1)

    def goal(labels: Tensor) -> Tensor:
        targets = objective.goal(labels)
        return with_factor(targets, torch.ones(len(targets), device=targets.device))

    return Objective(loss_fn, with_factor(objective.targets, size * objective.shares), goal=goal)


def averaged(learner: TrainingContext, ids: Tensor, influence: Influence) -> Influence:
    """The mean influence of each example over the batches of this task that it was in."""
    means = learner.influence_stats.means(ids).to(influence.stability)
    return replace(influence, stability=means[:, 0], plasticity=means[:, 1])


def validation_sets(
    learner: TrainingContext, old: float | None, new: float | None
) -> tuple[Batch, Batch]:
    """V_old from what the memory holds of earlier tasks and V_new from the current one, drawn
    anew, never augmented; of verified examples alone, where every class has some."""
    current = learner.current
    if current is None:
        raise ValueError("the learner has no current task")
    stream, memory = learner.streams["validation"], learner.memory
    past = learner.past()
    sure_past = verified_slots(memory, past, memory.labels[past])
    past = past if sure_past is None else sure_past
    slots = memory.draw(validation_size(old, len(past), memory.capacity), stream, past)
    held = memory.occupied
    sure = verified_slots(memory, held[memory.tasks[held] == learner.task], current.labels)
    if sure is not None:
        count = validation_size(new, len(sure), memory.capacity)
        chosen = memory.draw(count, stream, sure)
        return learner.unaugmented(memory.read(slots)), learner.unaugmented(memory.read(chosen))
    count = validation_size(new, len(current), memory.capacity)
    rows = torch.randperm(len(current), generator=stream)[:count]
    return learner.unaugmented(memory.read(slots)), learner.unaugmented(current.take(rows))


def verified_slots(memory: Memory, slots: Tensor, labels: Tensor) -> Tensor | None:
    """Those of the slots that hold verified examples, where every one of the `labels` has some;
    else None."""
    sure = slots[memory.pinned[slots]]
    if len(sure) < FEWEST_FOR_BATCHNORM:
        return None
    there = torch.isin(labels.to(memory.labels), memory.labels[sure])
    return sure if bool(there.all()) else None


def validation_size(wanted: float | None, available: int, capacity: int) -> int:
    """A count, a fraction of what is available, or a tenth of the memory; at least 2, as
    BatchNorm needs them."""
    if wanted is None:
        wanted = capacity // 10
    size = round(wanted * available) if 0 < wanted < 1 else int(wanted)
    return min(available, max(2, size))


def eager(learner: TrainingContext) -> AbstractContextManager[object]:
    """Influence looks at each operation, so a compiled model runs uncompiled meanwhile."""
    return torch.compiler.set_stance("force_eager") if learner.compiled else nullcontext()

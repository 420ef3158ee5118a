"""Influence as example weights, for any method: set `learner.weigh`, or pass it to `update`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence import Influence, fuse, record, sp_influence
from metasp.influence.functional import kept_random_state, with_parameters
from metasp.memory import Memory
from metasp.methods.context import TrainingContext, Weighed, Weigher, unweighed
from metasp.methods.losses import Objective
from metasp.methods.network_copies import features_seen, head_of
from metasp.methods.settings import FEWEST_FOR_BATCHNORM
from metasp.trees import call
from metasp.types import Batch

GAMMA_MARGIN = 1e-3  # the released rule keeps gamma this far from 0 and 1
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


@dataclass
class InfluenceWeights(Weigher):
    """Weigh a batch by influence, and write every influence into the learner's statistics.

    `strength` multiplies the influence in the weights; `running` takes each example's mean
    influence so far in the task instead of this batch's. `observe` records but leaves the weights
    uniform; `shuffle` deals the weights at random. With `reuse` the influence is that through the
    head alone, for which all that is needed of an example is what enters the head: for the batch it
    is there in the update's own pass, and for V_old and V_new it is computed once in `reuse` steps,
    by the network as it was then."""

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
    reuse: int | None = None
    v_old: Batch | None = field(default=None, init=False, compare=False)  # as they enter the head
    v_new: Batch | None = field(default=None, init=False, compare=False)
    v_task: int = field(default=0, init=False, compare=False)  # the task that they were drawn in
    v_used: int = field(default=0, init=False, compare=False)  # and for how many steps they served

    stored = ("v_old", "v_new", "v_task", "v_used")

    def __call__(self, learner: TrainingContext, objective: Objective) -> Weighed:
        if len(learner.past()) < FEWEST_FOR_BATCHNORM:
            return unweighed(learner, objective)
        losses, influence = self.measure(learner, objective, self.goals(learner))
        shares = objective.weights(losses)
        weights, fused, gamma = RULES[self.rule](influence, self.gamma, self.strength)
        rows = slice(None) if objective.weighable is None else objective.weighable
        ids = objective.batch.ids[rows]
        if fused.isfinite().all():
            learner.influence_stats.add(
                ids,
                stability=influence.stability,
                plasticity=influence.plasticity,
                fused=fused,
                loss=losses[rows],
            )
            if self.running:
                means = averaged(learner, ids, influence)
                weights, _, gamma = RULES[self.rule](means, self.gamma, self.strength)
        usable = bool(weights.isfinite().all() and weights.sum() > 0)
        numbers = {"gamma": gamma, "fallback": float(not usable)}
        if self.observe or not usable:
            return Weighed(losses, shares, numbers)
        if self.shuffle:
            weights = weights[torch.randperm(len(weights), generator=learner.streams["shuffle"])]
        if objective.shares is not None:  # the rule weighs a mean: here each row has a share
            factors = torch.ones_like(shares)
            factors[rows] = len(weights) * weights
            weights = shares * factors
        return Weighed(losses, weights, numbers)

    def goals(self, learner: TrainingContext) -> tuple[Batch, Batch]:
        """Return V_old and V_new; with `reuse` as they enter the head."""
        if self.reuse is None:
            return validation_sets(learner, self.validation_old, self.validation_new)
        if (
            self.v_old is None
            or self.v_new is None
            or self.v_task != learner.task
            or self.v_used >= self.reuse
        ):
            old, new = validation_sets(learner, self.validation_old, self.validation_new)
            self.v_old, self.v_new = entering_head(learner, old), entering_head(learner, new)
            self.v_task, self.v_used = learner.task, 0
        self.v_used += 1
        return self.v_old, self.v_new

    def measure(
        self, learner: TrainingContext, objective: Objective, goals: tuple[Batch, Batch]
    ) -> tuple[Tensor, Influence]:
        """Return the losses of the batch (n,), by the forward pass that the update shares if it
        can, and the influence of its weighable rows."""
        look = self._through_network if self.reuse is None else self._through_head
        losses, influence = look(learner, objective, goals)
        if objective.shares is None:
            return losses, influence
        scale = objective.scale(losses)
        rows = slice(None) if objective.weighable is None else objective.weighable
        stability = (influence.stability / scale)[rows]
        plasticity = (influence.plasticity / scale)[rows]
        return losses / scale, replace(influence, stability=stability, plasticity=plasticity)

    def forget(self, ids: Tensor) -> None:
        """Draw other validation sets where one holds a forgotten example."""
        drawn = [batch for batch in (self.v_old, self.v_new) if batch is not None]
        if any(torch.isin(batch.ids, ids).any() for batch in drawn):
            self.v_old = self.v_new = None

    def _through_network(
        self, learner: TrainingContext, objective: Objective, goals: tuple[Batch, Batch]
    ) -> tuple[Tensor, Influence]:
        batch, (old, new) = objective.batch, goals
        pair = (batch.inputs, batch.labels)
        with eager(learner):
            # In bf16 the influence is still computed in fp32, by a forward pass of its own.
            recorded = None if learner.bf16 else record(learner.model, objective.scaled, pair)
            influence = sp_influence(
                learner.model,
                objective.scaled,
                batch=pair,
                old=(old.inputs, old.labels),
                new=(new.inputs, new.labels),
                steps=self.steps,
                optimizer=learner.optimizer,
                scope=self.scope,
                clip_norm=learner.clip_norm,
                recorded=recorded,
            )
        if recorded is not None:
            return recorded.losses, influence
        return objective.scaled(learner.outputs(batch.inputs), batch.labels), influence

    def _through_head(
        self, learner: TrainingContext, objective: Objective, goals: tuple[Batch, Batch]
    ) -> tuple[Tensor, Influence]:
        batch, (old, new) = objective.batch, goals
        with eager(learner), features_seen(learner.model) as seen:
            losses = objective.scaled(learner.outputs(batch.inputs), batch.labels)
        head = checked_head(learner, self.scope)
        features = seen[0].detach().to(next(head.parameters()))  # bf16 above the head
        influence = sp_influence(
            head,
            objective.scaled,
            batch=(features, batch.labels),
            old=(old.inputs, old.labels),
            new=(new.inputs, new.labels),
            steps=self.steps,
            optimizer=learner.optimizer,
        )
        return losses, influence


class ScheduledWeights(Weigher):
    """Weighs every `every`-th step only and, where `last` is given, of these only the ones in that
    many last epochs of a task with a past, or in a task that is open; plain rehearsal otherwise."""

    stored = ("taken", "weights")

    def __init__(self, weights: InfluenceWeights, every: int = 1, last: int | None = None) -> None:
        self.weights, self.every, self.last = weights, every, last
        self.taken = 0  # steps in those epochs

    def __call__(self, learner: TrainingContext, objective: Objective) -> Weighed:
        epochs_left = learner.plan.epochs - learner.epoch
        scheduled = self.last is not None and not learner.open  # which has no epochs
        if scheduled and (learner.task == 0 or epochs_left > (self.last or 0)):
            return unweighed(learner, objective)
        weighs = self.taken % self.every == 0
        self.taken += 1
        return (self.weights if weighs else unweighed)(learner, objective)


def averaged(learner: TrainingContext, ids: Tensor, influence: Influence) -> Influence:
    """The mean influence of each example over the batches of this task that it was in."""
    means = learner.influence_stats.means(ids).to(influence.stability)
    return replace(influence, stability=means[:, 0], plasticity=means[:, 1])


def entering_head(learner: TrainingContext, examples: Batch) -> Batch:
    """Return the same examples as they enter the head, which leaves no trace in the network."""
    with (
        torch.no_grad(),
        eager(learner),
        kept_random_state(learner.device),
        with_parameters(learner.model, {}),
        features_seen(learner.model) as seen,
    ):
        call(learner.model, examples.inputs)
    return examples._replace(inputs=seen[0])


def checked_head(learner: TrainingContext, scope: str | None) -> nn.Module:
    """Return the model's head, where it is what the scope names."""
    head = head_of(learner.model)
    named = learner.model.named_parameters()
    inside = {id(p) for name, p in named if name.startswith(scope or "")}
    if head is None or inside != {id(p) for p in head.parameters()}:
        raise UserError(
            "reuse keeps what enters the network's head, so that the influence must look at the "
            "head alone: give the head's name as scope (in the built-in networks: head)."
        )
    return head


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

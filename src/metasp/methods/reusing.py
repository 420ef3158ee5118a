"""Influence through the head alone, on validation sets that are kept for a few steps.

With the scope of the influence on the head, all that it needs of an example is what enters the
head. For the batch that is there in the update's own forward pass; for V it is computed once in
some steps, by the network as it was then."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence import Influence, sp_influence
from metasp.influence.origin import kept_random_state, with_parameters
from metasp.influence.pseudo import Pair
from metasp.methods.context import Objective, TrainingContext
from metasp.methods.features import features_seen, head_of
from metasp.methods.weighting import InfluenceWeights, eager
from metasp.trees import call
from metasp.types import Batch, State

GOALS = ("old", "new")


@dataclass
class Kept:
    """What entered the head for V, the task of that, and for how many steps it was used."""

    goals: tuple[Batch, Batch] | None = None
    task: int = 0
    used: int = 0


@dataclass(frozen=True)
class HeadWeights(InfluenceWeights):
    """Weigh by the influence in the head, on V of which every `reuse`-th step draws another."""

    reuse: int = 1
    kept: Kept = field(default_factory=Kept, compare=False)

    def goals(self, learner: TrainingContext) -> tuple[Batch, Batch]:
        kept = self.kept
        if kept.goals is None or kept.task != learner.task or kept.used >= self.reuse:
            old, new = super().goals(learner)
            kept.goals = features_of(learner, old), features_of(learner, new)
            kept.task, kept.used = learner.task, 0
        kept.used += 1
        return kept.goals

    def look(
        self, learner: TrainingContext, pair: Pair, summed: Objective, goals: tuple[Pair, Pair]
    ) -> tuple[Tensor, Influence]:
        inputs, targets = pair
        with eager(learner), features_seen(learner.model) as seen:
            losses = summed.loss_fn(learner.outputs(inputs), targets)
        head = checked_head(learner, self.scope)
        found = sp_influence(
            head,
            summed.loss_fn,
            batch=(seen[0].detach().to(next(head.parameters())), targets),  # bf16 above the head
            old=goals[0],
            new=goals[1],
            steps=self.steps,
            optimizer=learner.optimizer,
        )
        return losses, found

    def forget(self, ids: Tensor) -> None:
        if self.kept.goals and any(torch.isin(g.ids, ids).any() for g in self.kept.goals):
            self.kept.goals = None

    def state(self) -> State:
        if self.kept.goals is None:
            return {}
        state = {"kept": torch.tensor([self.kept.task, self.kept.used])}
        for name, goal in zip(GOALS, self.kept.goals):
            assert isinstance(goal.inputs, Tensor)
            state |= {name: goal.inputs, f"{name}_ids": goal.ids}
            state |= {f"{name}_labels": goal.labels, f"{name}_labels_ids": goal.ids}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.kept.goals = None
        if "kept" in state:
            self.kept.task, self.kept.used = state["kept"].tolist()
            old, new = (
                Batch(*(state[f"{name}{part}"].clone() for part in ("", "_labels", "_ids")))
                for name in GOALS
            )
            self.kept.goals = old, new


def features_of(learner: TrainingContext, goal: Batch) -> Batch:
    """The same examples as they enter the head, which leaves no trace in the network."""
    with (
        torch.no_grad(),
        eager(learner),
        kept_random_state(learner.device),
        with_parameters(learner.model, {}),
        features_seen(learner.model) as seen,
    ):
        call(learner.model, goal.inputs)
    return goal._replace(inputs=seen[0])


def checked_head(learner: TrainingContext, scope: str | None) -> nn.Module:
    """The model's head, where it is what the scope names."""
    head = head_of(learner.model)
    named = learner.model.named_parameters()
    inside = {id(p) for name, p in named if name.startswith(scope or "")}
    if head is None or inside != {id(p) for p in head.parameters()}:
        raise UserError(
            "reuse keeps what enters the network's head, so that the influence must look at the "
            "head alone: give the head's name as scope (in the built-in networks: head)."
        )
    return head

"""Replay against wrong labels: ER whose new examples weigh by how likely their labels are right.

See docs/methods/metasp-robust.md; label_model.py says how labels are judged."""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from metasp.example_stats import NO_IDS, ExampleStats
from metasp.influence import fuse
from metasp.methods.base import Method, Phase
from metasp.methods.context import Step, TrainingContext, Weighed, Weigher, unweighed
from metasp.methods.label_model import (
    Goal,
    Reference,
    Seen,
    goal_in_memory,
    head_influence,
    judge_labels,
    seen_by,
)
from metasp.methods.losses import Objective
from metasp.methods.settings import RobustSettings
from metasp.types import Batch

CERTAIN = 8.0  # log odds beyond which one look does not count more


@final
class Robust(Method):
    """Experience replay that drops what is probably mislabelled."""

    weighted_sum = True
    needs = ("boundaries", "classes")
    Settings = RobustSettings
    selection = "judged"

    @classmethod
    def weigher(cls, learner: TrainingContext, settings: RobustSettings) -> Weigher:
        return RobustWeights(settings)

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


class RobustWeights(Weigher):
    """New examples weigh as much as their label is likely right; replayed ones keep their share,
    and so do the new ones together. At the start of each epoch all examples of the task are judged,
    in one pass, and the mean of their log odds over the epochs so far counts."""

    stored = ("epoch", "stats")

    def __init__(self, settings: RobustSettings) -> None:
        self.settings = settings
        self.epoch = 0  # the last one that was judged
        self.stats = ExampleStats("odds", ids=NO_IDS)

    def begin_task(self, learner: TrainingContext) -> None:
        ids = NO_IDS if learner.current is None else learner.current.ids
        self.epoch, self.stats = 0, ExampleStats("odds", ids=ids)

    def __call__(self, learner: TrainingContext, objective: Objective) -> Weighed:
        if learner.epoch != self.epoch:
            self.epoch = learner.epoch
            self.look(learner)
        weighed = unweighed(learner, objective)
        if learner.epoch + 1 < self.settings.weigh_from:
            return weighed
        right = self.chances(objective.batch.ids[: learner.arrived])
        return self.weighted(learner, weighed, right.float().nan_to_num(nan=1.0))

    def chances(self, ids: Tensor) -> Tensor:
        """Return the probability (n,) that labels of the task are right; NaN: not known."""
        return self.stats.means(ids, "odds").sigmoid()

    def look(self, learner: TrainingContext) -> None:
        """Judge all labels of the task by the network as it stands."""
        current = learner.current
        assert current is not None
        labels, seen = current.labels.cpu(), seen_by(learner, current)
        goal = goal_in_memory(learner, without=labels)
        nobody = Reference(seen.features[:0], labels[:0], torch.zeros(0, dtype=torch.bool))
        judged = judge_labels(seen.features, labels, goal.reference if goal else nobody)
        self.stats.add(current.ids, odds=judged.odds.clamp(-CERTAIN, CERTAIN))
        if goal is not None:
            self.record(learner, seen, goal)

    def record(self, learner: TrainingContext, seen: Seen, goal: Goal) -> None:
        """Write the influence of every example of the task on what stands for earlier tasks and
        for this one into the learner's statistics; nothing is weighed by it."""
        current, past = learner.current, goal.tasks != learner.task
        assert current is not None
        if not past.any():
            return
        labels = current.labels.cpu()
        new_goal, new_labels = goal.seen.at(~past), goal.labels[~past]
        if past.all():  # nobody verified: what is likely right
            right = self.chances(current.ids) > 0.5
            new_goal, new_labels = seen.at(right), labels[right]
        stability = head_influence(seen, labels, goal.seen.at(past), goal.labels[past])
        plasticity = head_influence(seen, labels, new_goal, new_labels)
        losses = cross_entropy(seen.outputs, labels, reduction="none")
        fused = fuse(stability, plasticity).fused
        learner.influence_stats.add(
            current.ids, stability=stability, plasticity=plasticity, fused=fused, loss=losses
        )

    def weighted(self, learner: TrainingContext, weighed: Weighed, right: Tensor) -> Weighed:
        """Return the update with the new examples' share dealt by how likely each label is
        right."""
        right = right.to(weighed.weights)
        if self.settings.shuffle_influence:
            right = right[torch.randperm(len(right), generator=learner.streams["shuffle"])]
        if not bool((right == right[0]).all()) or right[0] == 0:  # equal ones change no bit
            weighed = weighed.dealt(right)
        return replace(weighed, numbers={"doubted": float((right < 0.5).float().mean())})

    def judged(self, learner: TrainingContext, ids: Tensor) -> Tensor | None:
        chances = self.chances(ids)
        return None if bool(chances.isnan().all()) else chances

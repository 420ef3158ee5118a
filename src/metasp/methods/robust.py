"""MetaSP against wrong labels: ER whose new examples weigh by how likely their labels are right.

See docs/methods/metasp-robust.md; label_model.py says how labels are judged."""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from metasp.example_stats import NO_IDS, ExampleStats
from metasp.influence import fuse
from metasp.methods.base import Method, Phase
from metasp.methods.context import Step, TrainingContext, Weighed, Weigher, unweighed
from metasp.methods.label_model import (
    Goal,
    Seen,
    better_part,
    can_tell,
    chance_wrong,
    class_means,
    fresh_head_influence,
    goal_of_task,
    head_influence,
    read_influence,
    seen_by,
)
from metasp.methods.losses import Objective
from metasp.methods.settings import RobustSettings
from metasp.types import Batch

UNASKED = -1
JUDGED = ("all", "right", "task", "label_right")
"""What is known of each example of the task: means over looks of the evidence for its label among
all classes and among the task's, and the chances that follow."""


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
    in one pass."""

    stored = ("epoch", "tells", "stats")

    def __init__(self, settings: RobustSettings) -> None:
        self.settings = settings
        self.epoch = 0  # the last one that was judged
        self.tells = UNASKED  # whether influences tell labels, by the first look
        self.stats = ExampleStats(ids=NO_IDS, latest=JUDGED)

    def begin_task(self, learner: TrainingContext) -> None:
        self.epoch, self.tells = 0, UNASKED
        ids = NO_IDS if learner.current is None else learner.current.ids
        self.stats = ExampleStats(ids=ids, latest=JUDGED)

    def __call__(self, learner: TrainingContext, objective: Objective) -> Weighed:
        if learner.epoch != self.epoch:
            self.epoch = learner.epoch
            self._judge(learner)
        weighed = unweighed(learner, objective)
        if learner.epoch + 1 < self.settings.weigh_from:
            return weighed
        right = self.stats.last(objective.batch.ids[: learner.arrived], "right")
        return self._weighted(learner, weighed, right.float().nan_to_num(nan=1.0))

    def _judge(self, learner: TrainingContext) -> None:
        """Look at every example of the task, and say how likely its label is wrong: among all
        classes, for its weight, and among those of the task, for its score."""
        training, current = learner.training_stats.examples, learner.current
        assert current is not None
        labels, ids = current.labels.cpu(), current.ids
        seen = seen_by(learner, current)
        easy = training.means(ids, "loss").nan_to_num(nan=torch.inf)
        goal = goal_of_task(learner, seen, easy, self.settings.easiest)
        means = class_means(goal)
        now = torch.zeros_like(means.known)
        now[labels] = True
        readings = []
        for among, name in ((means.known, "all"), (now, "task")):
            influence = fresh_head_influence(seen.features, labels, means, among)
            readings.append(read_influence(goal, means, among))
            evidence = readings[-1].evidence(influence)
            self.stats.put(ids, **{name: self._running(ids, name, evidence, learner.epoch)})
        evidence, of_task = (self.stats.last(ids, name) for name in ("all", "task"))
        right = 1 - chance_wrong(self.settings.decisive * evidence, labels)
        wrong, margins = chance_wrong(evidence, labels), training.means(ids, "margin")
        if self.tells == UNASKED:  # later the goal's examples are known by heart
            self.tells = int(can_tell(readings[0], wrong, int(now.sum())))
        if self.tells:
            right[~better_part(evidence, margins, labels, wrong, self.settings.strict)] = 0
        else:
            right[:] = 1
        label_right = 1 - chance_wrong(of_task, labels)
        self.stats.put(ids, right=right.float(), label_right=label_right.float())
        self._record(learner, seen, goal)

    def _running(self, ids: Tensor, name: str, values: Tensor, looks: int) -> Tensor:
        """The mean of a value (n,) over so many looks; what was unknown is taken as it is."""
        before, now = self.stats.last(ids, name).float(), values.float()
        moved = torch.where(before.isnan(), now, before + (now - before) / max(looks, 1))
        return torch.where(now.isnan(), before, moved)

    def _record(self, learner: TrainingContext, seen: Seen, goal: Goal) -> None:
        """Write the influence of every example of the task on what stands for earlier tasks and
        for this one into the learner's statistics; nothing is weighed by it."""
        current = learner.current
        assert current is not None
        past = goal.tasks != learner.task
        if not past.any():
            return
        labels = current.labels.cpu()
        stability = head_influence(seen, labels, goal, past)
        plasticity = head_influence(seen, labels, goal, ~past)
        losses = torch.nn.functional.cross_entropy(seen.outputs, labels, reduction="none")
        fused = fuse(stability, plasticity).fused
        learner.influence_stats.add(
            current.ids, stability=stability, plasticity=plasticity, fused=fused, loss=losses
        )

    def _weighted(self, learner: TrainingContext, weighed: Weighed, right: Tensor) -> Weighed:
        """The update with the new examples' share dealt by how likely each label is right."""
        right = right.to(weighed.weights)
        if self.settings.shuffle_influence:
            right = right[torch.randperm(len(right), generator=learner.streams["shuffle"])]
        if not bool((right == right[0]).all()) or right[0] == 0:  # equal ones change no bit
            weighed = weighed.dealt(right)
        return replace(weighed, numbers={"doubted": float((right < 0.5).float().mean())})

    def judged(self, learner: TrainingContext, ids: Tensor) -> Tensor | None:
        return known_chances(self.stats.last(ids, "right"))

    def label_right(self, learner: TrainingContext, ids: Tensor) -> Tensor | None:
        return known_chances(self.stats.last(ids, "label_right"))


def known_chances(chances: Tensor) -> Tensor | None:
    """Chances (n,) with NaN for examples never met, or None where none was."""
    return None if bool(chances.isnan().all()) else chances

"""MetaSP against wrong labels, and filters beside it: ER whose new examples weigh by how likely
their labels are right, and ER without the new examples of high loss, or without any.

See docs/methods/metasp-robust.md; label_model.py says how labels are judged."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.example_stats import NO_IDS, ExampleStats
from metasp.influence import fuse
from metasp.methods.base import Method, Phase, rehearsal_phase
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
from metasp.methods.settings import LossFilterSettings, RobustSettings, Settings
from metasp.types import Batch, Task

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


@final
class LossFilter(Method):
    """Experience replay without the new examples of highest mean loss so far."""

    weighted_sum = True
    needs = ("boundaries", "classes")
    Settings = LossFilterSettings
    selection = "judged"

    @classmethod
    def weigher(cls, learner: TrainingContext, settings: LossFilterSettings) -> Weigher:
        return LowLoss(settings)

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


class LowLoss(Weigher):
    """Weights of one or zero for new examples, by their mean loss over the task so far."""

    stored = ("keep_ids", "epoch")

    def __init__(self, settings: LossFilterSettings) -> None:
        self.settings = settings
        self.keep_ids = NO_IDS  # the ids among the lowest of their class, per class alone
        self.epoch = -1

    def begin_task(self, learner: TrainingContext) -> None:
        self.keep_ids, self.epoch = NO_IDS, -1
        if self.settings.told and learner.told is None:
            raise UserError(
                "the true share of wrong labels is not known for this data, so told has nothing "
                "to go by: give the share to drop instead."
            )

    def __call__(self, learner: TrainingContext, objective: Objective) -> Weighed:
        weighed = unweighed(learner, objective)
        if learner.epoch + 1 < self.settings.weigh_from:
            return weighed
        ids = objective.batch.ids[: learner.arrived]
        if self.settings.per_class:
            if learner.epoch != self.epoch:
                self.keep_ids, self.epoch = self._kept(learner), learner.epoch
            kept = torch.isin(ids, self.keep_ids)
        else:
            kept = lowest(losses_of(learner, ids), 1 - self._share(learner))
        return weighed.dealt(kept)

    def _share(self, learner: TrainingContext, label: int | None = None) -> float:
        """The part to drop, of a class or of all."""
        if learner.told is None or not self.settings.told:
            return self.settings.drop
        return learner.told.get(label, 0.0)

    def _kept(self, learner: TrainingContext) -> Tensor:
        """The ids of the task that are among the lowest of their class."""
        current = learner.current
        assert current is not None
        order = current.ids.argsort()
        ids, labels = current.ids[order], current.labels.cpu()[order]
        loss = losses_of(learner, ids)
        kept = torch.zeros(len(labels), dtype=torch.bool)
        for label in sorted(set(labels.tolist())):
            rows = torch.nonzero(labels == label).flatten()
            kept[rows] = lowest(loss[rows], 1 - self._share(learner, label))
        return ids[kept]

    def judged(self, learner: TrainingContext, ids: Tensor) -> Tensor | None:
        if self.settings.per_class:
            return torch.isin(ids, self._kept(learner)).double()
        known = learner.training_stats.examples.ids
        lowest_of_all = lowest(losses_of(learner, known), 1 - self._share(learner))
        return torch.isin(ids, known[lowest_of_all]).double()


@final
class VerifiedOnly(Method):
    """Learns from the verified examples in memory, and from nothing else."""

    weighted_sum = True
    needs = ("boundaries", "classes")
    selection = "judged"

    @classmethod
    def weigher(cls, learner: TrainingContext, settings: Settings) -> Weigher:
        return NothingNew()

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        """Return one phase of rehearsal: an epoch without replay has nothing verified."""
        return [rehearsal_phase(self.learner, task.train, self.learner.plan.epochs)]

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


class NothingNew(Weigher):
    """New examples do not count; what is replayed has their share too."""

    def __call__(self, learner: TrainingContext, objective: Objective) -> Weighed:
        if objective.batch.size == learner.arrived:
            raise UserError(
                "verified-only has nothing to learn from: give it verified examples (`trusted`)."
            )
        weighed = unweighed(learner, objective)
        weights = weighed.weights.clone()
        weights[: learner.arrived] = 0
        return replace(weighed, weights=weights / weights.sum())

    def judged(self, learner: TrainingContext, ids: Tensor) -> Tensor | None:
        return torch.zeros(len(ids), dtype=torch.float64)


def losses_of(learner: TrainingContext, ids: Tensor) -> Tensor:
    """Return the mean loss of examples of the task so far (n,)."""
    return learner.training_stats.examples.means(ids, "loss")


def lowest(values: Tensor, part: float) -> Tensor:
    """The part (at least one) of the values (n,) that is lowest; unknown ones come last."""
    count = max(1, round(part * len(values)))
    kept = torch.zeros(len(values), dtype=torch.bool)
    kept[values.nan_to_num(nan=torch.inf).argsort(stable=True)[:count]] = True
    return kept

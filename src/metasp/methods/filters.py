"""Filters beside metasp-robust: ER without the new examples of high loss, or without any.

How many are dropped is told, or taken from the truth about a benchmark."""

from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.example_stats import NO_IDS
from metasp.methods.context import Step, TrainingContext, Weighed, Weigher, unweighed
from metasp.methods.losses import Objective
from metasp.methods.method import Method, Phase
from metasp.methods.settings import LossFilterSettings, Settings
from metasp.types import Batch


@final
class LossFilter(Method):
    """Experience replay without the new examples of highest mean loss so far."""

    classes = True
    judges = True
    observable = False
    boundaries = True
    told = True
    Settings = LossFilterSettings
    selection: ClassVar[str | None] = "judged"

    def __init__(self, learner: TrainingContext, settings: LossFilterSettings) -> None:
        super().__init__(learner, settings)
        if learner is not None:  # None: only to carry settings
            learner.weigh = LowLoss(settings)

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


class LowLoss(Weigher):
    """Weights of one or zero for new examples, by their mean loss over the task so far."""

    judges = True
    stored = ("keep_ids", "epoch")

    def __init__(self, settings: LossFilterSettings) -> None:
        self.settings = settings
        self.keep_ids = NO_IDS  # the ids among the lowest of their class, per class alone
        self.epoch = -1

    def begin_task(self, learner: TrainingContext) -> None:
        self.keep_ids, self.epoch = NO_IDS, -1
        if self.settings.told and learner.told is None:
            raise UserError(
                "the true share of wrong labels is not known for this data, so --told has nothing "
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

    classes = True
    judges = True
    boundaries = True
    observable = False
    schedules = False  # an epoch without replay has nothing verified
    needs_verified = True
    selection: ClassVar[str | None] = "judged"

    def __init__(self, learner: TrainingContext, settings: Settings) -> None:
        super().__init__(learner, settings)
        if learner is not None:  # None: only to carry settings
            learner.weigh = NothingNew()

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


class NothingNew(Weigher):
    """New examples do not count; what is replayed has their share too."""

    judges = True

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

"""Filters beside metasp-robust: ER without the new examples that a simple rule calls mislabelled,
or without any new example."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from metasp.errors import UserError
from metasp.example_stats import NO_IDS
from metasp.methods.base import Method, Phase, rehearsal_phase
from metasp.methods.context import Step, TrainingContext, Weighed, Weigher, unweighed
from metasp.methods.label_model import goal_in_memory, seen_by
from metasp.methods.losses import Objective
from metasp.methods.settings import (
    KNNFilterSettings,
    LossFilterSettings,
    PrototypeFilterSettings,
    Settings,
)
from metasp.types import Batch, Task

AT_ONCE = 512  # examples whose distances to all others are held at a time


class FilterWeights(Weigher):
    """Weights of one for new examples that look clean, decided at the start of each epoch, and of
    zero for the others."""

    stored = ("clean_ids", "epoch")

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.clean_ids = NO_IDS  # of the task, by the last look
        self.epoch = -1  # of the last look

    def begin_task(self, learner: TrainingContext) -> None:
        self.clean_ids, self.epoch = NO_IDS, -1

    def __call__(self, learner: TrainingContext, objective: Objective) -> Weighed:
        weighed = unweighed(learner, objective)
        if learner.epoch + 1 < self.settings.weigh_from:
            return weighed
        return weighed.dealt(self.looks_clean(learner, objective.batch.ids[: learner.arrived]))

    def looks_clean(self, learner: TrainingContext, ids: Tensor) -> Tensor:
        """Return which new examples (n,) of a batch look clean."""
        if learner.epoch != self.epoch:
            self.clean_ids, self.epoch = self.clean(learner), learner.epoch
        return torch.isin(ids, self.clean_ids)

    @abstractmethod
    def clean(self, learner: TrainingContext) -> Tensor:
        """Return the ids of the examples of the task that look clean now."""

    def judged(self, learner: TrainingContext, ids: Tensor) -> Tensor | None:
        return torch.isin(ids, self.clean(learner)).double()


class LowLoss(FilterWeights):
    """Call clean what has the lowest mean loss over the task so far, in its batch or its class."""

    settings: LossFilterSettings

    def begin_task(self, learner: TrainingContext) -> None:
        super().begin_task(learner)
        if self.settings.told and learner.told is None:
            raise UserError(
                "the true share of wrong labels is not known for this data, so told has nothing "
                "to go by: give the share to drop instead."
            )

    def looks_clean(self, learner: TrainingContext, ids: Tensor) -> Tensor:
        if self.settings.per_class:
            return super().looks_clean(learner, ids)
        return lowest(losses_of(learner, ids), 1 - self.share(learner))

    def share(self, learner: TrainingContext, label: int | None = None) -> float:
        """Return the part to drop, of a class or of all."""
        if learner.told is None or not self.settings.told:
            return self.settings.drop
        return learner.told.get(label, 0.0)

    def clean(self, learner: TrainingContext) -> Tensor:
        current = learner.current
        assert current is not None
        order = current.ids.argsort()
        ids, labels = current.ids[order], current.labels.cpu()[order]
        loss = losses_of(learner, ids)
        if not self.settings.per_class:
            return ids[lowest(loss, 1 - self.share(learner))]
        clean = torch.zeros(len(labels), dtype=torch.bool)
        for label in sorted(set(labels.tolist())):
            rows = torch.nonzero(labels == label).flatten()
            clean[rows] = lowest(loss[rows], 1 - self.share(learner, label))
        return ids[clean]


class NearestMean(FilterWeights):
    """Call clean what carries the label of the nearest class mean, in the network's features. The
    mean of a class is that of its verified examples; without any, of all examples of the task
    with its label, or of what the memory holds of a past class."""

    def clean(self, learner: TrainingContext) -> Tensor:
        current = learner.current
        assert current is not None
        features, labels = seen_by(learner, current).features, current.labels.cpu()
        goal = goal_in_memory(learner, without=labels)
        stands, standing = features, labels
        if goal is not None:
            unverified = ~torch.isin(labels, goal.labels)
            stands = torch.cat([features[unverified], goal.seen.features])
            standing = torch.cat([labels[unverified], goal.labels])
        classes = torch.tensor(sorted({*standing.tolist()}))
        members = torch.searchsorted(classes, standing)
        sums = features.new_zeros(len(classes), features.shape[1]).index_add_(0, members, stands)
        means = sums / members.bincount()[:, None]
        return current.ids[classes[torch.cdist(features, means).argmin(1)] == labels]


class NearestNeighbours(FilterWeights):
    """Call clean what carries the most frequent label among its nearest neighbours in the network's
    features, out of all other examples of the task and of the memory."""

    def clean(self, learner: TrainingContext) -> Tensor:
        current = learner.current
        assert current is not None
        features, labels = seen_by(learner, current).features, current.labels.cpu()
        stored = learner.memory.examples()
        stored = stored.without(current.ids)
        if len(stored):
            features = torch.cat([features, seen_by(learner, stored).features])
            labels = torch.cat([labels, stored.labels.cpu()])
        agrees = neighbours_agree(features, labels, self.settings.neighbours)
        return current.ids[agrees[: len(current)]]


def neighbours_agree(features: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return which rows (n,) carry a label that no other one outnumbers among the `count` rows
    nearest to it by their features (n, d), itself left out."""
    votes = one_hot(labels)
    agrees = []
    for rows in torch.split(torch.arange(len(labels)), AT_ONCE):
        distance = torch.cdist(features[rows], features)
        distance[torch.arange(len(rows)), rows] = torch.inf
        nearest = distance.topk(min(count, len(labels) - 1), largest=False).indices
        counts = votes[nearest].sum(1)
        agrees.append(counts.gather(1, labels[rows, None])[:, 0] == counts.amax(1))
    return torch.cat(agrees)


class NothingNew(Weigher):
    """New examples do not count; what is replayed has their share too."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

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
    """Return which values (n,) are in the lowest part, of at least one; unknown ones come last."""
    count = max(1, round(part * len(values)))
    chosen = torch.zeros(len(values), dtype=torch.bool)
    chosen[values.nan_to_num(nan=torch.inf).argsort(stable=True)[:count]] = True
    return chosen


class Filter(Method):
    """Experience replay whose new examples weigh one or zero, by `Weights` of the settings."""

    Weights: ClassVar[type[Any]]  #: a kind of Weigher
    weighted_sum = True
    needs = ("boundaries", "classes")
    selection = "judged"

    @classmethod
    def weigher(cls, learner: TrainingContext, settings: Any) -> Weigher:
        weights: Weigher = cls.Weights(settings)
        return weights

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


@final
class LossFilter(Filter):
    Settings = LossFilterSettings
    Weights = LowLoss


@final
class PrototypeFilter(Filter):
    Settings = PrototypeFilterSettings
    Weights = NearestMean


@final
class KNNFilter(Filter):
    Settings = KNNFilterSettings
    Weights = NearestNeighbours


@final
class VerifiedOnly(Filter):
    """Learns from the verified examples in memory, and from nothing else."""

    Weights = NothingNew

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        """Return one phase of rehearsal: an epoch without replay has nothing verified."""
        return [rehearsal_phase(self.learner, task.train, self.learner.plan.epochs)]

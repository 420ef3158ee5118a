"""Filters beside metasp-robust: ER without the new examples of high loss, or without any.

How many are dropped is told, or taken from the truth about a benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.methods.context import Objective, Step, TrainingContext, Weighed, Weigher, unweighed
from metasp.methods.method import Method, Phase, Settings
from metasp.spec import setting
from metasp.types import Batch, State


@dataclass(frozen=True, kw_only=True)
class LossFilterSettings(Settings):
    drop: float = setting(0.5, "Share of new examples that is dropped.", min=0, max=1)
    told: bool = setting(
        False, "Control: drop the true share of wrong labels instead.", words="told the share"
    )
    per_class: bool = setting(
        False, "Drop that share of each class, not of each batch.", words="by class"
    )
    weigh_from: int = setting(2, "First epoch of a task in which examples are dropped.", min=1)


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

    def __init__(self, settings: LossFilterSettings) -> None:
        self.settings = settings
        self.keep = torch.zeros(0, dtype=torch.bool)  # the tally's examples, per class alone
        self.epoch = -1

    def begin_task(self, learner: TrainingContext) -> None:
        self.keep, self.epoch = torch.zeros(0, dtype=torch.bool), -1
        if self.settings.told and learner.told is None:
            raise UserError(
                "the true share of wrong labels is not known for this data, so --told has nothing "
                "to go by: give the share to drop instead."
            )

    def __call__(self, learner: TrainingContext, batch: Batch, objective: Objective) -> Weighed:
        weighed = unweighed(learner, batch, objective)
        if learner.epoch + 1 < self.settings.weigh_from:
            return weighed
        ids = batch.ids[: learner.arrived]
        if self.settings.per_class:
            if learner.epoch != self.epoch:
                self.keep, self.epoch = self._kept(learner), learner.epoch
            rows, _ = learner.tally.rows(ids)
            kept = self.keep[rows]
        else:
            kept = lowest(learner.tally.means(ids, "loss"), 1 - self._share(learner))
        return weighed.dealt(kept)

    def _share(self, learner: TrainingContext, label: int | None = None) -> float:
        """The part to drop, of a class or of all."""
        if learner.told is None or not self.settings.told:
            return self.settings.drop
        return learner.told.get(label, 0.0)

    def _kept(self, learner: TrainingContext) -> Tensor:
        """The examples of the tally that are among the lowest of their class."""
        current = learner.current
        assert current is not None
        labels = current.labels.cpu()[current.ids.argsort()]
        loss = learner.tally.means(learner.tally.ids, "loss")
        kept = torch.zeros(len(labels), dtype=torch.bool)
        for label in sorted(set(labels.tolist())):
            own = torch.nonzero(labels == label).flatten()
            kept[own] = lowest(loss[own], 1 - self._share(learner, label))
        return kept

    def judged(self, learner: TrainingContext) -> Tensor | None:
        if self.settings.per_class:
            return self._kept(learner).double()
        loss = learner.tally.means(learner.tally.ids, "loss")
        return lowest(loss, 1 - self._share(learner)).double()

    def state(self) -> State:
        return {"keep": self.keep, "epoch": torch.tensor(self.epoch)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.keep, self.epoch = state["keep"].clone(), int(state["epoch"])


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

    def __call__(self, learner: TrainingContext, batch: Batch, objective: Objective) -> Weighed:
        if batch.size == learner.arrived:
            raise UserError(
                "verified-only has nothing to learn from: give it verified examples (`trusted`)."
            )
        weighed = unweighed(learner, batch, objective)
        weights = weighed.weights.clone()
        weights[: learner.arrived] = 0
        return replace(weighed, weights=weights / weights.sum())

    def judged(self, learner: TrainingContext) -> Tensor | None:
        return torch.zeros(len(learner.tally.ids), dtype=torch.float64)


def lowest(values: Tensor, part: float) -> Tensor:
    """The part (at least one) of the values (n,) that is lowest; unknown ones come last."""
    count = max(1, round(part * len(values)))
    kept = torch.zeros(len(values), dtype=torch.bool)
    kept[values.nan_to_num(nan=torch.inf).argsort(stable=True)[:count]] = True
    return kept

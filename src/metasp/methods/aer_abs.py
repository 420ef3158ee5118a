"""ER-ACE with AER and ABS (Millunzi et al. 2024): epochs without replay show which labels are hard,
and what they taught is undone; only new examples of low loss enter the memory."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.memory import Placement, Selection
from metasp.methods.base import Method, Phase, not_in_memory, offer_step, rehearsal_phase
from metasp.methods.context import Step, TrainingContext, evaluating
from metasp.methods.losses import Term, cross_entropy_among
from metasp.methods.network_copies import NetworkCopy
from metasp.methods.settings import AERSettings
from metasp.types import Batch, LossFn, Task


@final
class AERABS(Method):
    needs = ("boundaries", "classes", "own loss")
    Settings = AERSettings
    selection = "asymmetric"
    settings: AERSettings
    stored = ("present", "seen", "before")

    @classmethod
    def check(cls, settings: Any, memory_batch: int, selection: Selection) -> None:
        if not any("replay_loss" in str(column).lower() for column in selection.columns):
            raise UserError(
                "aer-abs keeps what its own selection finds likely right: leave out the selection, "
                "or use er-ace."
            )

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.present: list[int] = []  # the classes of the task at hand
        self.seen: list[int] = []  # and those of all tasks up to it
        self.before = NetworkCopy(learner)  # as it was before the epoch without replay
        self.losses = torch.zeros(0)  # of the new examples in the last step

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        return [rehearsal_phase(self.learner, task.train, self.learner.plan.epochs)]

    def begin_task(self, task: Task) -> None:
        self.present = sorted(task.classes)
        self.seen = sorted({*self.seen, *task.classes})

    def begin_epoch(self, task: Task, epoch: int) -> None:
        """Undo an epoch without replay when it is over; before the very first one nothing had been
        learned."""
        if self.before.tensors:
            self.before.put()
            self.before.drop()
        if not self.replays(epoch) and (task.index or epoch):
            self.before.take()

    def replays(self, epoch: int) -> bool:
        """Return whether an epoch of a task, from 0, replays: every other one, and the last."""
        return epoch % 2 == 1 or epoch == self.learner.plan.epochs - 1

    def offers(self, epoch: int) -> bool:
        return not self.replays(epoch) or self.learner.plan.epochs == 1

    def step(self, new: Batch, phase: Phase) -> Step:
        learner, memory = self.learner, self.learner.memory
        of_new, of_replay = cross_entropy_among(self.present), cross_entropy_among(self.seen)
        slots = memory.draw(learner.plan.memory_batch, learner.streams["replay"])
        if self.offers(learner.epoch):
            self.losses = self.losses_of(new, of_new)
        if len(slots):
            memory.update(slots, replay_loss=self.losses_of(memory.read(slots), of_replay))
        terms = [Term(learner.prepare(new), of_new)]
        if self.replays(learner.epoch):
            terms.append(Term(learner.replay_of(slots), of_replay))
        return learner.update(terms, goal=of_replay)

    @torch.no_grad()
    def losses_of(self, raw: Batch, loss: LossFn) -> Tensor:
        """Return the losses (n,) of raw examples, without augmentation and in evaluation mode."""
        batch = self.learner.unaugmented(raw)
        with evaluating(self.learner.model):
            return loss(self.learner.outputs(batch.inputs), batch.labels).cpu()

    def remember(self, new: Batch, task: Task) -> Placement | None:
        """Offer the part of the batch that has the lowest loss."""
        count = max(1, round((1 - self.settings.drop) * new.size))
        rows = self.losses.topk(count, largest=False).indices
        rows = rows[not_in_memory(self.learner.memory, new.at(rows))]
        return offer_step(self, new.at(rows), task, loss=self.losses[rows])

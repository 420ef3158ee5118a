"""MIR (Aljundi et al. 2019): replay what the coming update would harm most."""

from typing import Any, final

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.memory import Selection
from metasp.methods.base import Method, Phase
from metasp.methods.context import Step, TrainingContext
from metasp.methods.gradients import after_virtual_step, with_parameters_of
from metasp.methods.settings import MIRSettings
from metasp.types import Batch


@final
class MIR(Method):
    weighted_sum = True
    needs = ("elementwise",)
    Settings = MIRSettings
    settings: MIRSettings

    @classmethod
    def check(cls, settings: Any, memory_batch: int, selection: Selection) -> None:
        if settings.candidates <= memory_batch:
            raise UserError(
                f"mir takes the {memory_batch} most harmed (memory_batch) of "
                f"{settings.candidates} candidates, so it would take them all: give more "
                "candidates, or use er."
            )

    def step(self, new: Batch, phase: Phase) -> Step:
        learner = self.learner
        batch = learner.prepare(new)
        if not len(learner.memory):
            return learner.update(batch)
        candidates = learner.replay(self.settings.candidates)
        if candidates.size > learner.plan.memory_batch:
            harm = interference(learner, batch, candidates)
            candidates = candidates.at(harm.topk(learner.plan.memory_batch).indices)
        return learner.update(Batch.join([batch, candidates]))


@torch.no_grad()
def interference(learner: TrainingContext, batch: Batch, candidates: Batch) -> Tensor:
    """By how much a step on `batch` would raise the loss of each candidate, shape (n,)."""
    with with_parameters_of(learner, after_virtual_step(learner, batch), candidates.size):
        after = learner.losses(candidates)
    with with_parameters_of(learner, {}, candidates.size):
        return after - learner.losses(candidates)

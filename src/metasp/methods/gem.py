"""GEM (Lopez-Paz and Ranzato 2017): the update opposes the gradient of no past task's memory."""

from typing import final

import torch
from torch import Tensor

from metasp.methods.context import Step
from metasp.methods.gradients import (
    descend_along,
    passing_gradient,
    quiet_gradient,
    training_gradient,
)
from metasp.methods.method import Method, Phase
from metasp.methods.projection import agreeing_with_all
from metasp.methods.settings import GEMSettings
from metasp.types import Batch, Task

PORTION = 128  # examples differentiated at a time, to bound the activations held


@final
class GEM(Method):
    observable = False
    boundaries = True
    Settings = GEMSettings
    lr = 0.03
    selection = "class-balanced"
    settings: GEMSettings
    stored = ("current",)
    current = 0

    def begin_task(self, task: Task) -> None:
        self.current = task.index

    def step(self, new: Batch, phase: Phase) -> Step:
        learner, settings = self.learner, self.settings
        past = [self.memory_gradient(task) for task in self.past_tasks()]
        loss, gradient = training_gradient(learner, learner.prepare(new))
        projected = gradient
        if past:
            rows = torch.stack(past)
            projected = agreeing_with_all(gradient, rows, settings.margin, settings.ridge)
        descend_along(learner, projected)
        return Step(loss, {"projected": float(projected is not gradient)})

    def past_tasks(self) -> list[int]:
        """The tasks before this one that the memory holds examples of."""
        held = set(self.learner.memory.tasks.tolist())
        return sorted(task for task in held if 0 <= task < self.current)

    def memory_gradient(self, task: int) -> Tensor:
        """The gradient (p,) of all that the memory holds of one task."""
        learner = self.learner
        slots = torch.nonzero(learner.memory.tasks == task).flatten()
        batch = learner.prepare_replay(learner.memory.read(slots))
        if not self.settings.memory_statistics:
            return quiet_gradient(learner, batch, PORTION)
        return passing_gradient(learner, batch, PORTION)

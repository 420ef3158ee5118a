"""GMED (Jin et al. 2021): replayed examples are edited to be what the model is about to forget."""

from typing import Any, final

import torch
from torch import Tensor

from metasp.memory import Column
from metasp.methods.base import Method, Phase
from metasp.methods.context import Step, TrainingContext
from metasp.methods.gradients import Named, after_virtual_step, trainable, with_parameters_of
from metasp.methods.settings import GMEDSettings
from metasp.trees import one_tensor
from metasp.types import Batch


@final
class GMED(Method):
    needs = ("elementwise", "real inputs")
    Settings = GMEDSettings
    columns = (Column("edits", dtype=torch.long),)
    settings: GMEDSettings

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        learner.memory.floats = True  # an edit is smaller than a byte's step

    def step(self, new: Batch, phase: Phase) -> Step:
        learner, memory = self.learner, self.learner.memory
        batch = learner.prepare(new)
        if not len(memory):
            return learner.update(batch)
        slots = memory.draw(learner.plan.memory_batch, learner.streams["replay"])
        held = memory.read(slots)
        drawn = learner.unaugmented(held)
        inputs = one_tensor(drawn.inputs, "gmed")
        direction = self.direction(drawn, after_virtual_step(learner, batch))
        edits = memory["edits"][slots]
        rate = self.rates(edits).to(inputs).view(-1, *[1] * (inputs.dim() - 1))
        memory.edit(slots, learner.transform.undo(inputs + rate * direction))
        memory.update(slots, edits=edits + 1)
        return learner.update(Batch.join([batch, learner.prepare_replay(memory.read(slots))]))

    def direction(self, drawn: Batch, after: Named) -> Tensor:
        """∇x of what the virtual step adds to the mean loss, less β times the present one, in the
        shape of the inputs."""
        weight = self.settings.loss_weight * {"text": 1, "code": -1}[self.settings.loss_sign]
        present = {name: p.detach() for name, p in trainable(self.learner.model).items()}
        at = one_tensor(drawn.inputs, "gmed").detach().requires_grad_()
        drawn = drawn._replace(inputs=at)
        slopes = []
        for params, factor in ((after, 1), (present, -(1 + weight))):
            with with_parameters_of(self.learner, params, drawn.size):
                goal = factor * self.learner.losses(drawn).mean()
                slopes.append(torch.autograd.grad(goal, at)[0])
        return slopes[0] + slopes[1]

    def rates(self, edits: Tensor) -> Tensor:
        """The step size of the next edit of examples that were edited so often, shape (n,)."""
        return self.settings.edit_rate * (1 - self.settings.edit_decay) ** edits

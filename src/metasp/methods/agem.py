"""A-GEM (Chaudhry et al. 2019): the update never opposes the gradient of a memory batch."""

from typing import final

from metasp.methods.context import Step
from metasp.methods.gradients import descend_along, quiet_gradient, training_gradient
from metasp.methods.method import Method, Phase
from metasp.methods.projection import agreeing
from metasp.types import Batch


@final
class AGEM(Method):
    observable = False
    lr = 0.03
    selection = "class-balanced"

    def step(self, new: Batch, phase: Phase) -> Step:
        learner = self.learner
        loss, gradient = training_gradient(learner, learner.prepare(new))
        projected = gradient
        if len(learner.memory):
            reference = quiet_gradient(learner, learner.replay())
            projected = agreeing(gradient, reference)
        descend_along(learner, projected)
        return Step(loss, {"projected": float(projected is not gradient)})

"""Fine-tuning: SGD on the new data and nothing else; the lower bound."""

from typing import final

from metasp.methods.context import Step
from metasp.methods.method import Method, Phase
from metasp.types import Batch


@final
class Finetune(Method):
    schedules = False
    observable = False
    selection = None

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.prepare(new))

"""Experience replay: one pass over the new batch together with a batch from memory."""

from typing import final

from metasp.methods.context import Step
from metasp.methods.method import Method, Phase
from metasp.types import Batch


@final
class ER(Method):
    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))

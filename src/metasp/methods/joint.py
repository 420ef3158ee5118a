"""Joint training: every task trains on all data seen so far; the upper bound."""

from collections.abc import Sequence
from typing import final

from metasp.methods.context import Step
from metasp.methods.method import Method, Phase, validation_of
from metasp.types import Batch, Examples, Task


@final
class Joint(Method):
    schedules = False
    observable = False
    selection = None

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        plan = self.learner.plan
        examples = Examples.join([task.train for task in seen])
        return [Phase("joint", plan.epochs, plan.batch_size, len(examples), lambda: examples)]

    def held_out(self, seen: Sequence[Task]) -> Sequence[Examples]:
        return validation_of(seen)

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.prepare(new))

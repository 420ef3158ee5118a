"""Experience replay, and the bounds around it: fine-tuning on new data alone, and joint training
on all data seen so far."""

from collections.abc import Sequence
from typing import final

from metasp.methods.base import Method, Phase, validation_of
from metasp.methods.context import Step
from metasp.types import Batch, Examples, Task


@final
class ER(Method):
    weighted_sum = True

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


@final
class Finetune(Method):
    weighted_sum = True
    selection = None

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.prepare(new))


@final
class Joint(Method):
    weighted_sum = True
    selection = None

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        plan = self.learner.plan
        examples = Examples.join([task.train for task in seen])
        return [Phase("joint", plan.epochs, plan.batch_size, len(examples), lambda: examples)]

    def held_out(self, seen: Sequence[Task]) -> Sequence[Examples]:
        return validation_of(seen)

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.prepare(new))

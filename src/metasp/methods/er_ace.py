"""ER-ACE (Caccia et al. 2022): new examples compete among the classes of their task alone."""

from collections.abc import Iterable
from typing import Any, final

from metasp.methods.base import Method, Phase
from metasp.methods.context import Step, TrainingContext
from metasp.methods.losses import Term, cross_entropy_among
from metasp.types import Batch, Task


@final
class ERACE(Method):
    weighted_sum = True
    needs = ("classes", "own loss")
    stored = ("present", "seen")

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.present: list[int] = []  # the classes of the task at hand
        self.seen: list[int] = []  # and those of all tasks up to it

    def begin_task(self, task: Task) -> None:
        self.meet(task.classes)

    def meet(self, classes: Iterable[int]) -> None:
        """Know which classes come at present."""
        self.present = sorted(classes)
        self.seen = sorted({*self.seen, *self.present})

    def step(self, new: Batch, phase: Phase) -> Step:
        learner = self.learner
        if learner.open and learner.current is not None:
            self.meet({*learner.current.labels.tolist()})
        # Sec. 4.1: L_ce(X_in; C_present) + L_ce(X_replay; C_seen)
        terms = [
            Term(learner.prepare(new), cross_entropy_among(self.present)),
            Term(learner.replay(), cross_entropy_among(self.seen)),
        ]
        return learner.update(terms, goal=cross_entropy_among(self.seen))

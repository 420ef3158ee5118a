"""DER and DER++ (Buzzega et al. 2020): replay what the network said when an example was stored.

`der` is `derpp` without its third term, the labels of a second draw from memory."""

from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from metasp.memory import Column
from metasp.methods.base import Method, Phase
from metasp.methods.context import Step, TrainingContext
from metasp.methods.losses import Term, distance_to
from metasp.methods.settings import DERSettings
from metasp.types import Batch, Task


@final
class DER(Method):
    weighted_sum = True
    Settings = DERSettings
    lr = 0.03
    columns = (Column("logits", of="outputs"),)
    settings: DERSettings

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.outputs: Tensor | None = None  # of the new examples in the last step

    def step(self, new: Batch, phase: Phase) -> Step:
        """One pass over the new batch, a draw x′ that is held to its stored outputs, and a draw x″,
        independent of it, that is learned by its labels."""
        learner, memory = self.learner, self.learner.memory
        alpha, beta = self.settings.alpha, self.settings.beta
        count = learner.plan.memory_batch
        first = memory.draw(count if alpha else 0, learner.streams["replay"])
        second = memory.draw(count if beta else 0, learner.streams["replay-labels"])
        terms = [  # Eq. 6: CE(x, y) + α‖h(x′) − z′‖² + β CE(x″, y″)
            Term(learner.prepare(new)),
            Term(learner.replay_of(first), distance_to(self.stored_outputs(first)), alpha, False),
            Term(learner.replay_of(second), weight=beta),
        ]
        report = learner.update(terms)
        self.outputs = None if report.outputs is None else report.outputs[: new.size]
        return report

    def stored_outputs(self, slots: Tensor) -> Tensor:
        """Return what the network said of the examples in these slots when they were stored."""
        return self.learner.memory["logits"][slots].to(self.learner.device)

    def column_values(self, stored: Batch, rows: Tensor | None = None) -> Mapping[str, Tensor]:
        """What the network said to these examples in the step that they come from, to the view
        that it was trained on; at a task's end, or where nobody knows that, what it says now."""
        if rows is None or self.outputs is None:
            return super().column_values(stored, rows)
        return {"logits": self.outputs[rows].cpu()}

    def begin_task(self, task: Task) -> None:
        self.outputs = None

"""ER-ACE (Caccia et al. 2022): new examples compete among the classes of their task alone."""

from collections.abc import Iterable, Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp.methods.context import Objective, Step, TrainingContext
from metasp.methods.method import Method, Phase
from metasp.methods.terms import members, shares
from metasp.types import Batch, State, Task


@final
class ERACE(Method):
    classes = True
    own_loss = True

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
        batch = learner.with_replay(new)
        old = batch.size - new.size
        incoming = torch.arange(batch.size, device=learner.device) < new.size
        objective = Objective(
            self.losses,
            targets=torch.stack([batch.labels.float(), incoming.float()], dim=1),
            shares=shares((1.0, new.size), (1.0, old)).to(learner.device),
            goal=lambda labels: torch.stack([labels.float(), torch.zeros_like(labels)], dim=1),
        )
        return learner.update(batch, objective=objective)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy (n,) among the classes of the task for incoming rows, among all classes
        seen for those from memory; a wrong label from elsewhere competes too."""
        labels, incoming = targets[:, 0].long(), targets[:, 1:] == 1
        width = outputs.shape[1]
        present, seen = (members(known, width, outputs) for known in (self.present, self.seen))
        competes = torch.where(incoming, present, seen)
        competes |= torch.arange(width, device=outputs.device) == labels[:, None]
        return F.cross_entropy(outputs.masked_fill(~competes, -torch.inf), labels, reduction="none")

    def state(self) -> State:
        return {"present": torch.tensor(self.present), "seen": torch.tensor(self.seen)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.present, self.seen = state["present"].tolist(), state["seen"].tolist()

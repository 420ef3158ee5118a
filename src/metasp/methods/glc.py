"""GLC (Hendrycks et al. 2018): a loss corrected by how verified examples are mistaken, on ER."""

from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp.methods.base import Method, Phase
from metasp.methods.context import Step, TrainingContext, evaluating
from metasp.methods.losses import Term
from metasp.methods.settings import GLCSettings
from metasp.types import Batch, Task

LEAST = 1e-8  # of a corrected probability


@final
class GLC(Method):
    needs = ("boundaries", "classes")
    Settings = GLCSettings
    selection = "class-balanced"
    settings: GLCSettings
    stored = ("mistakes", "present", "corrects")

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.mistakes = torch.zeros(0, 0)  # [true, given]: chance of a given label
        self.present: list[int] = []  # the classes of the task at hand
        self.corrects = False  # whether it knows how this task's are mistaken

    def begin_task(self, task: Task) -> None:
        self.present, self.corrects = sorted(task.classes), False

    def step(self, new: Batch, phase: Phase) -> Step:
        learner = self.learner
        if not self.corrects and learner.epoch + 1 >= self.settings.correct_from:
            self.look()
        slots = self.slots()
        verified = learner.memory.pinned[slots].to(learner.device)
        count = new.size + len(slots)
        # Alg. 1, a mean over all rows: −log Σ_c p_c·C[c, y], of verified ones the plain loss.
        terms = [
            Term(learner.prepare(new), self.corrected, new.size / count),
            Term(learner.replay_of(slots), partial(self.mixed, verified), len(slots) / count),
        ]
        return learner.update(terms)

    def slots(self) -> Tensor:
        """What to replay: until it knows how a task's classes are mistaken, not their verified
        examples, which would be fitted and show no mistakes."""
        memory, stream = self.learner.memory, self.learner.streams["replay"]
        slots = memory.occupied
        if not self.corrects:
            mine = torch.isin(memory.labels[slots].cpu(), torch.tensor(self.present))
            slots = slots[~(mine & memory.pinned[slots])]
        return memory.draw(self.learner.plan.memory_batch, stream, slots)

    def corrected(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return −log Σ_c p_c·C[c, y] of each row (n,)."""
        known = len(self.mistakes)
        if not known:
            return F.cross_entropy(outputs, labels, reduction="none")
        width = outputs.shape[1]
        matrix = torch.eye(width, dtype=outputs.dtype, device=outputs.device)
        matrix[:known, :known] = self.mistakes.to(outputs)
        given = (outputs.softmax(1) @ matrix).gather(1, labels[:, None])[:, 0]
        return -given.clamp_min(LEAST).log()

    def mixed(self, verified: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the plain loss of verified rows, the corrected one of others, (n,)."""
        plain = F.cross_entropy(outputs, labels, reduction="none")
        return torch.where(verified, plain, self.corrected(outputs, labels))

    def look(self) -> None:
        """How the task's verified examples are answered now: the mean answer of each class."""
        learner, memory = self.learner, self.learner.memory
        self.corrects = True
        slots = torch.nonzero(memory.pinned).flatten()
        slots = slots[torch.isin(memory.labels[slots].cpu(), torch.tensor(self.present))]
        if not len(slots):
            return
        batch = learner.unaugmented(memory.read(slots))
        with evaluating(learner.model), torch.no_grad():
            answers = learner.outputs(batch.inputs)[:, self.present].softmax(1).cpu()
        size = max(len(self.mistakes), self.present[-1] + 1)
        matrix = torch.eye(size)
        matrix[: len(self.mistakes), : len(self.mistakes)] = self.mistakes
        labels = batch.labels.cpu()
        for label in sorted(set(labels.tolist())):
            matrix[label] = 0
            matrix[label, self.present] = answers[labels == label].mean(0)
        self.mistakes = matrix

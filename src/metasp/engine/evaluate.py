"""Testing: one pass of the model, scored class-incrementally and task-incrementally."""

from collections.abc import Sequence

import torch
from torch import Tensor

from metasp.methods.learner import Learner, evaluating
from metasp.types import Task

BATCH = 500


def evaluate(learner: Learner, task: Task, seen: Sequence[int]) -> tuple[float, float]:
    """Accuracy on a task's test set: over all `seen` classes, and over the task's own."""
    model, test = learner.model, task.test
    right = torch.zeros(2, dtype=torch.long)
    with evaluating(model), torch.no_grad():
        for start in range(0, len(test), BATCH):
            batch = learner.plain(test.take(torch.arange(start, min(start + BATCH, len(test)))))
            logits = learner.outputs(batch.inputs)
            for row, classes in enumerate((seen, task.classes)):
                right[row] += int((best_of(logits, classes) == batch.labels).sum())
    class_il, task_il = (right / max(1, len(test))).tolist()
    return class_il, task_il


def best_of(logits: Tensor, classes: Sequence[int]) -> Tensor:
    """The most likely of the given classes, shape (n,)."""
    index = torch.tensor(classes, device=logits.device)
    return index[logits[:, index].argmax(1)]

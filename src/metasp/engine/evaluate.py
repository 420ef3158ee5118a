"""Testing: one pass of the model, scored class-incrementally and task-incrementally."""

from collections.abc import Sequence

import torch
from torch import Tensor

from metasp.methods.learner import Learner
from metasp.methods.method import over_task
from metasp.types import Examples, Task


def evaluate(learner: Learner, task: Task, seen: Sequence[int]) -> tuple[float, float]:
    """Accuracy on a task's test set: over all `seen` classes, and over the task's own."""
    test = task.test
    if not len(test):
        return 0.0, 0.0
    logits, labels = all_outputs(learner, test), test.labels.cpu()
    right = [(best_of(logits, classes) == labels).sum() for classes in (seen, task.classes)]
    class_il, task_il = (torch.stack(right) / len(test)).tolist()
    return class_il, task_il


def all_outputs(learner: Learner, examples: Examples) -> Tensor:
    """What the model as it stands says to each example, on the CPU."""
    return over_task(learner, examples, lambda batch: learner.outputs(batch.inputs))


def best_of(logits: Tensor, classes: Sequence[int]) -> Tensor:
    """The most likely of the given classes, shape (n,)."""
    index = torch.tensor(classes, device=logits.device)
    return index[logits[:, index].argmax(1)]

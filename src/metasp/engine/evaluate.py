"""Testing: one pass of the model, scored class-incrementally and task-incrementally."""

from collections.abc import Sequence

import torch
from torch import Tensor

from metasp.methods.context import TrainingContext
from metasp.methods.method import over_task
from metasp.types import Examples, Task


def evaluate(learner: TrainingContext, task: Task, seen: Sequence[int]) -> tuple[float, float]:
    """Accuracy on a task's test set: over all `seen` classes, and over the task's own."""
    test = task.test
    if not len(test):
        return 0.0, 0.0
    scores, labels = all_scores(learner, test), test.labels.cpu()
    right = [(best_of(scores, classes) == labels).sum() for classes in (seen, task.classes)]
    class_il, task_il = (torch.stack(right) / len(test)).tolist()
    return class_il, task_il


def all_scores(learner: TrainingContext, examples: Examples) -> Tensor:
    """What speaks for each class (n, classes), as the method predicts, on the CPU."""
    scores = learner.scoring()
    return over_task(learner, examples, lambda batch: scores(batch.inputs))


def best_of(scores: Tensor, classes: Sequence[int]) -> Tensor:
    """The most likely of the given classes, shape (n,)."""
    index = torch.tensor(classes, device=scores.device)
    return index[scores[:, index].argmax(1)]

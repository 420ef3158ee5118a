"""Testing, and tables of the examples of a finished task: their influence, and how they were
learned."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from metasp import trees
from metasp.example_stats import TRAINING
from metasp.methods.base import over_task
from metasp.methods.context import TrainingContext
from metasp.methods.odds import Judged, judge_labels
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


Columns = Mapping[str, Sequence[Any]]

FATES = ("kept", "learned", "weighted down", "dropped")
"""What may become of an example of a task: it is in memory at the task's end; it was learned like
the others; its mean weight was below half of an even one; it was hardly learned at all."""
HALF, HARDLY = 0.5, 0.05


def note_influence(context: TrainingContext) -> None:
    """Write the mean fused influence of this task's steps beside each example in memory."""
    memory = context.memory
    slots = memory.occupied
    means = context.influence_stats.means(memory.ids[slots], "fused")
    known = ~means.isnan()
    memory.update(slots[known], influence=means[known])


def influence_table(context: TrainingContext, seen: Sequence[Task]) -> Columns:
    """Return one row per example measured in the last of the `seen` tasks, by id; no columns if
    nothing was measured. Only classes are listed: other labels may be whole pictures."""
    if not len(context.influence_stats):
        return {}
    memory, task = context.memory, seen[-1]
    columns = {name: list(c.tolist()) for name, c in context.influence_stats.table().items()}
    label: dict[int, int] = {}
    if task.classes:  # of open tasks nobody else knows what is no longer new
        label.update(zip(memory.ids.tolist(), memory.labels.tolist()))
    for each in (each.with_trusted_in_train() for each in seen if each.classes):
        label.update(zip(each.train.ids.tolist(), each.train.labels.tolist()))
    new = set(task.train.ids.tolist())
    in_memory = set(memory.ids[memory.occupied].tolist())
    ids = columns["id"]
    columns["task"] = [task.index] * len(ids)
    columns["label"] = [label.get(i) for i in ids]
    columns["source"] = ["new" if i in new else "memory" for i in ids]
    columns["kept"] = [i in in_memory for i in ids]
    columns["predicted"] = predicted_labels(context, seen, ids)
    return columns


def score_table(context: TrainingContext, task: Task) -> Columns:
    """Return one row per training example of a task that was in an update: how it was learned, and
    which class the model gave it last; of labels that are numbers also the number, and the model's
    present output. No columns for a method that does not train by `update`."""
    stats, train = context.training_stats.examples, task.train
    counts = stats.counts(train.ids)
    met = counts.nonzero()[:, 0]
    if not len(met):
        return {}
    examples = train.only(met)
    ids = examples.ids
    columns: dict[str, Sequence[Any]] = {
        "id": ids.tolist(),
        "label": examples.labels.tolist() if task.classes else [None] * len(ids),
        "count": counts[met].tolist(),
    }
    if not task.classes:
        columns |= value_columns(context, examples)
    means = stats.means(ids)
    for at, quantity in enumerate(TRAINING):
        columns[quantity] = or_none(means[:, at])
    columns |= odds_columns(context, task, examples)
    right = None if context.weigh is None else context.weigh.label_right(context, ids)
    columns["score"] = [None] * len(ids) if right is None else or_none(2 * right - 1)
    predicted = or_none(stats.last(ids, "predicted"))
    columns["predicted"] = [None if label is None else int(label) for label in predicted]
    in_memory = torch.isin(ids, context.memory.ids[context.memory.occupied]).tolist()
    columns["kept"] = in_memory
    columns["fate"] = [fate(stays, weight) for stays, weight in zip(in_memory, columns["weight"])]
    return columns


def odds_columns(
    context: TrainingContext, task: Task, examples: Examples
) -> dict[str, list[float | None]]:
    """Return how likely the labels of training examples of the task are right: the logarithms of
    the odds, and the chances that they are wrong; None where outputs are not kept."""
    outputs, classes = context.training_stats.outputs, context.training_stats.classes
    if not len(classes) or not task.classes:
        return dict.fromkeys(Judged._fields, [None] * len(examples))
    groups = [examples] if task.trusted is None else [examples, task.trusted]
    ids = torch.cat([group.ids for group in groups])
    labels = torch.cat([group.labels.cpu() for group in groups])
    columns = torch.searchsorted(classes, labels).clamp_(max=len(classes) - 1)
    known = classes[columns] == labels
    means = torch.where(known[:, None], outputs.means(ids), torch.nan)
    new, verified = slice(len(examples)), slice(len(examples), None)
    judged = judge_labels(means[new], columns[new], means[verified], columns[verified])
    return {name: or_none(values) for name, values in judged._asdict().items()}


def value_columns(context: TrainingContext, examples: Examples) -> dict[str, list[float | None]]:
    """Return the number that each example is labelled with (`target`) and the model's present
    output (`said`), in one pass in eval mode; None where they are not single numbers."""
    nothing: list[float | None] = [None] * len(examples)
    if examples.labels[:1].numel() != 1:
        return {"target": nothing, "said": nothing}
    said = over_task(context, examples, lambda batch: context.outputs(batch.inputs))
    targets = or_none(examples.labels.cpu().double().flatten())
    fits = said.numel() == len(nothing)
    return {"target": targets, "said": or_none(said.flatten()) if fits else nothing}


def predicted_labels(
    context: TrainingContext, seen: Sequence[Task], ids: Sequence[int]
) -> list[int | None]:
    """Return the class, of all seen, that the model as it stands gives each example; None for one
    that is no longer at hand, or where labels are not classes. It looks without augmentation and in
    eval mode, so that training goes on as if it had not looked."""
    wanted, predicted = torch.tensor(ids), dict[int, int]()
    classes = sorted(set(chain.from_iterable(task.classes for task in seen)))
    for task in (each.with_trusted_in_train() for each in seen) if classes else ():
        rows = torch.isin(task.train.ids, wanted).nonzero()[:, 0]
        if not len(rows) or not trees.size(task.train.source):
            continue
        examples = task.train.only(rows)
        scores = all_scores(context, examples)
        if scores.dim() == 2 and scores.shape[1] > classes[-1]:
            predicted.update(zip(examples.ids.tolist(), best_of(scores, classes).tolist()))
    return [predicted.get(identity) for identity in ids]


def fate(in_memory: bool, weight: float | None) -> str:
    """Return what became of an example, by its mean weight relative to an even one."""
    if in_memory:
        return "kept"
    if weight is None or weight >= HALF:
        return "learned"
    return "weighted down" if weight >= HARDLY else "dropped"


def or_none(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]

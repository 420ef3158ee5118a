"""What a task's influences come to: noted in the memory, and as a table to keep."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metasp import trees
from metasp.engine.evaluate import all_scores, best_of
from metasp.influence import Ledger
from metasp.memory import Memory
from metasp.methods.context import TrainingContext
from metasp.methods.method import over_task
from metasp.methods.odds import Judged, judge_labels
from metasp.methods.tally import QUANTITIES, UNKNOWN, fate, rows_of
from metasp.types import Examples, Task


def note_influence(memory: Memory, ledger: Ledger) -> None:
    """Write the mean fused influence of this task's steps beside each example in memory."""
    slots = memory.occupied
    means = torch.from_numpy(ledger.means(memory.ids[slots])[:, ledger.quantities.index("fused")])
    known = ~means.isnan()
    memory.update(slots[known], influence=means[known])


def influence_columns(
    ledger: Ledger, memory: Memory, seen: Sequence[Task]
) -> Mapping[str, Sequence[Any]]:
    """One row for each example met in the task, by id; nothing if no influence was computed. Only
    classes are told: other labels may be whole pictures."""
    if not len(ledger):
        return {}
    columns = {name: column.tolist() for name, column in ledger.arrays().items()}
    label: dict[int, int] = {}
    if seen[-1].classes:  # of open tasks nobody else knows what is no longer new
        label.update(zip(memory.ids.tolist(), memory.labels.tolist()))
    for task in (each.with_trusted_in_train() for each in seen if each.classes):
        label.update(zip(task.train.ids.tolist(), task.train.labels.tolist()))
    new = set(seen[-1].train.ids.tolist())
    kept = set(memory.ids[memory.occupied].tolist())
    ids = columns["id"]
    columns["task"] = [seen[-1].index] * len(ids)
    columns["label"] = [label.get(i) for i in ids]
    columns["source"] = ["new" if i in new else "memory" for i in ids]
    columns["kept"] = [i in kept for i in ids]
    return columns


def score_columns(learner: TrainingContext, task: Task) -> Mapping[str, Sequence[Any]]:
    """One row for each training example of a task that was in an update: how it fared in them, and
    which class the model gave it last; of labels that are numbers also the number, and what the
    model says now. Nothing for a method that does not train by `update`."""
    tally, train = learner.tally, task.train
    place, known = tally.rows(train.ids)
    met = known & (tally.counts[place, 0] > 0) if len(tally.ids) else known
    if not met.any():
        return {}
    ids, rows = train.ids[met], place[met]
    columns: dict[str, Sequence[Any]] = {
        "id": ids.tolist(),
        "label": train.labels.cpu()[met].tolist() if task.classes else [None] * len(ids),
        "count": tally.counts[rows, 0].tolist(),
    }
    if not task.classes:
        columns |= value_columns(learner, train, met)
    for quantity in QUANTITIES:
        columns[quantity] = known_or_none(tally.means(ids, quantity))
    right = learner.weigh.label_right(learner) if learner.weigh is not None else None
    columns |= judged_columns(learner, task, met)
    columns["score"] = [None] * len(ids) if right is None else known_or_none(2 * right[rows] - 1)
    guesses = tally.predicted[rows].tolist()
    columns["predicted"] = [None if guess == UNKNOWN else guess for guess in guesses]
    kept = torch.isin(ids, learner.memory.ids[learner.memory.occupied]).tolist()
    columns["kept"] = kept
    columns["fate"] = [fate(held, weight) for held, weight in zip(kept, columns["weight"])]
    return columns


def judged_columns(
    learner: TrainingContext, task: Task, met: Tensor
) -> dict[str, list[float | None]]:
    """How likely the labels of the training examples that were met are right: the logarithms of
    the odds, and the chances that they are wrong; None where nobody can tell, as what the model
    said of them is not kept."""
    said, train = learner.tally.said, task.train.only(met.nonzero()[:, 0])
    if not len(said.classes) or not task.classes:
        return dict.fromkeys(Judged._fields, [None] * len(train))
    groups = [train] if task.trusted is None else [train, task.trusted]
    ids = torch.cat([group.ids for group in groups])
    labels = torch.cat([group.labels.cpu() for group in groups])
    columns, known = rows_of(said.classes, labels)
    outputs = torch.where(known[:, None], said.means(ids), torch.nan)
    new, sure = slice(len(train)), slice(len(train), None)
    judged = judge_labels(outputs[new], columns[new], outputs[sure], columns[sure])
    return {name: known_or_none(values) for name, values in judged._asdict().items()}


def value_columns(
    learner: TrainingContext, train: Examples, met: Tensor
) -> dict[str, list[float | None]]:
    """The number that each example has been given (`target`) and the one that the model says now,
    in one pass in eval mode; None where they are not single numbers."""
    unknown: list[float | None] = [None] * int(met.sum())
    if train.labels[:1].numel() != 1:
        return {"target": unknown, "said": unknown}
    chosen = train.only(met.nonzero()[:, 0])
    said = over_task(learner, chosen, lambda batch: learner.outputs(batch.inputs))
    targets = known_or_none(chosen.labels.cpu().double().flatten())
    fits = said.numel() == len(unknown)
    return {"target": targets, "said": known_or_none(said.flatten()) if fits else unknown}


def known_or_none(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def predicted_labels(
    learner: TrainingContext, seen: Sequence[Task], ids: Sequence[int]
) -> list[int | None]:
    """The class, of all seen, that the model as it stands gives each example; None for one that is
    no longer at hand, or where labels are not classes. It looks without augmentation and in eval
    mode, so that training goes on as if it had not looked."""
    wanted, found = set(ids), dict[int, int]()
    classes = sorted({label for task in seen for label in task.classes})
    for task in (each.with_trusted_in_train() for each in seen) if classes else ():
        rows = [row for row, name in enumerate(task.train.ids.tolist()) if name in wanted]
        if not rows or not trees.size(task.train.source):
            continue
        chosen = task.train.only(torch.tensor(rows))
        scores = all_scores(learner, chosen)
        if scores.dim() == 2 and scores.shape[1] > classes[-1]:
            found.update(zip(chosen.ids.tolist(), best_of(scores, classes).tolist()))
    return [found.get(identity) for identity in ids]

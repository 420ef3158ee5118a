"""Streams that are dirty on purpose: wrong labels of several kinds, and classes that are rare.

Which rows are wrong is known to the score, never to the training. Test data stays as it is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.types import Examples, Task

Flipped = dict[str, list[int]]
"""Columns task, id, label (the wrong one that was given) and true_label."""

_Flip = Callable[[Task, float, Tensor, torch.Generator], Tensor]


def with_imbalance(tasks: Sequence[Task], share: float, generator: torch.Generator) -> list[Task]:
    """The same stream with every second class of each task rare: a `share` of its train examples
    is left. The first is never rare, so that one-sided noise makes most labels of a rare one
    wrong."""
    if share == 0:
        raise UserError("imbalance must be greater than 0: 1 leaves all classes as they are.")
    thinned = []
    for task in tasks:
        _need_two_classes(task, "class to be rare", "--imbalance")
        keep = torch.ones(len(task.train), dtype=torch.bool)
        for label in task.classes[1::2]:
            rows = torch.nonzero(task.train.labels == label).flatten()
            order = torch.randperm(len(rows), generator=generator)
            keep[rows[order[max(1, round(share * len(rows))) :]]] = False
        train = task.train.only(torch.nonzero(keep).flatten())
        thinned.append(replace(task, train=train))
    return thinned


def with_label_noise(
    tasks: Sequence[Task], part: float, kind: str, scope: str, generator: torch.Generator
) -> list[Task]:
    """The same stream with a `part` of the train labels of each task (symmetric) or class (the
    other kinds) wrong. Wrong labels are other classes of the task, or of all seen up to it."""
    if kind == "junk":
        _refuse_scope(kind, scope)
        return _with_junk(tasks, part, generator)
    if kind == "one-sided":
        _refuse_scope(kind, scope)
    flips: dict[str, _Flip] = {
        "symmetric": _symmetric,
        "one-sided": _one_sided,
        "pairs": partial(_pairs, {}),
    }
    noisy = []
    seen: set[int] = set()
    for task in tasks:
        seen |= set(task.classes)
        pool = torch.tensor(sorted(seen if scope == "seen" else set(task.classes)))
        if len(pool) < 2:
            _need_two_classes(task, "label to give", "--label-noise")
        labels = flips[kind](task, part, pool, generator)
        noisy.append(replace(task, train=replace(task.train, labels=labels)))
    return noisy


def wrong_labels(tasks: Sequence[Task], ids: Tensor, true_labels: Tensor) -> Flipped:
    """Which train examples of a stream have another label than the true one of their id."""
    flipped: Flipped = {"task": [], "id": [], "label": [], "true_label": []}
    order = ids.argsort()
    for task in tasks:
        train = task.train
        true = true_labels[order][torch.searchsorted(ids[order], train.ids)]
        rows = torch.nonzero(train.labels != true).flatten()
        columns = (torch.full_like(rows, task.index), train.ids[rows], train.labels[rows])
        for name, column in zip(flipped, (*columns, true[rows])):
            flipped[name] += column.tolist()
    return flipped


def _symmetric(task: Task, part: float, pool: Tensor, generator: torch.Generator) -> Tensor:
    """Any other class of the pool, each as likely."""
    size = len(task.train)
    rows = torch.randperm(size, generator=generator)[: round(part * size)].sort().values
    labels = task.train.labels.clone()
    # A step of 1..k-1 around the circle of k classes never comes back to the true one.
    step = torch.randint(1, max(2, len(pool)), (len(rows),), generator=generator)
    labels[rows] = pool[(torch.searchsorted(pool, labels[rows]) + step) % len(pool)]
    return labels


def _one_sided(task: Task, part: float, pool: Tensor, generator: torch.Generator) -> Tensor:
    """The first class of each two neighbours is taken for the second, never the other way."""
    labels = task.train.labels.clone()
    for label, neighbour in zip(task.classes[::2], task.classes[1::2]):
        labels[_drawn(task.train.labels, label, part, generator)] = neighbour
    return labels


def _pairs(
    mistaken: dict[int, int], task: Task, part: float, pool: Tensor, generator: torch.Generator
) -> Tensor:
    """Each class is taken for one other of the pool, the same one wherever it comes again."""
    labels = task.train.labels.clone()
    for label in task.classes:
        if label not in mistaken:
            others = pool[pool != label]
            mistaken[label] = int(others[torch.randint(len(others), (), generator=generator)])
        labels[_drawn(task.train.labels, label, part, generator)] = mistaken[label]
    return labels


def _with_junk(tasks: Sequence[Task], part: float, generator: torch.Generator) -> list[Task]:
    """A part of each class of each task changes places with examples of other classes, of any
    task, and these get its label. So each example is in the stream once, under its own id, and
    each label is as frequent as before."""
    train = Examples.join([task.train for task in tasks])
    stretches, chosen = [], []
    start = 0
    for task in tasks:
        stretches.append(torch.arange(start, start + len(task.train)))
        for label in task.classes:
            chosen.append(start + _drawn(task.train.labels, label, part, generator))
        start += len(task.train)
    places = torch.cat(chosen)
    origin = torch.arange(len(train))
    origin[places] = places[_exchanged(train.labels[places], generator)]
    junk = replace(train, rows=train.rows[origin], ids=train.ids[origin])
    return [replace(task, train=junk.only(rows)) for task, rows in zip(tasks, stretches)]


def _exchanged(labels: Tensor, generator: torch.Generator) -> Tensor:
    """An order of the n rows that puts at each place a row with another label."""
    size = len(labels)
    if size and 2 * int(labels.bincount().max()) > size:
        raise UserError(
            "junk noise swaps examples between classes, which is not possible where one class has "
            "more than half of them: use --label-noise-kind symmetric, or make the classes more "
            "equal."
        )
    order = torch.randperm(size, generator=generator)
    for place in torch.nonzero(labels[order] == labels).flatten().tolist():
        label = labels[place]
        if labels[order[place]] != label:  # another one's change of places has mended it
            continue
        # There is always one, as at most half of all labels, and of all places, are this one.
        others = torch.nonzero((labels != label) & (labels[order] != label)).flatten()
        other = others[torch.randint(len(others), (), generator=generator)]
        order[[place, int(other)]] = order[[int(other), place]]
    return order


def _drawn(labels: Tensor, label: int, part: float, generator: torch.Generator) -> Tensor:
    """A part of the rows with this label, in their order."""
    rows = torch.nonzero(labels == label).flatten()
    order = torch.randperm(len(rows), generator=generator)
    return rows[order[: round(part * len(rows))]].sort().values


def _need_two_classes(task: Task, purpose: str, flag: str) -> None:
    if len(task.classes) < 2:
        raise UserError(
            f"task {task.index + 1} has one class, so there is no other {purpose}: use fewer "
            f"tasks, or leave out {flag}."
        )


def _refuse_scope(kind: str, scope: str) -> None:
    if scope != "task":
        raise UserError(f"--label-noise-scope does not apply to {kind} noise: leave it out.")

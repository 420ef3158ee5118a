"""Examples that a person has corrected or verified, or that are given as if somebody had."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from metasp.corrections import Corrections, Pairs, words
from metasp.errors import UserError
from metasp.types import Examples, Task


def with_corrections(tasks: Sequence[Task], said: Corrections, classes: int) -> list[Task]:
    """The same stream without what is excluded and with the labels that were given. Verified
    examples are no longer in the train data. An example whose class is one of another task goes
    there, as it would have with the right label from the start."""
    train = Examples.join([task.train for task in tasks])
    home = torch.cat([torch.full((len(task.train),), task.index) for task in tasks])
    missing = sorted(set(said.ids) - set(train.ids.tolist()))
    if missing:
        raise UserError(
            f"no train example of this stream has {words(missing)}: remove them from the "
            "corrections, or check which data these belong to."
        )
    labels, verified = train.labels.clone(), torch.zeros(len(train), dtype=torch.bool)
    place = {identity: row for row, identity in enumerate(train.ids.tolist())}
    for pairs, trusted in ((said.relabel, False), (said.verified, True)):
        rows, given = _rows_and_labels(pairs, place, classes)
        if pairs and not trusted and torch.equal(labels[rows], given):
            raise UserError(
                "the file of --relabel gives each example the label that it has, so nothing would "
                "change: give it a column suggested, or other labels."
            )
        labels[rows] = given
        verified[rows] = trusted
    excluded = torch.isin(train.ids, torch.tensor(said.exclude, dtype=torch.long))
    corrected = replace(train, labels=labels)
    strangers = ~_fits(labels, home, tasks)
    for task in reversed(tasks):  # the first that has the class comes last
        home[strangers & torch.isin(labels, torch.tensor(task.classes))] = task.index
    return [_task(task, corrected, home == task.index, verified, excluded) for task in tasks]


def _fits(labels: Tensor, home: Tensor, tasks: Sequence[Task]) -> Tensor:
    """Whether each example has a class of the task it is in, shape (n,)."""
    fits = torch.zeros(len(labels), dtype=torch.bool)
    for task in tasks:
        fits |= (home == task.index) & torch.isin(labels, torch.tensor(task.classes))
    return fits


def _rows_and_labels(pairs: Pairs, place: dict[int, int], classes: int) -> tuple[Tensor, Tensor]:
    beyond = [label for _, label in pairs if label >= classes]
    if beyond:
        raise UserError(
            f"there is no class {beyond[0]}: classes are numbered from 0 to {classes - 1}."
        )
    rows = torch.tensor([place[identity] for identity, _ in pairs], dtype=torch.long)
    return rows, torch.tensor([label for _, label in pairs], dtype=torch.long)


def _task(
    task: Task, examples: Examples, inside: Tensor, verified: Tensor, excluded: Tensor
) -> Task:
    left = inside & ~verified & ~excluded
    if int(left.sum()) < 2:
        raise UserError(
            f"these corrections leave no examples of task {task.index + 1} to learn from: exclude "
            "or verify fewer of them."
        )
    train = examples.only(torch.nonzero(left).flatten())
    chosen = torch.nonzero(inside & verified).flatten()
    trusted = examples.only(chosen) if len(chosen) else task.trusted
    return replace(task, train=train, trusted=trusted)


def with_trusted(
    tasks: Sequence[Task], count: int, true: tuple[Tensor, Tensor], generator: torch.Generator
) -> list[Task]:
    """The same stream with up to `count` examples of each class of a task verified: they have their
    true label and are no longer in the train data. `true` are the ids and labels of the source. A
    class of which a task holds fewer has all of these, and may have none."""
    ids, labels = true
    order = ids.argsort()
    found = []
    for task in tasks:
        train = task.train
        known = labels[order][torch.searchsorted(ids[order], train.ids)]
        chosen = []
        for label in task.classes:
            rows = torch.nonzero(known == label).flatten()
            chosen.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
        verified = torch.cat(chosen).sort().values
        left = torch.ones(len(train), dtype=torch.bool)
        left[verified] = False
        if int(left.sum()) < 2:
            raise UserError(
                f"{count} verified examples per class leave nothing of task {task.index + 1} to "
                f"learn from: give --trusted {max(1, len(train) // (2 * len(task.classes)))} or "
                "less."
            )
        trusted = replace(train.only(verified), labels=known[verified])
        if task.trusted is not None:
            trusted = Examples.join([task.trusted, trusted])
        rest = train.only(torch.nonzero(left).flatten())
        found.append(replace(task, train=rest, trusted=trusted))
    return found

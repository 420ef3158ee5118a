"""Examples that leave the train data: corrected or verified by a person, or held out to tell when
the training has learned enough."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from metasp.corrections import Corrections, words
from metasp.errors import UserError
from metasp.types import Examples, Task


def with_corrections(tasks: Sequence[Task], corrections: Corrections, classes: int) -> list[Task]:
    """Return the stream without what is excluded and with the labels that were given. Verified
    examples are no longer in the train data. An example whose class is one of another task goes
    there, as it would have with the right label from the start."""
    train = Examples.join([task.train for task in tasks])
    home = torch.cat([torch.full((len(task.train),), task.index) for task in tasks])
    rows = {identity: row for row, identity in enumerate(train.ids.tolist())}
    missing = sorted({*corrections.ids} - {*rows})
    if missing:
        raise UserError(
            f"no train example of this stream has {words(missing)}: remove them from the "
            "corrections, or check which data these belong to."
        )
    labels = train.labels.clone()
    for _, label in (*corrections.relabel, *corrections.verified):
        if label >= classes:
            raise UserError(
                f"there is no class {label}: classes are numbered from 0 to {classes - 1}."
            )
    relabelled = [rows[identity] for identity, _ in corrections.relabel]
    before = labels[relabelled].tolist()
    if relabelled and before == [label for _, label in corrections.relabel]:
        raise UserError(
            "the file of --relabel gives each example the label that it has, so nothing would "
            "change: give it a column suggested, or other labels."
        )
    for identity, label in (*corrections.relabel, *corrections.verified):
        labels[rows[identity]] = label
    verified = torch.isin(train.ids, torch.tensor([i for i, _ in corrections.verified]).long())
    excluded = torch.isin(train.ids, torch.tensor(corrections.exclude, dtype=torch.long))
    stays = torch.zeros(len(train), dtype=torch.bool)  # its label is a class of its task
    for task in tasks:
        stays |= (home == task.index) & torch.isin(labels, torch.tensor(task.classes))
    for task in reversed(tasks):  # the first that has the class comes last
        home[~stays & torch.isin(labels, torch.tensor(task.classes))] = task.index
    corrected = replace(train, labels=labels)
    changed = []
    for task in tasks:
        inside = home == task.index
        remaining = inside & ~verified & ~excluded
        if int(remaining.sum()) < 2:
            raise UserError(
                f"these corrections leave no examples of task {task.index + 1} to learn from: "
                "exclude or verify fewer of them."
            )
        chosen = torch.nonzero(inside & verified).flatten()
        trusted = corrected.only(chosen) if len(chosen) else task.trusted
        rest = corrected.only(torch.nonzero(remaining).flatten())
        changed.append(replace(task, train=rest, trusted=trusted))
    return changed


def with_trusted(
    tasks: Sequence[Task], count: int, true: tuple[Tensor, Tensor], generator: torch.Generator
) -> list[Task]:
    """Return the stream with up to `count` examples of each class of a task verified: they have
    their true label and are no longer in the train data. `true` are the ids and labels of the
    source. A class of which a task holds fewer has all of these, and may have none."""
    ids, labels = true
    order = ids.argsort()
    changed = []
    for task in tasks:
        train = task.train
        truth = labels[order][torch.searchsorted(ids[order], train.ids)]
        chosen = []
        for label in task.classes:
            rows = torch.nonzero(truth == label).flatten()
            chosen.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
        verified = torch.cat(chosen).sort().values
        rest = train.only(rows_without(verified, len(train)))
        if len(rest) < 2:
            raise UserError(
                f"{count} verified examples per class leave nothing of task {task.index + 1} to "
                f"learn from: give --trusted {max(1, len(train) // (2 * len(task.classes)))} or "
                "less."
            )
        trusted = replace(train.only(verified), labels=truth[verified])
        if task.trusted is not None:
            trusted = Examples.join([task.trusted, trusted])
        changed.append(replace(task, train=rest, trusted=trusted))
    return changed


def with_validation(tasks: Sequence[Task], share: float, generator: torch.Generator) -> list[Task]:
    """Return the stream with a share of the train examples of each class of a task held out."""
    changed = []
    for task in tasks:
        try:
            rows = held_out(task.train.labels, share, generator)
        except UserError as error:
            raise UserError(f"task {task.index + 1}: {error}") from None
        rest = task.train.only(rows_without(rows, len(task.train)))
        changed.append(replace(task, train=rest, validation=task.train.only(rows)))
    return changed


def rows_without(rows: Tensor, size: int) -> Tensor:
    """Return the rows 0 to `size` that are not among these, ascending."""
    remaining = torch.ones(size, dtype=torch.bool)
    remaining[rows] = False
    return torch.nonzero(remaining).flatten()


def held_out(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return the rows to hold out, ascending: of each class the share, at least one, drawn at
    random; of labels that are not classes the share of all."""
    if labels.dim() != 1 or labels.is_floating_point():
        groups = {None: torch.arange(len(labels))}
    else:
        labels = labels.cpu()
        groups = {label: (labels == label).nonzero()[:, 0] for label in sorted({*labels.tolist()})}
    chosen = []
    for label, rows in groups.items():
        count = max(1, round(share * len(rows)))
        if count >= len(rows):
            what = "the data" if label is None else f"class {label}"
            raise UserError(
                f"a validation share of {share:g} leaves nothing of the {len(rows)} examples of "
                f"{what} to learn from: give a smaller share, or more examples of it."
            )
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    return torch.cat(chosen).sort().values

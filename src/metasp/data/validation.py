"""Examples that are held out of training, to tell when it has learned enough."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.types import Task


def with_validation(tasks: Sequence[Task], share: float, generator: torch.Generator) -> list[Task]:
    """The same stream with a share of the train examples of each class of a task held out."""
    found = []
    for task in tasks:
        try:
            held = held_out(task.train.labels, share, generator)
        except UserError as error:
            raise UserError(f"task {task.index + 1}: {error}") from None
        rows = torch.arange(len(task.train))
        rest = rows[~torch.isin(rows, held)]
        train, validation = task.train.only(rest), task.train.only(held)
        found.append(replace(task, train=train, validation=validation))
    return found


def held_out(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """The rows to hold out, ascending: of each class the share, at least one, drawn at random; of
    labels that are not classes the share of all."""
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

"""Examples whose labels are known to be right: drawn from each task, out of its stream."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.types import Examples, Task


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

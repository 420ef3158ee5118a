"""Wrong labels on purpose: which rows get one is known to the score, never to the training."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from metasp.errors import UserError
from metasp.types import Task

Flipped = dict[str, list[int]]
"""Columns task, id, label (the wrong one that was given) and true_label."""


def with_label_noise(
    tasks: Sequence[Task], part: float, scope: str, generator: torch.Generator
) -> tuple[list[Task], Flipped]:
    """The same stream with a `part` of each task's train labels replaced by others: of the task,
    or of all classes seen up to it. Test labels stay true. Also what was replaced."""
    flipped: Flipped = {"task": [], "id": [], "label": [], "true_label": []}
    noisy = []
    seen: set[int] = set()
    for task in tasks:
        seen |= set(task.classes)
        pool = torch.tensor(sorted(seen if scope == "seen" else set(task.classes)))
        train, size = task.train, len(task.train)
        rows = torch.randperm(size, generator=generator)[: round(part * size)].sort().values
        if len(rows) and len(pool) < 2:
            raise UserError(
                f"task {task.index + 1} has one class, so there is no other label to give: use "
                "fewer tasks, or no --label-noise."
            )
        true = train.labels[rows]
        # A step of 1..k-1 around the circle of k classes never comes back to the true one.
        step = torch.randint(1, max(2, len(pool)), (len(rows),), generator=generator)
        wrong = pool[(torch.searchsorted(pool, true) + step) % len(pool)]
        labels = train.labels.clone()
        labels[rows] = wrong
        noisy.append(replace(task, train=replace(train, labels=labels)))
        columns = (torch.full_like(rows, task.index), train.ids[rows], wrong, true)
        for name, column in zip(flipped, columns):
            flipped[name] += column.tolist()
    return noisy, flipped

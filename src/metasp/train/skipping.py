"""Corrupt pictures: where a run is to skip them, they leave each task before it begins."""

from collections.abc import Sequence

import torch

from metasp.encoded import LazyRows
from metasp.errors import UserError
from metasp.stateful import Stateful
from metasp.types import Examples, Task

NAMED = 3  # pictures that a note names


class Skipping(Stateful):
    """The rows of the source that were left out so far; none unless it is told to `skip`."""

    stored = ("rows",)

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.rows = torch.zeros(0, dtype=torch.long)

    def sound(self, task: Task, notes: list[str]) -> Task:
        """The task without its corrupt pictures, which takes decoding all of it once."""
        if not self.skip:
            return task
        parts = (task.train, task.test, task.trusted, task.validation)
        corrupt = _corrupt([part for part in parts if part is not None])
        if not corrupt:
            return task
        rows = torch.tensor(sorted(corrupt))
        self.rows = torch.cat([self.rows, rows])
        task = task.without_rows(rows)
        if not len(task.train):
            raise UserError(
                f"all train pictures of task {task.index + 1} are corrupt: get them again."
            )
        told = [why.partition(": repair")[0] for why in corrupt.values()][:NAMED]
        more = f"; and {len(corrupt) - NAMED} more" if len(corrupt) > NAMED else ""
        notes.append(f"corrupt pictures left out: {len(corrupt)} ({'; '.join(told)}{more}).")
        return task

    def without_corrupt(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks without what was left out so far."""
        if not len(self.rows):
            return list(tasks)
        return [task.without_rows(self.rows) for task in tasks]


def _corrupt(parts: Sequence[Examples]) -> dict[int, str]:
    """The corrupt rows among all of these, ascending, with a sentence about each."""
    found: dict[int, str] = {}
    for part in parts:
        if isinstance(part.source, LazyRows):
            found |= part.source.unreadable(part.rows)
    return dict(sorted(found.items()))

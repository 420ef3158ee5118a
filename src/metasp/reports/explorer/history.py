"""What entered and what left the memory after each task, from its stored tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metasp.errors import UserError
from metasp.reports.explorer.points import Points

Columns = Mapping[str, Sequence[Any]]
Entry = tuple[int, int, float | None]  # id, label, influence

NEEDED = ("id", "label", "task", "influence")


def memory_history(tables: Mapping[int, Columns], points: Points, place: object) -> list[Any]:
    """For each finished task: what is held by class, what entered, what left, what stayed.

    The influence beside an example is what this task's steps said of it; where they said
    nothing, what was last noted in the memory."""
    for task, columns in tables.items():
        for name in NEEDED:
            if name not in columns:
                raise UserError(f"{place} is damaged (task {task + 1} lacks the column {name}).")
    told = {
        (int(task), int(identity)): float(value)
        for task, identity, value in zip(points.task, points.id, points.fused)
    }
    history, before = [], dict[int, Entry]()
    for task in sorted(tables):
        now = entries(tables[task])
        entered = [refreshed(now[i], task, told) for i in now if i not in before]
        left = [refreshed(before[i], task, told) for i in before if i not in now]
        history.append(
            {
                "task": task,
                "held": len(now),
                "classes": counts_by([entry[1] for entry in now.values()]),
                "stayed": len(now) - len(entered),
                "entered": sorted(entered, key=by_help),
                "left": sorted(left, key=by_help),
            }
        )
        before = now
    return history


def entries(columns: Columns) -> dict[int, Entry]:
    """What a memory table holds, by id."""
    rows = zip(columns["id"], columns["label"], columns["influence"])
    return {int(i): (int(i), int(label), known(value)) for i, label, value in rows}


def refreshed(entry: Entry, task: int, told: Mapping[tuple[int, int], float]) -> Entry:
    return entry[0], entry[1], told.get((task, entry[0]), entry[2])


def by_help(entry: Entry) -> tuple[bool, float, int]:
    """Most helpful first, unknown last, ties by id."""
    return entry[2] is None, entry[2] or 0.0, entry[0]


def known(value: float | None) -> float | None:
    return None if value is None or value != value else float(value)


def counts_by(values: Sequence[int]) -> dict[str, int]:
    names, counts = np.unique(np.asarray(values, np.int64), return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts)}


def ids_in(tables: Mapping[int, Columns]) -> np.ndarray[Any, Any]:
    """Every id that was ever seen in memory at the end of a task, ascending."""
    found = [np.asarray(columns["id"], np.int64) for columns in tables.values()]
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)

"""What a learner keeps of its past tasks for people: how each example fared, how it influenced, and
what the memory held."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metasp.events import TaskFinished
from metasp.types import State

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Sequence[Any]]

TABLES = ("memory", "influence", "scores")
HELD = ("id", "label", "task", "influence", "pinned")  # of the memory: what its history is told by
WHOLE = ("id", "label", "task", "count", "predicted")
WORDS = ("fate",)  # follows from other columns
UNKNOWN = -1  # among whole numbers


class Records:
    """Tables by kind and task, as arrays by column. Every table has a column of ids."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, dict[str, Array]]] = {name: {} for name in TABLES}

    def note(self, event: TaskFinished, classes: bool) -> None:
        """Keep what a finished task tells of its examples; labels that are no `classes` may be
        whole pictures, and are not kept."""
        held = {name: event.memory[name] for name in HELD}
        if not classes:
            held["label"] = [UNKNOWN] * len(held["id"])
        for name, columns in zip(TABLES, (held, event.influence, event.scores)):
            told = [key for key in columns if key not in WORDS]
            self.tables[name][event.task] = {key: packed(key, columns[key]) for key in told}

    def of(self, name: str) -> dict[int, Columns]:
        """The tables of one kind that hold something, by task, in plain values."""
        return {
            task: {key: unpacked(key, values) for key, values in columns.items()}
            for task, columns in sorted(self.tables[name].items())
            if columns
        }

    def influence(self) -> Columns | None:
        """The influences of all tasks as one table; None where none were measured."""
        tables = [table for table in self.of("influence").values() if len(table["id"])]
        if not tables:
            return None
        return {key: [v for table in tables for v in table[key]] for key in tables[0]}

    def forget(self, ids: Array) -> None:
        """Drop the rows of the examples of these ids."""
        for tables in self.tables.values():
            for task, columns in tables.items():
                if columns:
                    kept = ~np.isin(columns["id"], ids)
                    tables[task] = {key: values[kept] for key, values in columns.items()}

    def drop(self, tasks: Sequence[int]) -> None:
        """Keep nothing more of these tasks."""
        for tables in self.tables.values():
            for task in tasks:
                tables.pop(task, None)

    def state(self) -> State:
        return {
            f"{name}/{task}/{key}": torch.from_numpy(values)
            for name, tables in self.tables.items()
            for task, columns in tables.items()
            for key, values in columns.items()
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Records":
        """The records that `state` was taken of; an older file has none."""
        found = cls()
        for place, values in state.items():
            name, task, key = place.split("/", 2)
            found.tables[name].setdefault(int(task), {})[key] = values.numpy().copy()
        return found


def packed(name: str, values: Sequence[Any]) -> Array:
    if name == "source":
        return np.array([value == "memory" for value in values], dtype=bool)
    if name in ("kept", "pinned"):
        return np.array(values, dtype=bool)
    if name in WHOLE:
        return np.array([UNKNOWN if v is None else v for v in values], dtype=np.int64)
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def unpacked(name: str, values: Array) -> list[Any]:
    if name == "source":
        return ["memory" if value else "new" for value in values]
    found: list[Any] = values.tolist()
    return found

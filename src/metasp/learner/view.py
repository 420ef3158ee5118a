"""The memory as an asset: read it, audit it, use it as a dataset; it cannot be written through."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import Dataset

from metasp import trees
from metasp.example_stats import ExampleStats
from metasp.memory import Memory
from metasp.trees import Tree
from metasp.types import Examples, Task

MEANS = ("stability", "plasticity", "fused")


class InfluenceRow(TypedDict):
    """A row of `ContinualLearner.influence()`; `name` where labels are text."""

    id: int
    label: int | float | list[float] | None
    name: NotRequired[str | None]
    task: int
    stability: float | None
    plasticity: float | None
    fused: float | None
    count: int
    in_memory: bool


class MemoryView(Dataset[tuple[Tree, Tensor]]):
    """What the memory holds, in the order of its slots: `view[i]` is a copy of a raw input and its
    label, `table()` says of each what it is, since when it is there, and why."""

    def __init__(
        self,
        memory: Memory,
        history: ExampleStats,
        learned: Sequence[Mapping[str, Any]],
        names: Sequence[str] = (),
    ) -> None:
        self._memory, self._history, self._learned = memory, history, learned
        self._names = names

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, index: int) -> tuple[Tree, Tensor]:
        slots = self._memory.occupied
        if not -len(slots) <= index < len(slots):
            raise IndexError(f"the memory holds {len(slots)} examples, there is no {index}")
        held = self._memory.read(slots[[index]])
        return trees.each(lambda t: t[0].clone(), held.inputs), held.labels[0].clone()

    def __repr__(self) -> str:
        return f"<memory of {self.capacity}: {len(self)} examples>"

    @property
    def capacity(self) -> int:
        return self._memory.capacity

    @property
    def ids(self) -> Tensor:
        """The id of each example, in the order of the dataset."""
        return self._memory.ids[self._memory.occupied].clone()

    def table(self) -> pa.Table:
        """One row per example: slot, id, label (and its name, where labels are text), the task and
        time since when it is stored, the influence by which it was last judged (mean fused value of
        the latest task it was measured in), and its means over all tasks with their count. Negative
        influence is helpful."""
        held = self._memory.table()
        ids = held["id"]
        since = [self._learned[int(task)].get("ended") for task in held["task"]]
        means = self._history.means(torch.tensor(ids, dtype=torch.long))
        columns: dict[str, Any] = {
            "slot": held["slot"],
            "id": pa.array(ids, pa.int64()),
            "label": held["label"],
            **named(held["label"], self._names),
            "task": pa.array(held["task"], pa.int64()),
            "since": pa.array(since, pa.string()),
            "influence": numbers(np.asarray(held["influence"], np.float64)),
        }
        columns |= {name: numbers(means[:, i]) for i, name in enumerate(MEANS)}
        counts = self._history.counts(torch.tensor(ids, dtype=torch.long))
        columns["count"] = pa.array(counts.tolist(), pa.int64())
        return pa.table(columns)


def influence_table(
    memory: Memory, history: ExampleStats, tasks: Iterable[Task], names: Sequence[str] = ()
) -> pa.Table:
    """One row for each example that was measured or is in memory, by id."""
    held = set(memory.ids[memory.occupied].tolist())
    ids = sorted({*history.ids.tolist(), *held})
    labels, since = dict[int, Any](), dict[int, int]()
    for task in tasks:
        own = task.train.ids.tolist()
        since.update(dict.fromkeys(own, task.index))
        if task.classes:  # of other labels the memory alone is kept
            labels.update(zip(own, task.train.labels.tolist()))
    stored = memory.table()
    since = {**dict(zip(map(int, stored["id"]), map(int, stored["task"]))), **since}
    labels.update(zip(map(int, stored["id"]), stored["label"]))
    rows = torch.tensor(ids, dtype=torch.long)
    means, counts = history.means(rows), history.counts(rows)
    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "label": pa.array([labels.get(i) for i in ids]),
        **named([labels.get(i) for i in ids], names),
        "task": pa.array([since[i] for i in ids], pa.int64()),
    }
    columns |= {name: numbers(means[:, i]) for i, name in enumerate(MEANS)}
    columns["count"] = pa.array(counts.tolist(), pa.int64())
    columns["in_memory"] = pa.array([i in held for i in ids], pa.bool_())
    return pa.table(columns)


def named(labels: Iterable[Any], names: Sequence[str]) -> dict[str, Any]:
    """A further column for the names of classes, where they have any."""
    if not names:
        return {}
    found = [None if label is None else names[int(label)] for label in labels]
    return {"name": pa.array(found, pa.string())}


def numbers(values: Any) -> pa.DoubleArray:
    """A column of floats in which NaN, for never measured, is null."""
    return pa.array(np.asarray(values, np.float64).reshape(-1), pa.float64(), from_pandas=True)


def with_names(task: Task, ids: Tensor, labels: Tensor) -> Task:
    """A task that has been learned, with further examples that are in memory under these ids."""
    train = task.train
    known = Examples(
        train.source,
        torch.arange(len(train) + len(ids)),
        torch.cat([train.labels, labels.to(train.labels)]),
        torch.cat([train.ids, ids]),
    )
    return replace(task, train=known)


def without_inputs(task: Task) -> Task:
    """What is kept of a task that has been learned: ids, classes, and of which class each example
    was. Labels that are not classes may be the data itself: only their shape stays."""
    train = task.train
    labels = train.labels if task.classes else nothing_like(train.labels, len(train))
    kept = Task(
        task.index,
        task.classes,
        Examples(torch.zeros(0), torch.arange(len(train)), labels, train.ids),
        task.test,
    )
    if task.trusted is not None:
        kept = with_names(kept, task.trusted.ids, task.trusted.labels)
    return kept


def nothing_like(labels: Tensor, count: int) -> Tensor:
    """Zeros for so many labels of the same shape and type, which take no room."""
    return labels.new_zeros(()).expand(count, *labels.shape[1:])

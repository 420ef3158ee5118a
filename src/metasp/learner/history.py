"""History of a learner: its classes, its tasks, and tables of how their examples fared."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypedDict

import torch
from torch import Tensor

from metasp.events import TaskFinished
from metasp.example_stats import ExampleStats
from metasp.learner.files import prefixed, section
from metasp.learner.records import Records
from metasp.memory import Memory
from metasp.methods.context import measured
from metasp.reports.suspects import RunScores
from metasp.suspects import score_examples
from metasp.types import Examples, State, Task

MOST_OBSERVED = 16  # closed tasks of a stream whose tables are kept


class Removal(TypedDict):
    """A record of examples that were forgotten."""

    ids: list[int]
    when: str
    reason: str
    from_memory: int


class History:
    """What a learner remembers of its stream beside weights and memory. `class_names` are those of
    the classes in the order of their numbers, none where labels are numbers; `learned` says of each
    task when it was learned, of how many examples, and how it was tested; `influence` holds the
    influences of all tasks that are finished, `records` their tables."""

    def __init__(self) -> None:
        self.class_names: tuple[str, ...] = ()
        self.next_id = 0
        self.learned: list[dict[str, Any]] = []
        self.removed: list[Removal] = []
        self.influence = measured()
        self.records = Records()

    def begin_task(self, inputs: str, examples: int) -> None:
        """Note that a task begins, with inputs of that kind."""
        self.learned.append({"began": now(), "examples": examples, "inputs": inputs})

    def add_test(self, test: Mapping[str, Any]) -> None:
        self.learned[-1].setdefault("tested", []).append(test)

    def finish_task(self, event: TaskFinished, task: Task, stats: ExampleStats) -> None:
        """Take in what a finished task tells, and what was measured in it."""
        self.influence.merge(stats)
        self.records.note(event, bool(task.classes))
        self.learned[-1]["ended"] = now()

    def bound(self, known: Tensor) -> None:
        """Drop what a stream without end would pile up: influences of examples but the `known` ids,
        and the tables of all but its newest tasks."""
        keep_only(self.influence, known)
        self.learned[-1]["observed"] = True
        observed = [task for task, entry in enumerate(self.learned) if "observed" in entry]
        self.records.drop(observed[:-MOST_OBSERVED])

    def with_open(self, stats: ExampleStats, known: Tensor) -> ExampleStats:
        """Return all influences, with those of the task that is open, of the `known` ids."""
        together = measured()
        together.merge(self.influence)
        together.merge(stats)
        keep_only(together, known)
        return together

    def forget(self, ids: Sequence[int], reason: str, from_memory: int) -> None:
        """Drop all that is known of the examples of these ids (ascending), and note that."""
        gone = torch.tensor(ids, dtype=torch.long)
        self.influence.forget(gone)
        self.records.forget(gone.numpy())
        if ids:
            self.next_id = max(self.next_id, ids[-1] + 1)  # running numbers skip them
            record = Removal(ids=[*ids], when=now(), reason=reason, from_memory=from_memory)
            self.removed.append(record)

    @property
    def forgotten(self) -> list[int]:
        return [i for record in self.removed for i in record["ids"]]

    def scores(self) -> RunScores:
        """Return how suspect each example is; there may be none."""
        scores = score_examples(self.records.of("scores"), self.records.influence())
        return RunScores(scores, self.class_names, None)

    def plain(self) -> dict[str, Any]:
        """Return what changes when a task begins, as plain values."""
        return {
            "class_names": [*self.class_names],
            "next_id": self.next_id,
            "learned": [*self.learned],
            "removed": deepcopy(self.removed),
        }

    def restore_plain(self, about: Mapping[str, Any]) -> None:
        self.class_names, self.next_id = tuple(about["class_names"]), about["next_id"]
        self.learned, self.removed = [*about["learned"]], deepcopy(about["removed"])

    def state(self) -> State:
        """Return influences and tables, which change when a task ends."""
        records = prefixed("records", self.records.state())
        return {**prefixed("history", self.influence.state_dict()), **records}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.influence.load_state_dict(section(tensors, "history"))
        self.records = Records.from_state(section(tensors, "records"))


def keep_only(stats: ExampleStats, known: Tensor) -> None:
    """Forget all examples but those of the `known` ids."""
    stats.forget(stats.ids[~torch.isin(stats.ids, known)])


def known_ids(memory: Memory, tasks: Sequence[Task]) -> Tensor:
    """Return the ids of what the memory or a task still knows."""
    return torch.cat([memory.ids[memory.occupied], *(task.train.ids for task in tasks)])


def without_inputs(task: Task) -> Task:
    """Return what is kept of a task that has been learned: ids, classes, and of which class each
    example was. Labels that are not classes may be the data itself: only their shape stays."""
    train = task.train
    labels = train.labels if task.classes else shaped_like(train.labels, len(train))
    kept = Task(task.index, task.classes, labels_alone(labels, train.ids), task.test)
    if task.trusted is not None:
        kept = with_ids(kept, task.trusted.ids, task.trusted.labels)
    return kept


def without_examples(task: Task) -> Task:
    return replace(task, train=task.train.only(torch.zeros(0, dtype=torch.long)))


def with_ids(task: Task, ids: Tensor, labels: Tensor) -> Task:
    """Return a task that has been learned, with further examples under these ids."""
    train = task.train
    joined = torch.cat([train.labels, labels.to(train.labels)])
    return replace(task, train=labels_alone(joined, torch.cat([train.ids, ids])))


def labels_alone(labels: Tensor, ids: Tensor) -> Examples:
    return Examples(torch.zeros(0), torch.arange(len(ids)), labels, ids)


def shaped_like(labels: Tensor, count: int) -> Tensor:
    """Return zeros for so many labels of the same shape and type, which take no memory."""
    return labels.new_zeros(()).expand(count, *labels.shape[1:])


def pack_tasks(tasks: Sequence[Task]) -> State:
    """Return the ids and labels of all tasks, for a file."""
    tensors = {}
    for task in tasks:
        labels = task.train.labels
        tensors[f"{task.index}/ids"] = task.train.ids
        tensors[f"{task.index}/labels"] = labels if task.classes else labels[:0]
    return tensors


def unpack_tasks(classes: Sequence[Sequence[int]], tensors: Mapping[str, Tensor]) -> list[Task]:
    """Return the tasks that were packed, without inputs and tests."""
    tasks = []
    for index, own in enumerate(classes):
        labels, ids = tensors[f"{index}/labels"], tensors[f"{index}/ids"]
        labels = labels if own else shaped_like(labels, len(ids))
        empty = Examples.of(torch.zeros(0), torch.zeros(0))
        tasks.append(Task(index, tuple(own), labels_alone(labels, ids), empty))
    return tasks


def now() -> str:
    """Return the time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")

"""History of a learner: its classes, its tasks, and tables of how their examples fared."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.events import TaskFinished
from metasp.example_stats import ExampleStats
from metasp.label_scores import score_examples
from metasp.memory import Memory
from metasp.methods.context import measured
from metasp.reports.suspect_tables import RunScores
from metasp.stateful import below, under
from metasp.types import Examples, State, Task

Columns = Mapping[str, Sequence[Any]]

KINDS = ("memory", "influence", "scores")
OF_MEMORY = ("id", "label", "task", "influence", "pinned")
MOST_OBSERVED = 16  # closed tasks of a stream whose tables are kept


class Records:
    """Tables by kind and task. Every table has a column of ids."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, int], pa.Table] = {}

    def note(self, event: TaskFinished, classes: bool) -> None:
        """Keep what a finished task tells of its examples; labels that are no `classes` may be
        whole pictures, and are not kept."""
        memory = {name: event.memory[name] for name in OF_MEMORY}
        if not classes:
            memory["label"] = [-1] * len(memory["id"])
        for kind, columns in zip(KINDS, (memory, event.influence, event.scores)):
            if columns:
                self.tables[kind, event.task] = pa.table(dict(columns))

    def of(self, kind: str) -> dict[int, Columns]:
        """Return the tables of one kind by task, in plain values."""
        chosen = {task: table for (name, task), table in self.tables.items() if name == kind}
        return {task: table.to_pydict() for task, table in sorted(chosen.items())}

    def influence(self) -> Columns | None:
        """Return the influences of all tasks as one table; None where none were measured."""
        tables = [table for table in self.of("influence").values() if len(table["id"])]
        if not tables:
            return None
        return {key: [*chain.from_iterable(table[key] for table in tables)] for key in tables[0]}

    def forget(self, ids: Sequence[int]) -> None:
        """Drop the rows of the examples of these ids."""
        gone = pa.array(ids, pa.int64())
        for key, table in self.tables.items():
            ids_alone = pc.invert(pc.is_in(table["id"].cast(pa.int64()), value_set=gone))
            self.tables[key] = table.filter(ids_alone).combine_chunks()

    def drop(self, tasks: Sequence[int]) -> None:
        """Keep nothing more of these tasks."""
        self.tables = {key: table for key, table in self.tables.items() if key[1] not in tasks}

    def state_dict(self) -> State:
        """Return each table in Arrow's format for streams, as bytes."""
        state = {}
        for (kind, task), table in self.tables.items():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            content = bytearray(sink.getvalue().to_pybytes())
            state[f"{kind}/{task}"] = torch.frombuffer(content, dtype=torch.uint8)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.tables = {}
        for name, content in state.items():
            kind, task = name.split("/")
            self.tables[kind, int(task)] = pa.ipc.open_stream(content.numpy().tobytes()).read_all()


class IdNames:
    """Ids of examples as the user knows them. Inside they are numbers: those that the user gave, or
    running ones from `next` on; `texts` has the numbers of ids that are text."""

    def __init__(self) -> None:
        self.next, self.texts = 0, dict[str, int]()
        self.kind = ""  # of those that were given so far, "int" or "str": a learner keeps to one

    def numbered(self, ids: list[int] | list[str] | None, count: int) -> Tensor:
        """Return the numbers (count,) of ids, of which texts may be new."""
        if ids is None:
            return torch.arange(self.next, self.next + count)
        if self.kind not in ("", type(ids[0]).__name__):
            before, now = ("texts" if one == "str" else "whole numbers"
                           for one in (self.kind, type(ids[0]).__name__))  # fmt: skip
            raise UserError(f"the ids are {now} and were {before} before: give one kind of ids.")
        if isinstance(ids[0], int):
            return torch.tensor(ids)
        running = itertools.count(self.next)
        numbers = [self.texts[one] if one in self.texts else next(running) for one in ids]
        return torch.tensor(numbers)

    def enter(self, ids: list[int] | list[str] | None, numbers: Tensor) -> None:
        """Know ids that `numbered` has given these numbers."""
        self.next = max(self.next, int(numbers.max()) + 1)
        if ids is not None:
            self.kind = type(ids[0]).__name__
        if self.kind == "str" and ids is not None:
            self.texts.update(zip(map(str, ids), numbers.tolist()))

    def find(self, ids: list[int] | list[str]) -> list[int | None]:
        """Return the number of each id; None where it was never given."""
        running = {i: int(i[1:]) for i in map(str, ids) if i[0] == "#" and i[1:].isdecimal()}
        return [self.texts.get(i, running.get(i)) if isinstance(i, str) else i for i in ids]

    def shown(self, numbers: Iterable[int]) -> list[Any]:
        """Return ids as the user knows them; among texts a running number begins with #."""
        if self.kind != "str":
            return [int(number) for number in numbers]
        texts = {number: text for text, number in self.texts.items()}
        return [texts.get(int(number), f"#{int(number)}") for number in numbers]

    def column(self, numbers: Iterable[int]) -> "pa.Array[Any]":
        """Return ids as a column of a table."""
        return pa.array(self.shown(numbers), pa.string() if self.kind == "str" else pa.int64())

    def keep_only(self, numbers: Collection[int]) -> None:
        """Drop the texts of all other ids."""
        self.texts = {text: number for text, number in self.texts.items() if number in numbers}


class History:
    """Remembers of a stream what is neither weights nor memory. `class_names` are those of
    the classes in the order of their numbers, none where labels are numbers; `learned` says of each
    task when it was learned, of how many examples, and how it was tested; `influence` holds the
    influences of all tasks that are finished, `records` their tables."""

    def __init__(self) -> None:
        self.class_names: tuple[str, ...] = ()
        self.ids = IdNames()
        self.version = 0  # changes so far: tasks, batches, examples that were trusted or forgotten
        self.answered = [0, 0]  # observed examples that were answered before they were learned:
        self.recent: list[int] = []  # how many right, of how many; and 1 for right of the newest
        self.learned: list[dict[str, Any]] = []
        self.removed: list[dict[str, Any]] = []
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
        self.version += 1

    def bound(self, stored: Tensor) -> None:
        """Drop what a stream without end would pile up: influences of examples but the `stored`
        ids, and the tables of all but its newest tasks."""
        keep_only(self.influence, stored)
        self.learned[-1]["observed"] = True
        observed = [task for task, of_task in enumerate(self.learned) if "observed" in of_task]
        self.records.drop(observed[:-MOST_OBSERVED])

    def with_open(self, stats: ExampleStats, stored: Tensor) -> ExampleStats:
        """Return all influences, with those of the task that is open, of the `stored` ids."""
        together = measured()
        together.merge(self.influence)
        together.merge(stats)
        keep_only(together, stored)
        return together

    def forget(self, ids: Sequence[int], reason: str) -> None:
        """Drop all that is known of the examples of these ids (ascending), and note that."""
        gone = torch.tensor(ids, dtype=torch.long)
        self.influence.forget(gone)
        self.records.forget(ids)
        if ids:
            self.ids.next = max(self.ids.next, ids[-1] + 1)  # running numbers skip them
            self.removed.append({"ids": [*ids], "when": now(), "reason": reason})
        self.version += 1

    @property
    def forgotten(self) -> list[int]:
        return [*chain.from_iterable(record["ids"] for record in self.removed)]

    def note_answers(self, right: Tensor, window: int) -> dict[str, float]:
        """Note which observed examples (n,) were answered rightly before they were learned. Returns
        the share of all so far, and of the newest `window`."""
        self.recent = [*self.recent, *right.int().tolist()][-window:]
        self.answered = [self.answered[0] + int(right.sum()), self.answered[1] + len(right)]
        return self.accuracy()

    def accuracy(self) -> dict[str, float]:
        """Return the prequential accuracy over all observed examples and over the newest ones."""
        if not self.answered[1]:
            return {}
        newest = sum(self.recent) / len(self.recent)
        return {"prequential": self.answered[0] / self.answered[1], "prequential_newest": newest}

    def scores(self) -> RunScores:
        """Return how suspect each example is; there may be none."""
        scores = score_examples(self.records.of("scores"), self.records.influence())
        return RunScores(scores, self.class_names, None)

    def plain(self) -> dict[str, Any]:
        """Return what changes when a task begins, as plain values."""
        return {
            "class_names": [*self.class_names],
            "ids": vars(self.ids) | {"texts": dict(self.ids.texts)},
            "changes": self.version,
            "answered": [*self.answered],
            "recent": [*self.recent],
            "learned": [*self.learned],
            "removed": deepcopy(self.removed),
        }

    def restore_plain(self, about: Mapping[str, Any]) -> None:
        self.class_names, self.version = tuple(about["class_names"]), about["changes"]
        vars(self.ids).update(about["ids"], texts=dict(about["ids"]["texts"]))
        self.answered, self.recent = [*about["answered"]], [*about["recent"]]
        self.learned, self.removed = [*about["learned"]], deepcopy(about["removed"])

    def state(self) -> State:
        """Return influences and tables, which change when a task ends."""
        records = under("records", self.records.state_dict())
        return {**under("history", self.influence.state_dict()), **records}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.influence.load_state_dict(below("history", tensors))
        self.records.load_state_dict(below("records", tensors))


def keep_only(stats: ExampleStats, stored: Tensor) -> None:
    """Forget all examples but those of the `stored` ids."""
    stats.forget(stats.ids[~torch.isin(stats.ids, stored)])


def stored_ids(memory: Memory, tasks: Sequence[Task]) -> Tensor:
    """Return the ids of what the memory or a task still knows."""
    return torch.cat([memory.ids[memory.occupied], *(task.train.ids for task in tasks)])


def without_inputs(task: Task) -> Task:
    """Return what is kept of a task that has been learned: ids, classes, and of which class each
    example was. Labels that are not classes may be the data itself: only their shape stays."""
    train = task.train
    labels = train.labels if task.classes else shaped_like(train.labels, len(train))
    ids_alone = Task(task.index, task.classes, labels_alone(labels, train.ids), task.test)
    if task.trusted is not None:
        ids_alone = with_ids(ids_alone, task.trusted.ids, task.trusted.labels)
    return ids_alone


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
    for index, classes_of_task in enumerate(classes):
        labels, ids = tensors[f"{index}/labels"], tensors[f"{index}/ids"]
        labels = labels if classes_of_task else shaped_like(labels, len(ids))
        empty = Examples.of(torch.zeros(0), torch.zeros(0))
        tasks.append(Task(index, tuple(classes_of_task), labels_alone(labels, ids), empty))
    return tasks


def now() -> str:
    """Return the time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")

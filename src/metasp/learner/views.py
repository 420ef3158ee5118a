"""Views of a learner: the memory as a data set, tables of its examples, its report and its page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.utils.data import Dataset

from metasp import trees
from metasp.errors import UserError
from metasp.events import Event, StepTaken, TaskStarted
from metasp.example_stats import INFLUENCE, ExampleStats
from metasp.label_scores import WAYS
from metasp.learner.history import History
from metasp.learner.session import Session
from metasp.methods.label_model import Verdicts
from metasp.metrics import SCENARIOS
from metasp.reports.explorer import (
    Examples,
    Kept,
    Material,
    Missing,
    Place,
    Texts,
    page_of,
    recorded,
)
from metasp.reports.explorer.records import so_far
from metasp.train.trainer import Trainer
from metasp.trees import Tree
from metasp.types import Task

HEADER = ("task", "learned", "examples", "classes", "in memory", "before", "after", "now")


class MemoryView(Dataset[tuple[Tree, Tensor]]):
    """Examples in memory, in the order of its slots: `view[i]` is a copy of a raw input and its
    label, `table()` tells of each what it is, since when it is there, and why."""

    def __init__(self, session: Session) -> None:
        self._session, self._memory = session, session.context.memory

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, index: int) -> tuple[Tree, Tensor]:
        slots = self._memory.occupied
        if not -len(slots) <= index < len(slots):
            raise IndexError(f"the memory holds {len(slots)} examples, there is no {index}")
        batch = self._memory.read(slots[[index]])
        inputs = self._session.raw_inputs(batch.inputs)
        inputs = batch.inputs if inputs is None else inputs
        return trees.each(lambda t: t[0].clone(), inputs), batch.labels[0].clone()

    def __repr__(self) -> str:
        return f"<memory of {self.capacity}: {len(self)} examples>"

    @property
    def capacity(self) -> int:
        return self._memory.capacity

    @property
    def ids(self) -> Tensor:
        """Return the id of each example, in the order of the dataset."""
        return self._memory.ids[self._memory.occupied].clone()

    def table(self) -> pa.Table:
        """Return one row per example: slot, id, label (and its name, where labels are text), the
        task and time since when it is stored, the influence by which it was last judged (mean fused
        value of the latest task it was measured in), and its means over all tasks with their count.
        Negative influence is helpful."""
        with self._session.turn:
            return memory_table(self._session)


def memory_table(session: Session) -> pa.Table:
    """Return the table of a `MemoryView`."""
    stored, learned = session.context.memory.table(), session.history.learned
    since = [learned[int(task)].get("ended") for task in stored["task"]]
    return pa.table(
        {
            "slot": stored["slot"],
            "id": session.history.ids.column(map(int, stored["id"])),
            "label": stored["label"],
            **name_column(stored["label"], session.history.class_names),
            "task": pa.array(stored["task"], pa.int64()),
            "since": pa.array(since, pa.string()),
            "influence": floats(np.asarray(stored["influence"], np.float64)),
            **influence_columns(session.influence(), stored["id"]),
        }
    )


def influence_table(session: Session) -> pa.Table:
    """Return one row for each example that was measured or is in memory, by id."""
    memory, stats = session.context.memory, session.influence()
    stored = memory.table()
    in_memory = {*memory.ids[memory.occupied].tolist()}
    ids = sorted({*stats.ids.tolist(), *in_memory})
    since = dict(zip(map(int, stored["id"]), map(int, stored["task"])))
    labels: dict[int, Any] = {}
    for task in session.trainer.tasks:
        of_task = task.train.ids.tolist()
        since.update(dict.fromkeys(of_task, task.index))
        if task.classes:  # of other labels the memory alone is kept
            labels.update(zip(of_task, task.train.labels.tolist()))
    labels.update(zip(map(int, stored["id"]), stored["label"]))
    column = [labels.get(i) for i in ids]
    return pa.table(
        {
            "id": session.history.ids.column(ids),
            "label": pa.array(column),
            **name_column(column, session.history.class_names),
            "task": pa.array([since[i] for i in ids], pa.int64()),
            **influence_columns(stats, ids),
            "in_memory": pa.array([i in in_memory for i in ids], pa.bool_()),
        }
    )


def influence_columns(stats: ExampleStats, ids: Sequence[float]) -> dict[str, Any]:
    """Return the mean influences of some ids (null: never measured) and their counts."""
    rows = torch.tensor(ids, dtype=torch.long)
    columns: dict[str, Any] = {name: floats(stats.means(rows, name)) for name in INFLUENCE}
    return {**columns, "count": pa.array(stats.counts(rows).tolist(), pa.int64())}


def verdict_table(
    verdicts: Verdicts, labels: Tensor, ids: Sequence[Any], names: Sequence[str]
) -> pa.Table:
    """Return one row per judged example; classes by their names where they have any."""

    def named(classes: Tensor) -> Sequence[str | int]:
        return [names[c] if names else c for c in classes.tolist()]

    return pa.table(
        {
            "id": pa.array(ids, pa.string() if isinstance(ids[0], str) else pa.int64()),
            "label": named(labels),
            "stability": floats(verdicts.stability.numpy()),
            "plasticity": floats(verdicts.plasticity.numpy()),
            "wrong": floats(verdicts.wrong.numpy()),
            "looks_like": named(verdicts.looks_like),
        }
    )


def suspects_table(history: History, by: str | None, top: int | None) -> pa.Table:
    """Return the most suspect examples, one row each, the most suspect first."""
    scored = history.scores()
    scores = scored.scores
    if not len(scores.ids):
        raise UserError(
            "no example has a score yet: learn a task, with a method that trains by "
            "`learner.update`."
        )
    rows = [scored.row(int(row)) for row in scores.suspects(scored.way(by), top)]
    types: dict[str, pa.DataType] = {"id": pa.int64(), "task": pa.int64()}
    if scores.of_numbers:
        types |= {"target": pa.float64(), "said": pa.float64()}
    else:
        types |= {"label": pa.int64(), "predicted": pa.int64()}
    if scored.class_names:
        types |= {"label_name": pa.string(), "predicted_name": pa.string()}
    types |= {way: pa.float64() for way in WAYS}
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    return pa.table({**columns, "id": history.ids.column(row["id"] for row in rows)})


def name_column(labels: Iterable[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a further column for the names of classes, where they have any."""
    if not names:
        return {}
    column = [None if label is None else names[int(label)] for label in labels]
    return {"name": pa.array(column, pa.string())}


def floats(values: Any) -> pa.DoubleArray:
    """Return a column of floats in which NaN, for never measured, is null."""
    return pa.array(np.asarray(values, np.float64).reshape(-1), pa.float64(), from_pandas=True)


def explorer_page(session: Session, texts: Mapping[Any, str] | None, limit: int) -> bytes:
    """Return the explorer's page of a learner, with given texts or what the memory holds."""
    history, settings = session.history, session.settings
    if not history.learned:
        raise UserError("there is nothing to explore yet: learn a task first.")
    scored = history.scores()
    if scored.scores.targets is not None and np.isnan(scored.scores.targets).any():
        raise UserError("the explorer shows labels that are classes or single numbers, not others.")
    names = history.class_names or tuple(map(str, range(max(session.classes, default=-1) + 1)))
    tables = Kept(
        name="of a learner",
        about={
            "method": session.intake.method,
            "benchmark": "your data",
            "seed": settings.seed,
            "budget": settings.memory,
            "epochs": settings.epochs,
            "backbone": type(session.model).__name__,
            "selection": settings.selection or session.intake.recipe.selection,
        },
        influence=history.records.influence(),
        memory=history.records.of("memory"),
        tasks=[
            {"classes": list(task.classes), "examples": of_task["examples"]}
            for task, of_task in zip(session.trainer.tasks, history.learned)
        ],
        scenarios=scenarios_of(history.learned, session.classes),
        scores=scored,
        class_names=names,
    )
    material = material_of(session, texts)
    return page_of([recorded(tables)], material, names, limit, [Place("", "")]).content


def scenarios_of(learned: Sequence[Mapping[str, Any]], classes: Sequence[int]) -> dict[str, Any]:
    """Return the scores of all tasks by scenario, where each was tested after each."""
    events = [*chain.from_iterable(of_task.get("tested", []) for of_task in learned)]
    after = [event["on"] for event in events if not event["before"]]
    if not classes or after != [list(range(task + 1)) for task in range(len(learned))]:
        return dict.fromkeys(SCENARIOS)
    return {name: so_far(events, name) for name in SCENARIOS}


def material_of(session: Session, texts: Mapping[Any, str] | None) -> Material:
    """Return what there is to look at: given texts by id, or else what the memory holds."""
    memory = session.context.memory
    if texts is not None:
        numbers = session.history.ids.find([*texts])
        return Texts({n: str(text) for n, text in zip(numbers, texts.values()) if n is not None})
    if memory.inputs is None:
        return Missing("The learner keeps no examples.")
    slots = memory.occupied.numpy()
    raw = session.raw_inputs(memory.inputs)
    rows = trees.in_one(memory.inputs if raw is None else raw).cpu().float().numpy()
    return Examples(memory.ids.numpy()[slots], slots, rows)


def report_text(session: Session) -> str:
    """Return what was learned, task by task, as Markdown."""
    history, memory, tasks = session.history, session.context.memory, session.trainer.tasks
    learned, scored = history.learned, history.scores()
    lines = [
        f"# {session.intake.method} on {type(session.model).__name__}",
        "",
        f"{len(learned)} tasks, {len(session.classes)} classes; the memory holds {len(memory)} of "
        f"{memory.capacity} examples.",
    ]
    if learned:
        rows = [task_row(session, task, of_task) for task, of_task in zip(tasks, learned)]
        lines += ["", *(f"| {' | '.join(row)} |" for row in [HEADER, ["---"] * len(HEADER), *rows])]
    notes = []
    if history.answered[1]:
        accuracy, newest = history.accuracy().values()
        notes.append(
            f"Prequential accuracy: {accuracy:.4f} over {history.answered[1]:,} observed examples, "
            f"{newest:.4f} over the newest {len(history.recent)}."
        )
    if len(scored.scores.ids):
        way = scored.way(None)
        count, total = scored.scores.expected(way), len(scored.scores.ids)
        notes.append(f"By {way}, about {count} of {total} labels look wrong.")
    if history.forgotten:
        notes.append(f"{len(history.forgotten)} examples were forgotten.")
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def task_row(session: Session, task: Task, of_task: Mapping[str, Any]) -> list[str]:
    """Return the row of a task in the report: `entry` is what the history says of it."""
    memory, names = session.context.memory, session.history.class_names
    first, last = (
        {test["before"]: test["class_il"][test["on"].index(task.index)]
         for test in one.get("tested", []) if task.index in test["on"]}
        for one in (of_task, session.history.learned[-1])
    )  # fmt: skip
    scores = first.get(True), first.get(False), last.get(False)
    classes = ", ".join(names[c] if names else str(c) for c in task.classes)
    return [
        str(task.index + 1),
        of_task.get("ended", "–"),
        str(of_task["examples"]),
        classes.replace("|", "\\|") or "–",
        str(int((memory.tasks[memory.occupied] == task.index).sum())),
        *("–" if score is None else f"{score:.4f}" for score in scores),
    ]


def with_progress_bar(events: Iterator[Event], trainer: Trainer) -> Iterator[Event]:
    """Yield the events, with a bar of the steps on standard error where that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, expand=True) as bar:
        line = bar.add_task("starting", total=None)
        for event in events:
            if isinstance(event, TaskStarted):
                bar.update(line, total=sum(count for count, _ in trainer.remaining().values()))
            elif isinstance(event, StepTaken):
                text = f"task {event.task + 1} · {event.kind} · loss {event.loss:.3f}"
                bar.update(line, advance=1, description=text)
            yield event

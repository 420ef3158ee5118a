"""What a learner shows of itself: suspects, the explorer's page, and a report."""

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from metasp import trees
from metasp.errors import UserError, or_user_error
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
from metasp.reports.suspects import RunScores
from metasp.store.files import write_atomic
from metasp.suspects import WAYS, score_examples

if TYPE_CHECKING:
    from metasp.learner.learner import ContinualLearner


def scores_of(learner: "ContinualLearner") -> RunScores:
    """How suspect each example is, or one sentence about why that cannot be said."""
    found = known_scores(learner)
    if not len(found.scores.ids):
        raise UserError(
            "no example has a score yet: learn a task, with a method that trains by "
            "`learner.update`."
        )
    return found


def known_scores(learner: "ContinualLearner") -> RunScores:
    """How suspect each example is; there may be none."""
    records = learner._records
    scores = score_examples(records.of("scores"), records.influence())
    return RunScores(scores, learner.class_names, None)


def suspects_table(learner: "ContinualLearner", by: str | None, top: int | None) -> pa.Table:
    """The most suspect examples, one row each, the most suspect first."""
    if top is not None and not is_count(top):
        raise UserError(f"top is {top!r}: give a whole number of examples, or leave it out.")
    told = scores_of(learner)
    way = told.way(by)
    rows = [told.row(int(place)) for place in told.scores.suspects(way, top)]
    whole, text = pa.int64(), pa.string()
    types: dict[str, pa.DataType] = {"id": whole, "task": whole}
    if told.scores.of_numbers:
        types |= {"target": pa.float64(), "said": pa.float64()}
    else:
        types |= {"label": whole, "predicted": whole}
    if learner.class_names:
        types |= {"label_name": text, "predicted_name": text}
    types |= {way: pa.float64() for way in WAYS}
    return pa.table({name: pa.array([row[name] for row in rows], kind)
                     for name, kind in types.items()})  # fmt: skip


def page(learner: "ContinualLearner", words: Mapping[int, str] | None, limit: int) -> bytes:
    """The explorer's page of a learner."""
    if not is_count(limit):
        raise UserError(f"limit is {limit!r}: give a whole number of examples to show.")
    scored = known_scores(learner)
    if not learner.tasks:
        raise UserError("there is nothing to explore yet: learn a task first.")
    if scored.scores.targets is not None and np.isnan(scored.scores.targets).any():
        raise UserError("the explorer shows labels that are classes or single numbers, not others.")
    records, settings = learner._records, learner.settings
    trainer = learner._trainer
    names = learner.class_names or tuple(map(str, range(max(learner.classes, default=-1) + 1)))
    kept = Kept(
        name="of a learner",
        about={
            "method": learner.method,
            "benchmark": "your data",
            "seed": settings.seed,
            "budget": settings.memory,
            "epochs": settings.epochs,
            "backbone": type(learner.model).__name__,
            "selection": settings.selection or learner._recipe.selection,
        },
        influence=records.influence(),
        memory=records.of("memory"),
        tasks=[
            {"classes": list(task.classes), "examples": entry["examples"]}
            for task, entry in zip(trainer.tasks, learner._learned)
        ],
        scenarios=scenarios_of(learner),
        scores=scored,
        class_names=names,
    )
    material = material_of(learner, words)
    return page_of([recorded(kept)], material, names, limit, [Place("", "")]).content


def scenarios_of(learner: "ContinualLearner") -> dict[str, Any]:
    """The scores of all tasks, where each was tested after each."""
    events = [event for entry in learner._learned for event in entry.get("tested", [])]
    after = [event["on"] for event in events if not event["before"]]
    if not learner.classes or after != [
        list(range(task + 1)) for task in range(len(learner._learned))
    ]:
        return dict.fromkeys(SCENARIOS)
    return {name: so_far(events, name) for name in SCENARIOS}


def material_of(learner: "ContinualLearner", words: Mapping[int, str] | None) -> Material:
    """What there is to look at: the words that are given, or else what the memory holds."""
    if words is not None:
        if not isinstance(words, Mapping) or not all(map(is_count, words)):
            raise UserError("words are texts by the ids of examples: give {id: text, …}.")
        return Texts({int(name): str(text) for name, text in words.items()})
    memory = learner._trainer.learner.memory
    if memory.inputs is None:
        return Missing("The learner keeps no examples.")
    slots = memory.occupied.numpy()
    return Examples(
        memory.ids.numpy()[slots], slots, trees.in_one(memory.inputs).cpu().float().numpy()
    )


def is_count(value: object) -> bool:
    """Whether it is a whole number from 0 on."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def write_page(path: Path, content: bytes) -> None:
    with or_user_error(f"cannot write {path}", "choose another place."):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)


def report_text(learner: "ContinualLearner") -> str:
    """What a learner has learned, task by task, as Markdown."""
    memory = learner._trainer.learner.memory
    lines = [
        f"# {learner.method} on {type(learner.model).__name__}",
        "",
        f"{learner.tasks} tasks, {len(learner.classes)} classes; the memory holds {len(memory)} of "
        f"{memory.capacity} examples.",
    ]
    if learner.tasks:
        header = ("task", "learned", "examples", "classes", "in memory", "before", "after", "now")
        lines += ["", pipes(header), pipes(["---"] * len(header))]
        lines += [pipes(row) for row in task_rows(learner)]
    notes = []
    if learner._records.of("scores"):
        told = scores_of(learner)
        way = told.way(None)
        expected, total = told.scores.expected(way), len(told.scores.ids)
        notes.append(f"By {way}, about {expected} of {total} labels look wrong.")
    gone = sum(len(record["ids"]) for record in learner.removed)
    if gone:
        notes.append(f"{gone} examples were forgotten.")
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def task_rows(learner: "ContinualLearner") -> list[list[str]]:
    """A row for each task: when, how many, which classes, what is held of it, and its scores
    before it was learned, right after it, and after the last task."""
    memory = learner._trainer.learner.memory
    since = memory.tasks[memory.occupied]
    rows = []
    for task, entry in zip(learner._trainer.tasks, learner._learned):
        first = scores_on(entry.get("tested", []), task.index)
        last = scores_on(learner._learned[-1].get("tested", []), task.index)
        named = [learner.class_names[c] if learner.class_names else str(c) for c in task.classes]
        cells = [
            str(task.index + 1),
            entry.get("ended", "–"),
            str(entry["examples"]),
            ", ".join(named) or "–",
            str(int((since == task.index).sum())),
        ]
        numbers = (first.get(True), first.get(False), last.get(False))
        rows.append([*cells, *("–" if n is None else f"{n:.4f}" for n in numbers)])
    return rows


def scores_on(tests: list[Mapping[str, Any]], task: int) -> dict[bool, float]:
    """The score of a task before (True) and after (False) a task was learned, where tested."""
    return {
        bool(test["before"]): test["class_il"][test["on"].index(task)]
        for test in tests
        if task in test["on"]
    }


def pipes(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

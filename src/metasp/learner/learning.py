"""What comes into a learner and what leaves it: tasks, from beginning to end or not at all,
verified examples, and examples to forget."""

import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from metasp import trees
from metasp.benchmarks.validation import held_out
from metasp.engine import Trainer
from metasp.engine.from_spec import check_stopping
from metasp.engine.mistakes import Diverged
from metasp.errors import UserError
from metasp.events import (
    Evaluated,
    Event,
    RunFinished,
    StepTaken,
    TaskFinished,
    TaskStarted,
    as_record,
)
from metasp.example_stats import ExampleStats
from metasp.learner.checks import check_arrivals, check_fit, check_names, check_trusted
from metasp.learner.data import Arrivals, Arriving, adopted, translated
from metasp.learner.encoder import entered
from metasp.learner.from_model import outputs_or_user_error, plan_for, task_of
from metasp.learner.head import resize_head
from metasp.learner.ids import ids_of
from metasp.learner.stored import back_to, modes, restore_modes, snapshot
from metasp.learner.view import with_names, without_inputs
from metasp.trees import Tree, kind
from metasp.types import Batch, Examples, State

if TYPE_CHECKING:
    from metasp.learner.learner import ContinualLearner


def task_events(
    learner: "ContinualLearner", arriving: Arriving, random: State
) -> Generator[Event, None, None]:
    """One task from beginning to end, or not at all, with the random streams as they were
    before the data was read."""
    learner._check_idle("learn")
    trainer, before = learner._trainer, {**snapshot(learner), "random": random}
    stats, mode, done = trainer.learner.influence_stats, modes(learner.model), False
    learner._busy = True
    try:
        with learner._random.used():
            open_task(learner, arriving)
        if not learner.model.training:
            learner.model.train()
        for event in learner._random.around(trainer.run()):
            if isinstance(event, RunFinished):
                break
            if isinstance(event, Evaluated):
                told = {**as_record(event), "on": list(event.on)}
                learner._learned[-1].setdefault("tested", []).append(told)
            if isinstance(event, TaskFinished):
                close_task(learner, stats, event)
                done, learner._busy = True, False
                restore_modes(mode)
            yield event
    except Diverged as error:
        raise UserError(
            f"{error.event}: try a smaller lr; the learner is as it was before this task."
        ) from error
    finally:
        learner._busy = False
        if not done:
            back_to(learner, before)
            restore_modes(mode)


def close_task(learner: "ContinualLearner", stats: ExampleStats, event: TaskFinished) -> None:
    """Keep of the task what the learner needs to know: not its inputs."""
    learner._history.merge(stats)
    learner._records.note(event, bool(learner._trainer.tasks[-1].classes))
    learner._audit.add_task(event.task, event.scores)
    learner._trainer.tasks[-1] = without_inputs(learner._trainer.tasks[-1])
    learner._trainer.learner.current = None
    learner._learned[-1]["ended"] = now()


def shown(events: Iterator[Event], trainer: Trainer) -> Iterator[Event]:
    """The same events, with a bar of the steps on standard error where that is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as bar:
        line, seen = bar.add_task("starting", total=None), 0.0
        for event in events:
            if isinstance(event, TaskStarted):
                steps = sum(count for count, _ in trainer.remaining().values())
                bar.update(line, total=steps)
            elif isinstance(event, StepTaken):
                bar.advance(line)
                if (now := time.monotonic()) - seen > 0.2:
                    seen = now
                    words = f"task {event.task + 1} · {event.kind} · loss {event.loss:.3f}"
                    bar.update(line, description=words)
            yield event


def open_task(learner: "ContinualLearner", arriving: Arriving) -> None:
    """Check what has arrived and put it at the end of the learner's stream."""
    if learner._trainer.open:
        raise UserError(
            "a stream of batches is open: call finish() to end its task before a whole one."
        )
    found, ids, test, trusted, validation = arriving
    trainer, context = learner._trainer, learner._trainer.learner
    found, learner._names = adopted(found, learner._names, bool(trainer.tasks))
    encoder, keep = learner._parts.encoder, learner.settings.keep
    if encoder is not None:
        encoder.begin(still_needed(learner))
    names = ids_of(ids, len(found.labels), learner._next_id)
    if ids is not None:
        check_names(names, found, trainer.tasks)
    kept = left_out(learner, names)
    if not len(kept):
        raise UserError("every example of the dataset was forgotten before: nothing is left.")
    found, names = found.at(kept), names[kept]
    found = entered(encoder, keep, found)
    check_arrivals(context, found, trainer.tasks, learner._learned)
    if learner._head is not None and found.are_classes and int(found.labels.max()) >= 0:
        size = max(learner._head.out_features, int(found.labels.max()) + 1)
        resize_head(learner._head, size, context.optimizer, context.streams["head"])
    check_fit(context, found, learner._recipe, learner._parts.loss_fn is not None)
    if test is not None:
        test = translated(test, learner._names)
        test = entered(encoder, keep, test)
        learner._parts.check_scored(test.labels, found.labels)
        outputs_or_user_error(context, trees.rows(test.inputs, slice(2)))
    held = None
    if validation is not None:
        check_stopping(learner.method, learner._recipe)
        found, names, held = hold_out(learner, found, names, validation)
    context.plan = plan_for(context.plan, found.classes, trainer.tasks)
    learner._next_id = max(learner._next_id, int(names.max()) + 1)
    task = replace(task_of(len(trainer.tasks), found, names, test), validation=held)
    if trusted is not None:
        check_trusted(trusted, {*learner.classes, *found.classes}, learner._names)
        trusted = translated(trusted, learner._names)
        trusted = entered(encoder, keep, trusted)
        check_arrivals(context, trusted, [*trainer.tasks, task], learner._learned)
        own = learner._next_id + torch.arange(len(trusted.labels))
        task = replace(task, trusted=Examples.of(trusted.inputs, trusted.labels, own))
        learner._next_id = int(own[-1]) + 1
    if learner._recipe.selection is None:  # no memory to pin them in
        task = task.with_trusted_in_train()
    trainer.tasks.append(task)
    learner._learned.append({"began": now(), "examples": len(names), "inputs": kind(found.inputs)})


def left_out(learner: "ContinualLearner", names: Tensor) -> Tensor:
    """The rows of examples that were not forgotten before."""
    gone = torch.tensor([i for record in learner._removed for i in record["ids"]])
    return torch.nonzero(~torch.isin(names, gone)).flatten()


def still_needed(learner: "ContinualLearner") -> list[Tree]:
    """Raw inputs of earlier tasks whose features an encoder is still asked for."""
    memory = learner._trainer.learner.memory
    if learner.settings.keep == "features":
        return []
    tests = [task.test.source for task in learner._trainer.tasks if len(task.test)]
    return tests if memory.inputs is None else [memory.read(memory.occupied).inputs, *tests]


def hold_out(
    learner: "ContinualLearner", found: Arrivals, names: Tensor, validation: Arrivals | float
) -> tuple[Arrivals, Tensor, Examples]:
    """What to learn from, its ids, and the examples by which learning stops."""
    context = learner._trainer.learner
    if isinstance(validation, float):
        held = held_out(found.labels, validation, context.streams["held-out"])
        rows = torch.arange(len(names))
        rest = rows[~torch.isin(rows, held)]
        validation = found.at(held)
        kept = Examples.of(validation.inputs, validation.labels, names[held])
        return found.at(rest), names[rest], kept
    strange = [repr(name) for name in validation.names if name not in learner._names]
    validation = translated(validation, learner._names)
    validation = entered(learner._parts.encoder, learner.settings.keep, validation)
    if kind(validation.labels) != kind(found.labels) or kind(validation.inputs) != kind(
        found.inputs
    ):
        raise UserError(
            f"the validation dataset has inputs that are {kind(validation.inputs)} and labels that "
            f"are {kind(validation.labels)}, and the dataset {kind(found.inputs)} and "
            f"{kind(found.labels)}: bring them to one shape and type."
        )
    strange += map(str, sorted({*validation.classes} - {*learner.classes, *found.classes}))
    if strange:
        raise UserError(
            f"the validation dataset has examples of class {strange[0]}, which the learner has not "
            "seen: leave them out."
        )
    return found, names, Examples.of(validation.inputs, validation.labels)


def pin(learner: "ContinualLearner", found: Arrivals) -> list[int]:
    """Pin verified examples in the learner's memory. Gives their ids."""
    check_trusted(found, learner.classes, learner._names)
    found = translated(found, learner._names)
    found = entered(learner._parts.encoder, learner.settings.keep, found)
    trainer, names = learner._trainer, learner._next_id + torch.arange(len(found.labels))
    check_arrivals(trainer.learner, found, trainer.tasks, learner._learned)
    batch, last = Batch(found.inputs, found.labels, names), len(trainer.tasks) - 1
    trainer.learner.trust(batch, last, learner.classes, trainer.method.column_values)
    if not trainer.open:  # which knows its newest examples alone
        trainer.tasks[last] = with_names(trainer.tasks[last], names, found.labels)
    learner._next_id = int(names[-1]) + 1
    return [int(name) for name in names]


def remove(learner: "ContinualLearner", gone: list[int], reason: str) -> list[int]:
    """Go on without the examples of these ids, ascending, and keep a record of it. Gives them."""
    if not isinstance(reason, str):
        raise UserError(f"the reason is a text that is kept, not {reason!r}.")
    held = set(learner._trainer.learner.memory.ids.tolist())
    wanted = torch.tensor(gone, dtype=torch.long)
    learner._trainer.forget(wanted)
    learner._history.forget(wanted)
    learner._records.forget(wanted.numpy())
    learner._audit = learner._audit.without(wanted)
    if gone and learner._parts.encoder is not None:
        learner._parts.encoder.cache.clear()  # it knows no ids: all is computed again when needed
    if gone:
        learner._next_id = max(learner._next_id, gone[-1] + 1)  # numbers of its own skip them
        count = sum(i in held for i in gone)
        learner._removed.append(
            {"ids": gone, "when": now(), "reason": reason, "from_memory": count}
        )
    return list(gone)


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")

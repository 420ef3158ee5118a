"""Batches without tasks: one open task that grows, of which only the newest examples are kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from metasp import trees
from metasp.engine.mistakes import BATCHNORM_NEEDS_TWO, Diverged
from metasp.engine.observing import close, observe
from metasp.errors import UserError
from metasp.events import Event, TaskFinished
from metasp.example_stats import ExampleStats
from metasp.influence.checks import enough_values
from metasp.learner.checks import check_arrivals, check_fit, check_names
from metasp.learner.data import Arrivals, adopted
from metasp.learner.from_model import plan_for, task_of
from metasp.learner.head import resize_head
from metasp.learner.ids import ids_of
from metasp.learner.learning import close_task, left_out, now
from metasp.learner.stored import modes, restore_modes
from metasp.methods.context import TrainingContext, measured
from metasp.trees import Tree
from metasp.types import Batch, Examples, Rows

if TYPE_CHECKING:
    from metasp.learner.learner import ContinualLearner

RECORDED = 16  # closed tasks of a stream whose tables are kept


def observe_batch(learner: "ContinualLearner", found: Arrivals, ids: Rows | None) -> list[Event]:
    """One step on a batch that has been read. Nothing is changed before all is checked."""
    trainer, opening = learner._trainer, not learner._trainer.open
    if opening:
        check_online(learner)
    found, class_names = adopted(found, learner._names, bool(trainer.tasks))
    names = ids_of(ids, len(found.labels), learner._next_id)
    if ids is not None:
        check_names(names, found, trainer.tasks)
    kept = left_out(learner, names)
    if not len(kept):
        return []
    found, names = found.at(kept), names[kept]
    encoder = learner._parts.encoder
    if encoder is not None:  # nothing is cached of a stream: nobody knows what will come again
        found = found._replace(inputs=encoder.for_model(found.inputs).cpu())
    check_arrivals(trainer.learner, found, trainer.tasks, learner._learned)
    if len(names) == 1 and not len(trainer.learner.memory):
        check_alone(trainer.learner, found.inputs)
    if opening or {*found.classes} - {*trainer.tasks[-1].classes}:
        grow(learner, found)
    learner._names, learner._next_id = class_names, max(learner._next_id, int(names.max()) + 1)
    if opening:
        open_task(learner, found, names)
    context, closed = trainer.learner, trainer.tasks[:-1]
    context.plan = plan_for(context.plan, found.classes, closed)
    learner._learned[-1]["examples"] += len(names)
    stats, batch = context.influence_stats, Batch(found.inputs, found.labels, names)
    with training(learner):
        events = list(observe(trainer, batch, found.classes))
    note_closed(learner, stats, events)
    return events


def finish(learner: "ContinualLearner") -> list[Event]:
    """End the open task."""
    stats = learner._trainer.learner.influence_stats
    with training(learner):
        events = list(close(learner._trainer))
    note_closed(learner, stats, events)
    return events


@contextmanager
def training(learner: "ContinualLearner") -> Iterator[None]:
    """The model in training mode with the learner's own random streams, for a while."""
    mode = modes(learner.model)
    learner._busy = True
    try:
        if not learner.model.training:
            learner.model.train()
        with learner._random.used(), torch.enable_grad():
            yield
    except Diverged as error:
        raise UserError(
            f"{error.event}: load the learner as it was last saved, and try a smaller lr."
        ) from error
    finally:
        learner._busy = False
        restore_modes(mode)


def check_online(learner: "ContinualLearner") -> None:
    """Refuse what cannot learn from a stream without boundaries, and name what can."""
    recipe, context = learner._recipe, learner._trainer.learner
    if recipe.kind.boundaries:
        raise UserError(
            f"{learner.method} must know where a task ends, and a stream does not tell: use er, "
            "derpp, er-ace, mir, gss, gmed or metasp, or learn whole tasks."
        )
    if context.weigh is not None and context.weigh.judges:
        raise UserError(
            "influence robust judges a whole task at once, and a stream has none: use influence "
            "metasp, or learn whole tasks."
        )
    if recipe.selection is not None and context.selection.at != "step":
        raise UserError(
            f"{learner.method} chooses what to keep at a task's end, and a stream has none: pass "
            "selection='reservoir', 'greedy' (balanced by class) or 'ring', or learn whole tasks."
        )
    if learner._parts.scheduler is not None and learner.settings.scheduler_step != "step":
        raise UserError(
            "the scheduler moves at the end of an epoch, and a stream has none: pass "
            "scheduler_step='step'."
        )
    if learner._parts.encoder is not None and learner.settings.keep != "features":
        raise UserError(
            "with an encoder a stream keeps features alone: make the learner with keep='features'."
        )


def check_alone(context: TrainingContext, inputs: Tree) -> None:
    """Raise if the model cannot be trained on one example alone: batch normalisation cannot."""
    if any(isinstance(module, _BatchNorm) for module in context.model.modules()):
        trial = deepcopy(context.model).eval()
        for module in trial.modules():
            if isinstance(module, _BatchNorm):
                module.train()
        here = trees.each(lambda t: t.to(context.device), inputs)
        try:
            with torch.no_grad(), enough_values(BATCHNORM_NEEDS_TWO):
                trees.call(trial, context.transform(here))
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            if isinstance(error, UserError):  # what else is wrong is told later
                raise


def grow(learner: "ContinualLearner", found: Arrivals) -> None:
    """Give the head an output for each class that has come, and check that all fits; where it does
    not, the head is as before."""
    context, head = learner._trainer.learner, learner._head
    stream = context.streams["head"]
    before, size = stream.get_state(), 0 if head is None else head.out_features
    try:
        if head is not None and found.are_classes:
            wanted = max(size, int(found.labels.max()) + 1)
            resize_head(head, wanted, context.optimizer, stream)
        check_fit(context, found, learner._recipe, learner._parts.loss_fn is not None)
    except UserError:
        if head is not None:
            resize_head(head, size, context.optimizer, stream)
        stream.set_state(before)
        raise


def open_task(learner: "ContinualLearner", found: Arrivals, names: Tensor) -> None:
    """Put an open task at the end of the stream."""
    trainer = learner._trainer
    if learner._parts.encoder is not None:
        learner._parts.encoder.check_unchanged()
    trainer.tasks.append(task_of(len(trainer.tasks), found, names, None))
    entry = {"began": now(), "examples": 0, "inputs": trees.kind(found.inputs)}
    learner._learned.append(entry)


def note_closed(learner: "ContinualLearner", stats: ExampleStats, events: list[Event]) -> None:
    """Keep of a task that has been closed what is bounded: nothing of examples that the memory
    does not hold."""
    for event in events:
        if isinstance(event, TaskFinished):
            close_task(learner, stats, event)
            tasks = learner._trainer.tasks
            tasks[-1] = replace(tasks[-1], train=none_of(tasks[-1].train))
            keep_known(learner, learner._history)
            learner._learned[-1]["observed"] = True
            seen = [n for n, entry in enumerate(learner._learned) if "observed" in entry]
            learner._records.drop(seen[:-RECORDED])


def none_of(train: Examples) -> Examples:
    """No examples of the same kind of labels."""
    return train.only(torch.zeros(0, dtype=torch.long))


def all_influence(learner: "ContinualLearner") -> ExampleStats:
    """The influences measured so far, in the open task too."""
    if not learner._trainer.open:
        return learner._history
    stats = measured()
    stats.merge(learner._history)
    stats.merge(learner._trainer.learner.influence_stats)
    keep_known(learner, stats)
    return stats


def keep_known(learner: "ContinualLearner", stats: ExampleStats) -> None:
    """Forget the influences of examples that neither the memory nor a task still knows."""
    memory = learner._trainer.learner.memory
    known = [memory.ids[memory.occupied], *(task.train.ids for task in learner._trainer.tasks)]
    stats.forget(stats.ids[~torch.isin(stats.ids, torch.cat(known))])

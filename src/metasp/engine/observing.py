"""A task that is open: it grows batch by batch, and nobody knows its end."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from metasp.engine.change import Change, MakeDetector
from metasp.events import Event
from metasp.methods.context import TrainingContext
from metasp.methods.method import Phase
from metasp.stateful import Stateful
from metasp.types import Batch, Examples, Task

if TYPE_CHECKING:
    from metasp.engine.trainer import Trainer

WINDOW = 200


class OpenTask(Stateful):
    """The newest examples of an open task, which stand for what is new, and what a detector of
    change was told. `recent` is None while no task is open."""

    stored = ("recent", "change")

    def __init__(self, window: int = WINDOW, detector: MakeDetector | None = None) -> None:
        self.window = window
        self.change = None if detector is None else Change(detector)
        self.recent: Batch | None = None

    def __bool__(self) -> bool:
        return self.recent is not None

    @property
    def examples(self) -> Examples:
        """The newest examples as training data."""
        assert self.recent is not None
        return Examples.of(*self.recent)

    def take(self, new: Batch) -> None:
        """Let a batch in and the oldest examples out."""
        if self.recent is not None:
            again = torch.isin(self.recent.ids, new.ids)
            new = Batch.join([self.recent.at(~again), new])
        self.recent = new.at(slice(max(0, new.size - self.window), new.size))

    def close(self) -> None:
        self.recent = None
        if self.change is not None:
            self.change.stand_at(())


def observe(trainer: "Trainer", new: Batch, classes: Sequence[int]) -> Iterator[Event]:
    """One step on a batch of the open task, which is the last one and begins with its first
    batch. The state may be taken when all events have been given."""
    at, learner, own = trainer.position, trainer.learner, trainer.open
    beginning = not own
    own.take(new)
    task = grown(trainer, classes)
    if beginning:
        trainer.start_clock()
        yield from trainer.begin(task)
    began = time.monotonic()
    learner.training_stats.follow(task.train.ids)
    phase = Phase("observe", 1, new.size, new.size, lambda: task.train)
    yield from trainer.take_step(new, phase, 0, task)
    at.observed += 1
    bound_influence(learner)
    at.seconds += time.monotonic() - began
    if own.change is not None and own.change.saw(loss_of_new(learner, new)):
        learner.notes.append("the loss of new examples has risen for good: another task begins.")
        yield from close(trainer)


def grown(trainer: "Trainer", classes: Sequence[int]) -> Task:
    """The open task with its newest examples, in its place in the trainer."""
    last, learner = trainer.tasks[-1], trainer.learner
    every = tuple(sorted({*last.classes, *classes}))
    task = replace(last, classes=every, train=trainer.open.examples)
    trainer.tasks[-1] = task
    learner.current, learner.task, learner.open = task.train, task.index, True
    return task


def close(trainer: "Trainer") -> Iterator[Event]:
    """End the open task as any other."""
    yield from trainer.finish(trainer.tasks[-1])
    trainer.open.close()
    trainer.learner.open = False


def bound_influence(learner: TrainingContext) -> None:
    """Keep the influences of what is in memory or among the newest examples; seldom, as it takes
    a look at all of them."""
    assert learner.current is not None
    known = torch.cat([learner.memory.ids[learner.memory.occupied], learner.current.ids])
    stats = learner.influence_stats
    if len(stats) > 2 * (learner.memory.capacity + len(learner.current)):
        stats.forget(stats.ids[~torch.isin(stats.ids, known)])


def loss_of_new(learner: TrainingContext, new: Batch) -> float:
    """The mean loss of a batch before its step; that of the step, for a method that does not
    train by `update`."""
    known = learner.training_stats.examples.means(new.ids, "loss")
    known = known[~known.isnan()]
    return float(known.mean()) if len(known) else learner.last_loss

"""A task that is open: it grows batch by batch, and a detector of change in the loss of new
examples may say where it ends."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.events import Event
from metasp.methods.base import Phase
from metasp.methods.context import TrainingContext
from metasp.stateful import Stateful
from metasp.types import Batch, Examples, State, Task

if TYPE_CHECKING:
    from metasp.train.trainer import Trainer

KEPT = 2_000  # losses that a detector is made anew from, when it has been told twice as many
RECENT = 10  # losses that say whether a change was a rise, where a detector does not


class Detector(Protocol):
    """What `river.drift` calls a drift detector, such as ADWIN."""

    @property
    def drift_detected(self) -> bool: ...

    def update(self, x: float) -> Any: ...


MakeDetector = Callable[[], Detector]
"""A class of detectors, or a function that makes one."""


class Change:
    """Tells when the loss has risen for good. A fall marks nothing: learning brings it about.

    What a detector holds inside is its own affair, so its state is the losses that it was told
    since it was made: from them another one is made that stands where it stood. After so many of
    them it is made anew from the newer half."""

    def __init__(self, make: MakeDetector) -> None:
        self.make = make
        self.stand_at(())

    def stand_at(self, losses: Sequence[float]) -> None:
        """As after these losses."""
        self.detector, self.losses = self.make(), [float(loss) for loss in losses]
        if not hasattr(self.detector, "update") or not hasattr(self.detector, "drift_detected"):
            raise UserError(
                f"detector returned a {type(self.detector).__name__}: pass a class of drift "
                "detectors, such as river.drift.ADWIN, or a function that makes one."
            )
        for loss in self.losses:
            self.detector.update(loss)

    def state_dict(self) -> State:
        return {"losses": torch.tensor(self.losses, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        self.stand_at(state["losses"].tolist() if "losses" in state else ())

    def saw(self, loss: float) -> bool:
        """Note the loss of new examples; whether it has risen for good."""
        before = estimate(self.detector)
        self.detector.update(loss)
        self.losses.append(loss)
        rose = self.detector.drift_detected and self._rose(before)
        if len(self.losses) >= 2 * KEPT:
            self.stand_at(self.losses[KEPT:])
        return bool(rose)

    def _rose(self, before: float | None) -> bool:
        """Whether a change was for the worse."""
        after = estimate(self.detector)
        if before is not None and after is not None:
            return after > before
        older, newer = self.losses[:-RECENT], self.losses[-RECENT:]
        return not older or sum(newer) / len(newer) > sum(older) / len(older)


def estimate(detector: Any) -> float | None:
    """The mean loss of the time that the detector looks at, if it tells."""
    found = getattr(detector, "estimation", None)
    return None if found is None else float(found)


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

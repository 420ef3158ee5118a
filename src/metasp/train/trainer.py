"""The engine owns time: tasks, phases, epochs and steps, in one visible loop."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from metasp.errors import BATCHNORM_NEEDS_TWO, Diverged, UserError
from metasp.events import (
    Evaluated,
    Event,
    Noted,
    RunFinished,
    StepTaken,
    TaskFinished,
    TaskStarted,
    Validated,
)
from metasp.example_stats import TrainingStats
from metasp.influence.checks import enough_values
from metasp.methods.base import Method, Phase, batch_bounds, over_task
from metasp.methods.context import Step, TrainingContext, measured
from metasp.stateful import HasState, Stateful, below, under
from metasp.train.early_stopping import Stopping
from metasp.train.evaluate import evaluate, influence_table, note_influence, score_table
from metasp.train.online import OpenTask, grown
from metasp.train.optimizers import LearningRate, OptimizerState, Schedule
from metasp.train.skipping import Skipping
from metasp.types import Batch, Examples, State, Task

DIVERGED = 40  # a loss so many times the first one (or 1): no sound run comes near it

Score = Callable[[TrainingContext, Task, Sequence[int]], tuple[float, float]]
"""A task's test score over all classes seen, and over its own."""


@dataclass
class Position:
    """Where in the run we stand: the next step to take."""

    task: int = 0
    phase: int = 0
    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    begun: bool = False  # the task has been announced and tested
    scheduled: int = 0  # moves of the learning rate's schedule in this task
    observed: int = 0  # batches of open tasks, in all
    first_loss: float | None = None
    diverged: bool = False  # a loss was far above the first one


class Trainer(Stateful):
    """Walks a method through a stream of tasks, and can be stopped and restored at any step. Tasks
    may be added to `tasks` later: the next `run` goes on with them."""

    stored = ("order", "stopping", "skipping", "open")

    def __init__(
        self,
        learner: TrainingContext,
        method: Method,
        tasks: list[Task],
        lr: LearningRate,
        score: Score = evaluate,
        told: Sequence[Mapping[int | None, float]] = (),
    ) -> None:
        self.learner, self.method, self.tasks, self.lr = learner, method, tasks, lr
        self.score, self.told = score, told
        self.schedule: Schedule | None = None  # in place of `lr`
        self._rates = [group["lr"] for group in learner.optimizer.param_groups]
        learner.scored_by = method.scoring
        self.position = Position()
        self.order = torch.zeros(0, dtype=torch.long)
        self.stopping, self.skipping = Stopping(), Skipping()
        self.open = OpenTask()
        self.ending = False  # set it in the midst of a task to end the task there
        self.test_every = 1  # tasks; after the last one of all is always tested
        self._since = 0.0

    def run(self) -> Iterator[Event]:
        """Everything from the current position to the end. The state may be taken whenever a
        StepTaken or TaskFinished has been yielded: it then says exactly what has happened."""
        at = self.position
        for task in self.tasks[at.task :]:
            self.start_clock()
            if not at.begun:
                self.tasks[task.index] = task = self.skipping.sound(task, self.learner.notes)
            self.learner.current, self.learner.task = task.train, task.index
            self.learner.told = self.told[task.index] if self.told else None
            if not at.begun:
                yield from self.begin(task)
            if self.schedule is not None:
                self.schedule.stand_at(at.scheduled)
            done_epochs = 0
            for number, phase in enumerate(self.method.phases(task, self.tasks[: at.task + 1])):
                if number >= at.phase and not self.ending:
                    yield from self._phase(task, phase, done_epochs)
                    at.phase, at.epoch, at.step = number + 1, 0, 0
                done_epochs += phase.epochs
            yield from self.finish(task)
        yield RunFinished(len(self.tasks), at.seconds)

    def finish(self, task: Task) -> Iterator[Event]:
        """End a task: the memory decides, the tasks so far are tested."""
        at, self.ending = self.position, False
        finished = self._end(task)
        yield from self._notes(task)
        if (task.index + 1) % self.test_every == 0 or task.index + 1 == len(self.tasks):
            yield from self._test(task, before=False)
        at.task, at.phase, at.step = task.index + 1, 0, 0
        at.begun, at.scheduled = False, 0
        at.seconds = time.monotonic() - self._since
        yield finished

    def start_clock(self) -> None:
        """Count the seconds from here on those that were spent before."""
        self._since = time.monotonic() - self.position.seconds

    def _phase(self, task: Task, phase: Phase, done_epochs: int) -> Iterator[Event]:
        """All epochs of a phase, or those until the held-out examples say that it is enough."""
        at, examples = self.position, phase.examples()
        held = self.method.held_out(self.tasks[: task.index + 1])
        for epoch in range(at.epoch, phase.epochs):
            factor = phase.lr_factor(epoch) if phase.lr_factor else 1.0
            self._set_lr(done_epochs + epoch, factor)
            yield from self._epoch(task, phase, examples, done_epochs + epoch)
            yield from self._validate(task, held, done_epochs + epoch)
            at.epoch, at.step = epoch + 1, 0
            self._move_schedule("epoch")
            if self.ending or self.stopping.over:
                break
        if self.stopping.waited:
            self._keep_best(phase, at.epoch, done_epochs)
            yield from self._notes(task)
        self.stopping.reset()

    def _epoch(self, task: Task, phase: Phase, examples: Examples, epoch: int) -> Iterator[Event]:
        at = self.position
        if at.step == 0:
            self.order = self._shuffled(len(examples))
            self.method.begin_epoch(task, epoch)
        bounds = batch_bounds(len(examples), phase.batch_size)[at.step :]
        parts = (self.order[start:stop] for start, stop in bounds)
        for new in examples.batches(parts, pin=self.learner.device.type == "cuda"):
            yield from self.take_step(new, phase, epoch, task)
            if self.ending:
                return

    def take_step(self, new: Batch, phase: Phase, epoch: int, task: Task) -> Iterator[Event]:
        """One step on a batch, told when all that belongs to it has happened."""
        taken = self._step(new, phase, epoch, task)
        yield from self._notes(task)
        self.position.step += 1
        self._move_schedule("step")
        self.position.seconds = time.monotonic() - self._since
        yield taken

    def _validate(self, task: Task, held: Sequence[Examples], epoch: int) -> Iterator[Validated]:
        """Look at the examples that are held out, without training on them."""
        if not held:
            return
        losses = [over_task(self.learner, examples, self.learner.losses) for examples in held]
        loss = float(torch.cat(losses).double().mean())
        lowest = self.stopping.look(self.learner.model, loss, epoch)
        for watcher in self.learner.watchers if lowest else ():
            watcher.mark()
        yield Validated(task.index, epoch, loss, lowest)

    def _keep_best(self, phase: Phase, epochs: int, done_epochs: int) -> None:
        """Go back to the best weights of a phase whose last epochs did not lower the loss."""
        best, whole = self.stopping, phase.epochs
        best.keep(self.learner.model)
        for watcher in self.learner.watchers:
            watcher.set_weights(marked=True)
        stopped = f"stopped after {epochs} of {whole} epochs ({phase.kind}); "
        self.learner.notes.append(
            f"{stopped if epochs < whole else ''}the loss on held-out examples was lowest after "
            f"epoch {best.epoch - done_epochs + 1} ({best.loss:.4g}), whose weights are kept."
        )

    def _notes(self, task: Task) -> Iterator[Noted]:
        """What the learner has to tell since it was last asked."""
        notes, self.learner.notes = self.learner.notes, []
        for text in notes:
            yield Noted(task.index, text)

    def remaining(self) -> dict[str, tuple[int, float]]:
        """Steps still to take and their nominal cost, by kind of phase."""
        at = self.position
        left: dict[str, tuple[int, float]] = {}
        for task in self.tasks[at.task :]:
            for number, phase in enumerate(self.method.phases(task, self.tasks[: task.index + 1])):
                steps = phase.steps
                if (task.index, number) < (at.task, at.phase):
                    steps = 0
                elif (task.index, number) == (at.task, at.phase):
                    steps -= steps // phase.epochs * at.epoch + at.step
                left[phase.kind] = (left.get(phase.kind, (0, 0.0))[0] + steps, phase.cost)
        return left

    def parts(self) -> dict[str, HasState]:
        """All that a run is made of besides its position, by the names that are stored."""
        context = self.learner
        parts: dict[str, HasState] = {
            "model": context.model,
            "optimizer": OptimizerState(context.optimizer),
            "streams": context.streams,
            "memory": context.memory,
            "method": self.method,
            "influence_stats": context.influence_stats,
            "training_stats": context.training_stats,
            "engine": self,
        }
        return parts if context.weigh is None else {**parts, "weigh": context.weigh}

    def state(self) -> tuple[State, dict[str, Any]]:
        """Return everything a run is made of, as tensors by name and plain numbers."""
        tensors: State = {}
        for part, holder in self.parts().items():
            tensors |= under(part, holder.state_dict())
        if any(not p.isfinite().all() for p in self.learner.model.parameters()):
            raise Diverged(f"a weight of the network became NaN or infinite {self._moment(0)}")
        for name, value in tensors.items():
            if not isinstance(value, Tensor):
                raise UserError(
                    f"{name} of the state is {value!r}, and only tensors are stored: make it a "
                    "tensor in `state_dict`, and turn that back in `load_state_dict`."
                )
        return tensors, asdict(self.position)

    def restore(self, tensors: Mapping[str, Tensor], position: Mapping[str, Any]) -> None:
        """Stand exactly where `state` was taken."""
        for part, holder in self.parts().items():
            holder.load_state_dict(below(part, tensors))
        self.tasks = self.skipping.without_corrupt(self.tasks)
        self.position, self.ending = Position(**position), False
        self.learner.open = bool(self.open)
        if self.open:
            grown(self, ())
            if self.schedule is not None:
                self.schedule.stand_at(self.position.scheduled)

    def forget(self, ids: Tensor) -> None:
        """Go on without the examples of these ids: they leave the tasks, the memory, the
        statistics and what the method keeps. Not to be called within an epoch."""
        self.tasks = [task.without(ids) for task in self.tasks]
        context = self.learner
        context.memory.forget(ids)
        context.influence_stats.forget(ids)
        context.training_stats.forget(ids)
        for part in (self.method, context.weigh, self.open):
            if part is not None:
                part.forget(ids)
        if self.open:
            grown(self, ())  # nothing of them is left in its examples either

    def begin(self, task: Task) -> Iterator[Event]:
        """Announce a task, test it, and let all who must know of it prepare."""
        yield TaskStarted(task.index, task.classes, len(task.train))
        yield from self._test(task, before=True)
        self.learner.training_stats = TrainingStats.of_task(task)
        if self.learner.weigh is not None:
            self.learner.weigh.begin_task(self.learner)
        if self.method.selection and task.trusted is not None and len(task.trusted):
            verified = task.trusted.take(torch.arange(len(task.trusted)))
            values = self.method.column_values
            self.learner.trust(verified, task.index, self._seen(task), values)
        self.method.begin_task(task)
        yield from self._notes(task)
        self.position.begun = True

    def _end(self, task: Task) -> TaskFinished:
        """Close the task: what its influences say goes to the memory, which then decides."""
        learner, seen = self.learner, self.tasks[: task.index + 1]
        note_influence(learner)
        with enough_values(BATCHNORM_NEEDS_TWO):
            self.method.end_task(task)
        columns = influence_table(learner, seen)
        learner.influence_stats = measured()
        scores = score_table(learner, task)
        return TaskFinished(task.index, learner.memory.table(), columns, scores)

    def _step(self, new: Any, phase: Phase, epoch: int, task: Task) -> StepTaken:
        began = time.perf_counter()
        self.learner.epoch, self.learner.arrived = epoch, new.size
        with enough_values(BATCHNORM_NEEDS_TWO):
            report = phase.step(new) if phase.step else self.method.step(new, phase)
        if not isinstance(report, Step):
            raise UserError(
                f"the step of {type(self.method).__name__} returned {report!r}: it must return "
                "what `learner.update` returns."
            )
        if self.method.offers(epoch):
            self.method.remember(new, task)
        lr = self.learner.optimizer.param_groups[0]["lr"]
        at, self.learner.last_loss = self.position, report.loss
        if not math.isfinite(report.loss):
            raise Diverged(f"the loss became NaN or infinite {self._moment(1)}")
        if task.classes:
            self._watch_loss(report.loss)
        seconds = round(time.perf_counter() - began, 6)
        return StepTaken(
            at.task, epoch, at.step, phase.kind, report.loss, lr, seconds, report.numbers
        )

    def _watch_loss(self, loss: float) -> None:
        """Note once in a run that the loss is far above that of the first step."""
        at = self.position
        if at.first_loss is None:
            at.first_loss = loss
        if not at.diverged and loss > DIVERGED * max(1.0, at.first_loss):
            at.diverged = True
            self.learner.notes.append(
                f"TRAINING DIVERGED: the loss is {loss:.3g} {self._moment(1)}, and was "
                f"{at.first_loss:.3g} at the first step: try a smaller --lr."
            )

    def _test(self, task: Task, before: bool) -> Iterator[Evaluated]:
        """Test the tasks seen so far that can be tested, or, before training, the one that is
        about to come."""
        upto, seen = self.tasks[: task.index + 1], self._seen(task)
        tested = [other for other in ([task] if before else upto) if len(other.test)]
        if not tested:
            return
        class_il, task_il = zip(*(self.score(self.learner, other, seen) for other in tested))
        yield Evaluated(task.index, before, tuple(t.index for t in tested), class_il, task_il)

    def _seen(self, task: Task) -> list[int]:
        """All classes up to a task, ascending."""
        upto = self.tasks[: task.index + 1]
        return sorted(set(chain.from_iterable(of_task.classes for of_task in upto)))

    def _shuffled(self, size: int) -> Tensor:
        return torch.randperm(size, generator=self.learner.streams["order"])

    def _set_lr(self, epoch: int, factor: float) -> None:
        if self.schedule is None:
            for group, start in zip(self.learner.optimizer.param_groups, self._rates):
                group["lr"] = self.lr.at(start, epoch) * factor

    def _move_schedule(self, after: str) -> None:
        if self.schedule is not None and self.schedule.every == after:
            self.schedule.move()
            self.position.scheduled += 1

    def _moment(self, more: int) -> str:
        """Where training stands after so many more steps, as people count."""
        at = self.position
        if not at.begun:
            return f"by the end of task {at.task}" if at.task else "before any training"
        phases = self.method.phases(self.tasks[at.task], self.tasks[: at.task + 1])
        epoch = sum(phase.epochs for phase in phases[: at.phase]) + at.epoch + 1
        return f"at task {at.task + 1}, epoch {epoch}, step {at.step + more}"

"""Session of a learner: its trainer goes through one task after the other, each whole or not at
all, while other threads may read between two steps."""

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metasp import trees
from metasp.errors import Diverged, UserError
from metasp.events import Evaluated, Event, StepTaken, TaskFinished, as_record
from metasp.example_stats import ExampleStats
from metasp.influence.parallel import Ranks
from metasp.learner.build import check_trainable
from metasp.learner.history import (
    stored_ids,
    with_ids,
    without_examples,
    without_inputs,
)
from metasp.learner.inputs import Labelled, read_examples, read_inputs, renumbered
from metasp.learner.intake import Intake, TaskData, classes_of
from metasp.learner.outputs import (
    answers,
    in_training,
    model_outputs,
    score_outputs,
    unchanged,
)
from metasp.learner.state import EventLog, LearnerState, Snapshot, Snapshots, Turns
from metasp.methods.label_model import Verdicts, judge
from metasp.processes import check_alike
from metasp.stateful import under
from metasp.train.online import close, observe
from metasp.train.randomness import ONE_AT_A_TIME, OwnRandomness
from metasp.trees import Tree
from metasp.types import Batch, Rows, State, Task

log = logging.getLogger("metasp")


class Session:
    """Takes a trainer through a stream of tasks. `turn` is held during each step and by whoever
    reads; `before` is the state before the task of `run` that is under way, None between tasks."""

    def __init__(self, intake: Intake, ranks: Ranks | None) -> None:
        self.trainer, self.history, self.intake = intake.trainer, intake.history, intake
        self.code, self.settings, self.ranks = intake.code, intake.settings, ranks
        self.context, self.model = intake.context, intake.context.model
        self.random = OwnRandomness(self.context.streams, self.context.device)
        self.state = LearnerState(intake, self.random)
        self.turn = Turns()
        self.before: Snapshot | None = None
        self.logged = EventLog(intake.settings.scheduler_step)

    @property
    def classes(self) -> tuple[int, ...]:
        """Return all classes seen, ascending."""
        return tuple(sorted(classes_of(self.trainer.tasks)))

    def check_idle(self, what: str) -> None:
        if self.before is not None:
            raise UserError(
                f"cannot {what} in the middle of a task: let its stream run to the end, or close "
                "it."
            )

    def check_learned(self) -> None:
        """Raise where nothing can be said of classes, before there are any."""
        if not self.history.learned and self.code.loss_fn is None:
            raise UserError(
                "no class has been learned yet: learn a dataset first, or call `outputs` for what "
                "the model returns now."
            )

    def read(self, data: Any, what: str = "dataset") -> Labelled:
        """Read all examples of whatever holds them; every process must be given the same."""
        examples = read_examples(data, self.dtype, what)
        self._check_alike(examples.inputs, what, {"labels": examples.labels})
        return examples

    def read_inputs(self, x: Any) -> Tree:
        """Read inputs without labels; every process must be given the same."""
        inputs = read_inputs(x, self.raw_inputs(self.context.memory.inputs), self.dtype)
        self._check_alike(inputs, "inputs")
        return inputs

    def raw_inputs(self, stored: Tree | None) -> Tree | None:
        """Return what is stored of raw inputs: None where features of them are stored alone."""
        if self.code.encoder is None or stored is None:
            return stored
        return stored["raw"] if isinstance(stored, Mapping) else None

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the parameters that are trained."""
        every = list(self.model.parameters())
        return next((p.dtype for p in every if p.requires_grad), every[0].dtype)

    @contextmanager
    def reading(self) -> Iterator[State]:
        """Read data by the learner's random streams: a loader may shuffle. Gives their state before
        that, to which they return if it fails."""
        before = self.random.state()
        try:
            with self.random.used():
                yield before
        except BaseException:
            self.random.restore(before)
            raise

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Train: alone, in training mode, and by the learner's random streams."""
        with (
            ONE_AT_A_TIME,
            self.turn,
            self.random.used(),
            torch.enable_grad(),
            in_training(self.model),
        ):
            yield

    def run(
        self, data: TaskData, random: State, snapshots: Snapshots | None
    ) -> Generator[Event, None, None]:
        """Learn one task from beginning to end, or not at all, with the random streams as they were
        before the data was read; go on from a snapshot of it, if there is one."""
        trainer = self.trainer
        with ONE_AT_A_TIME, self.turn:
            self.check_idle("learn")
            tensors, about, tasks = self.state.snapshot()
            tensors |= under("random", random)
            copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            self.before = before = Snapshot(copies, about, tasks)
        try:
            with self.stepping():
                if trainer.open:
                    raise UserError(
                        "a stream of batches is open: call finish() to end its task before a whole "
                        "one."
                    )
                trainer.tasks.append(self.intake.make_task(data))
            if snapshots is not None:
                with ONE_AT_A_TIME, self.turn:
                    snapshots.go_on(before, trainer.tasks[-1])
            steps, stats = trainer.run(), self.context.influence_stats
            while self.before is before:
                with self.stepping():
                    event = next(steps)
                    self.logged.note(event)
                    if isinstance(event, Evaluated):
                        self.history.add_test({**as_record(event), "on": list(event.on)})
                    if isinstance(event, TaskFinished):
                        self._close_task(event, stats)
                        self.before = None
                if isinstance(event, StepTaken) and snapshots is not None:
                    with self.turn:
                        snapshots.write_if_due()
                yield event
        except Diverged as error:
            raise UserError(
                f"{error.event}: try a smaller lr; the learner is as it was before this task."
            ) from error
        finally:
            if self.before is before:
                with ONE_AT_A_TIME, self.turn:
                    self.state.restore(before)
                    self.before = None

    def snapshots(self, path: "str | Path | None", seconds: float) -> Snapshots | None:
        """Return where the next task is stored while it is learned."""
        return Snapshots(Path(path), seconds, self.state, self.ranks) if path is not None else None

    def observe(self, data: Labelled, ids: Rows | None) -> list[Event]:
        """Take one step of the open task on a batch. Nothing changes before all is checked."""
        trainer, history, intake = self.trainer, self.history, self.intake
        with ONE_AT_A_TIME, self.turn:
            self.check_idle("observe")
            check_trainable(self.model)
            opening = not trainer.open
            if opening:
                intake.check_online()
            incoming = intake.admit(data, ids)
            data, names = incoming.data, incoming.numbers
            if not len(names):
                return []
            if len(names) == 1 and not len(self.context.memory):
                intake.check_alone(data.inputs)
            right = self._answered_rightly(data)
            if opening or {*data.classes} - {*trainer.tasks[-1].classes}:
                intake.fit(data)
            intake.enter(incoming)
            if opening:
                if self.code.encoder is not None:
                    self.code.encoder.check_unchanged()
                train, test = data.examples(names), data.no_examples()
                trainer.tasks.append(Task(len(trainer.tasks), data.classes, train, test))
                history.begin_task(trees.kind(data.inputs), 0)
            history.learned[-1]["examples"] += len(names)
            new = Batch(data.inputs, data.labels, names)
            events = self._stepped(observe(trainer, new, data.classes))
            history.version += 1
            self._bound_ids()
            if right is None:
                return events
            accuracy = history.note_answers(right, self.settings.window)
            return [
                replace(event, numbers={**event.numbers, **accuracy})
                if isinstance(event, StepTaken)
                else event
                for event in events
            ]

    def _answered_rightly(self, data: Labelled) -> Tensor | None:
        """Return for each example (n,) whether it is answered rightly before it is learned; None
        where there is no class to answer by."""
        if not self.classes or not data.are_classes:
            return None
        before = self.random.now
        with self.random.used():  # a transform may draw
            outputs = model_outputs(self.context, data.inputs, self.context.scoring())
        self.random.now = before
        answered = answers(outputs, self.classes, self.code.loss_fn)
        return None if answered is outputs else answered == data.labels

    def _bound_ids(self) -> None:
        """Keep the texts of ids that are stored somewhere; seldom, as it takes a look at all."""
        ids, memory = self.history.ids, self.context.memory
        if len(ids.texts) > 2 * (memory.capacity + self.settings.window) + 1000:
            listed = stored_ids(memory, self.trainer.tasks).tolist()
            ids.keep_only({*listed, *self.history.forgotten})

    def finish(self) -> list[Event]:
        """End the open task."""
        with ONE_AT_A_TIME, self.turn:
            return self._stepped(close(self.trainer))

    def trust(self, data: Labelled) -> list[Any]:
        """Pin verified examples in the memory. Returns their ids."""
        trainer = self.trainer
        with self.turn:
            self.check_idle("trust")
            self.check_learned()
            verified = self.intake.verified(data, trainer.tasks)
            batch, last = verified.take(torch.arange(len(verified))), len(trainer.tasks) - 1
            self.context.trust(batch, last, self.classes, trainer.method.column_values)
            if not trainer.open:  # which knows its newest examples alone
                trainer.tasks[last] = with_ids(trainer.tasks[last], batch.ids, batch.labels)
            self.history.version += 1
            return self.history.ids.shown(batch.ids.tolist())

    def judge(self, data: Labelled) -> tuple[Verdicts, Labelled]:
        """Return verdicts on examples, and the examples under the learner's class numbers."""
        with self.turn:
            self.check_learned()
            data = renumbered(data, self.history.class_names)
            data = self.intake.encoded(data)
            self.intake.check_follows(data)
            with unchanged(self.model):
                return judge(self.context, data.examples()), data

    def outputs(self, inputs: Tree, scored: bool) -> Tensor:
        """Return the model's outputs for raw inputs, or what the method predicts by."""
        with self.turn:
            scoring = self.context.scoring() if scored else None
            return model_outputs(self.context, inputs, scoring, self.code.encoder)

    def score(self, data: Labelled) -> float:
        """Return the metric, the accuracy, or the mean loss on raw examples."""
        code = self.code
        with self.turn:
            if code.metric is None:
                self.check_learned()
            if self.trainer.tasks:
                data = renumbered(data, self.history.class_names)
                self.intake.check_scored(data.labels, self.trainer.tasks[-1].train.labels)
            outputs, classes = self.outputs(data.inputs, scored=True), self.classes
        return score_outputs(outputs, data.labels, classes, self.context, code.loss_fn, code.metric)

    def forget(self, ids: list[int] | list[str], reason: str) -> list[Any]:
        """Go on without the examples of these ids. Returns them."""
        with self.turn:
            self.check_idle("forget")
            gone = self._met(ids)
            self.trainer.forget(torch.tensor(gone, dtype=torch.long))
            self.history.forget(gone, reason)
            log.info("forgot %d examples (%s)", len(gone), reason or "no reason given")
            return self.history.ids.shown(gone)

    def _met(self, ids: list[int] | list[str]) -> list[int]:
        """Return the numbers of ids, ascending, or raise for one that no example has had. Nobody
        lists the examples of a stream, or those that were held out: of them the largest is
        known."""
        history, memory = self.history, self.context.memory
        listed = {*stored_ids(memory, self.trainer.tasks).tolist(), *history.forgotten}
        listed |= {*map(int, self.influence().ids)}
        unlisted = self.trainer.open or any(
            {"observed", "held_out"} & {*e} for e in history.learned
        )
        numbers = history.ids.find(ids)
        for name, number in zip(ids, numbers):
            may_be = unlisted and number is not None and number < history.ids.next
            if number not in listed and not may_be:
                raise UserError(
                    f"no example has had the id {name!r}, so nothing was forgotten: give ids as "
                    "`influence()` or `memory.table()` show them."
                )
        return sorted(number for number in numbers if number is not None)

    def influence(self) -> ExampleStats:
        """Return the influences measured so far, in the open task too."""
        if not self.trainer.open:
            return self.history.influence
        ids = stored_ids(self.context.memory, self.trainer.tasks)
        return self.history.with_open(self.context.influence_stats, ids)

    def content(self) -> tuple[State, dict[str, Any]]:
        """Return the content of a file: in the middle of a task of `run` that of the learner before
        the task."""
        return self.state.content(self.before)

    def roll_back(self, path: Path, tensors: State, about: dict[str, Any]) -> None:
        """Stand where the `content` of a file of this learner was taken, but for what was forgotten
        since."""
        with ONE_AT_A_TIME, self.turn:
            self.check_idle("roll back")
            self.state.roll_back(path, tensors, about)

    def _stepped(self, steps: Iterator[Event]) -> list[Event]:
        """Take all steps of an open task, and return their events."""
        stats, tasks = self.context.influence_stats, self.trainer.tasks
        try:
            with self.stepping():
                events = list(steps)
        except Diverged as error:
            raise UserError(
                f"{error.event}: load the learner as it was last saved, and try a smaller lr."
            ) from error
        for event in events:
            self.logged.note(event)
            if isinstance(event, TaskFinished):
                self._close_task(event, stats)
                tasks[-1] = without_examples(tasks[-1])
                self.history.bound(stored_ids(self.context.memory, tasks))
        return events

    def _close_task(self, event: TaskFinished, stats: ExampleStats) -> None:
        """Keep of a finished task what the learner needs to know: not its inputs."""
        tasks = self.trainer.tasks
        self.history.finish_task(event, tasks[-1], stats)
        tasks[-1] = without_inputs(tasks[-1])
        self.context.current = None

    def _check_alike(self, inputs: Tree, what: str, more: State | None = None) -> None:
        """Raise unless all processes were given the same examples."""
        if self.ranks is not None:
            otherwise = (
                f"the processes were not given the same {what}: give all of them the same rows, "
                "which the learner splits itself."
            )
            columns = trees.to_columns("inputs", inputs)
            check_alike(self.ranks, {**columns, **(more or {})}, otherwise)

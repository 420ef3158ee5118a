"""Session of a learner: its trainer goes through one task after the other, each whole or not at
all, while other threads may read between two steps."""

import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metasp import __version__, trees
from metasp.errors import Diverged, UserError
from metasp.events import Evaluated, Event, TaskFinished, as_record
from metasp.example_stats import ExampleStats
from metasp.influence.parallel import Ranks
from metasp.learner import files
from metasp.learner.build import check_trainable
from metasp.learner.history import (
    History,
    pack_tasks,
    stored_ids,
    unpack_tasks,
    with_ids,
    without_examples,
    without_inputs,
)
from metasp.learner.inputs import Labelled, read_examples, read_inputs, renumbered
from metasp.learner.intake import Intake, TaskData, classes_of
from metasp.learner.outputs import in_training, model_outputs, score_outputs, unchanged
from metasp.methods.context import TrainingContext
from metasp.methods.label_model import Verdicts, judge
from metasp.processes import check_alike
from metasp.stateful import below, under
from metasp.train.online import close, observe
from metasp.train.randomness import ONE_AT_A_TIME, OwnRandomness
from metasp.train.trainer import Trainer
from metasp.trees import Tree
from metasp.types import Batch, Rows, State, Task


class Turns:
    """A lock that one thread may take again, and that no waiting thread is passed over for long: a
    training loop that lets go of it between two steps lets the others in."""

    def __init__(self) -> None:
        self._lock, self._queue = threading.RLock(), threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self._owner == thread:
            self._lock.acquire()
        else:
            with self._queue:  # who waits stands before the one that comes back for its next step
                self._lock.acquire()
            self._owner = thread
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._lock.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Turns":
        return Turns()


class Snapshot(NamedTuple):
    """All that a task may change: tensors by name, plain values, and the tasks."""

    tensors: State
    about: dict[str, Any]
    tasks: list[Task]


class Session:
    """Takes a trainer through a stream of tasks. `turn` is held during each step and by whoever
    reads; `before` is the state before the task of `run` that is under way, None between tasks."""

    def __init__(
        self, trainer: Trainer, history: History, intake: Intake, ranks: Ranks | None
    ) -> None:
        self.trainer, self.history, self.intake, self.ranks = trainer, history, intake, ranks
        self.code, self.settings = intake.code, intake.settings
        self.context: TrainingContext = trainer.learner
        self.model: nn.Module = trainer.learner.model
        self.random = OwnRandomness(self.context.streams, self.context.device)
        self.turn = Turns()
        self.before: Snapshot | None = None

    @property
    def classes(self) -> tuple[int, ...]:
        """All classes seen, ascending."""
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
        """The type of the parameters that are trained."""
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

    def run(self, data: TaskData, random: State) -> Generator[Event, None, None]:
        """Learn one task from beginning to end, or not at all, with the random streams as they were
        before the data was read."""
        trainer = self.trainer
        with ONE_AT_A_TIME, self.turn:
            self.check_idle("learn")
            tensors, about, tasks = self.snapshot()
            tensors |= under("random", random)
            copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            self.before = before = Snapshot(copies, about, tasks)
        stats = self.context.influence_stats
        try:
            with self.stepping():
                if trainer.open:
                    raise UserError(
                        "a stream of batches is open: call finish() to end its task before a whole "
                        "one."
                    )
                trainer.tasks.append(self.intake.make_task(data))
            steps = trainer.run()
            while self.before is before:
                with self.stepping():
                    event = next(steps)
                    if isinstance(event, Evaluated):
                        self.history.add_test({**as_record(event), "on": list(event.on)})
                    if isinstance(event, TaskFinished):
                        self._close_task(event, stats)
                        self.before = None
                yield event
        except Diverged as error:
            raise UserError(
                f"{error.event}: try a smaller lr; the learner is as it was before this task."
            ) from error
        finally:
            if self.before is before:
                with ONE_AT_A_TIME, self.turn:
                    self.restore(before)
                    self.before = None

    def observe(self, data: Labelled, ids: Rows | None) -> list[Event]:
        """Take one step of the open task on a batch. Nothing changes before all is checked."""
        trainer, history, intake = self.trainer, self.history, self.intake
        with ONE_AT_A_TIME, self.turn:
            self.check_idle("observe")
            check_trainable(self.model)
            opening = not trainer.open
            if opening:
                intake.check_online()
            data, names = intake.admit(data, ids)
            if not len(names):
                return []
            if len(names) == 1 and not len(self.context.memory):
                intake.check_alone(data.inputs)
            if opening or {*data.classes} - {*trainer.tasks[-1].classes}:
                intake.fit(data)
            intake.enter(data, names)
            if opening:
                if self.code.encoder is not None:
                    self.code.encoder.check_unchanged()
                train, test = data.examples(names), data.no_examples()
                trainer.tasks.append(Task(len(trainer.tasks), data.classes, train, test))
                history.begin_task(trees.kind(data.inputs), 0)
            history.learned[-1]["examples"] += len(names)
            new = Batch(data.inputs, data.labels, names)
            return self._stepped(observe(trainer, new, data.classes))

    def finish(self) -> list[Event]:
        """End the open task."""
        with ONE_AT_A_TIME, self.turn:
            return self._stepped(close(self.trainer))

    def trust(self, data: Labelled) -> list[int]:
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
        return [int(name) for name in batch.ids]

    def judge(self, data: Labelled, names: Tensor) -> tuple[Verdicts, Labelled]:
        """Return verdicts on examples, and the examples under the learner's class numbers."""
        with self.turn:
            self.check_learned()
            data = renumbered(data, self.history.class_names)
            data = self.intake.encoded(data)
            self.intake.check_follows(data)
            with unchanged(self.model):
                return judge(self.context, data.examples(names)), data

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

    def forget(self, gone: list[int], reason: str) -> None:
        """Go on without the examples of these ids, ascending."""
        with self.turn:
            self.check_idle("forget")
            self.trainer.forget(torch.tensor(gone, dtype=torch.long))
            self.history.forget(gone, reason)

    def influence(self) -> ExampleStats:
        """Return the influences measured so far, in the open task too."""
        if not self.trainer.open:
            return self.history.influence
        ids = stored_ids(self.context.memory, self.trainer.tasks)
        return self.history.with_open(self.context.influence_stats, ids)

    def snapshot(self) -> Snapshot:
        """Return all that a task may change, as it is: not copied."""
        tensors, position = self.trainer.state()
        tensors |= under("random", self.random.state())
        tensors |= under("unsaved", files.unsaved_buffers(self.model))
        about = {
            "position": position,
            "shared_classes": self.context.plan.shared_classes,
            "head": self.intake.head_size,
            **self.history.plain(),
        }
        return Snapshot(tensors, about, list(self.trainer.tasks))

    def restore(self, state: Snapshot) -> None:
        """Stand where the snapshot was taken."""
        tensors, about, tasks = state
        self.context.optimizer.zero_grad()
        self.intake.resize_head(about["head"])
        self.trainer.tasks = list(tasks)
        self.trainer.restore(tensors, about["position"])
        files.put_buffers(self.model, below("unsaved", tensors))
        self.context.plan = replace(self.context.plan, shared_classes=about["shared_classes"])
        self.context.current = None
        self.random.restore(below("random", tensors))
        self.history.restore_plain(about)

    def content(self) -> tuple[State, dict[str, Any]]:
        """Return the content of a file: tensors by name, and plain values. In the middle of a task
        of `run` it is that of the learner before the task."""
        tensors, about, tasks = self.before or self.snapshot()
        of_method = {**self.settings.settings, **dict(self.trainer.method.settings or {})}
        chosen = {key: value for key, value in of_method.items() if value is not None}
        encoder = self.code.encoder
        tensors = {**tensors, **self.history.state(), **under("tasks", pack_tasks(tasks))}
        return tensors, {
            **about,
            "version": __version__,
            "method": self.intake.method,
            "classes": [list(task.classes) for task in tasks],
            "code": self.code.names(),
            "settings": {**self.settings.as_dict(), "settings": chosen},
            "encoder": None if encoder is None else encoder.weights,
        }

    def load(self, path: Path, tensors: State, about: dict[str, Any]) -> None:
        """Stand where the `content` of a file was taken."""
        if self.intake.method != about["method"]:
            raise UserError(
                f"{path} was saved with method {about['method']}, not {self.intake.method}: pass "
                "the first."
            )
        self.intake.resize_head(about["head"])
        files.check_model(path, below("model", tensors), self.model)
        encoder = self.code.encoder
        if encoder is not None and encoder.weights != about["encoder"]:
            raise UserError(
                f"{path} was saved with an encoder of other weights: pass the encoder that it was "
                "saved with."
            )
        tasks = unpack_tasks(about["classes"], below("tasks", tensors))
        self.restore(Snapshot(tensors, about, tasks))
        self.history.restore(tensors)

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

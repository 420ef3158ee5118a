"""State of a learner: what a task may change, what a file holds, snapshots of a task, the lock that
readers and training share, and the log."""

import json
import logging
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch

from metasp import __version__
from metasp.errors import UserError
from metasp.events import Event, Noted, StepTaken, TaskFinished, TaskStarted
from metasp.influence.parallel import Ranks
from metasp.learner import file_format
from metasp.learner.history import pack_tasks, unpack_tasks
from metasp.learner.intake import Intake
from metasp.processes import any_of, check_alike, heard
from metasp.stateful import batch_state, below, under
from metasp.train.randomness import OwnRandomness
from metasp.types import State, Task

log = logging.getLogger("metasp")
DIFFERENT = (
    "the processes of this learner no longer hold the same numbers, so nothing is stored: load its "
    "last file, on machines of one kind."
)


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


class EventLog:
    """Tells the standard log of what happens, as "metasp"; a rate that moves with each step to
    those who debug."""

    def __init__(self, scheduler_step: str) -> None:
        self.of_rates = logging.DEBUG if scheduler_step == "step" else logging.INFO
        self.rate: float | None = None  # of the last step

    def note(self, event: Event) -> None:
        """Tell the standard log what a person who watches would like to know."""
        if isinstance(event, TaskStarted):
            log.info("task %d begins with %d examples", event.task + 1, event.examples)
        elif isinstance(event, TaskFinished):
            log.info("task %d is learned", event.task + 1)
        elif isinstance(event, Noted):
            log.warning("task %d: %s", event.task + 1, event.text)
        elif isinstance(event, StepTaken):
            if self.rate not in (None, event.lr):
                where = event.task + 1, event.epoch + 1, event.step + 1
                text = "the learning rate is %.4g now, at task %d, epoch %d, step %d"
                log.log(self.of_rates, text, event.lr, *where)
            self.rate = event.lr


class Snapshot(NamedTuple):
    """All that a task may change: tensors by name, plain values, and the tasks."""

    tensors: State
    about: dict[str, Any]
    tasks: list[Task]


class LearnerState:
    """Everything that a learner is made of, taken and brought back."""

    def __init__(self, intake: Intake, random: OwnRandomness) -> None:
        self.trainer, self.history, self.intake = intake.trainer, intake.history, intake
        self.code, self.settings, self.random = intake.code, intake.settings, random
        self.context, self.model = intake.context, intake.context.model

    def snapshot(self) -> Snapshot:
        """Return all that a task may change, as it is: not copied."""
        tensors, position = self.trainer.state()
        tensors |= under("random", self.random.state())
        tensors |= under("unsaved", file_format.unsaved_buffers(self.model))
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
        file_format.put_buffers(self.model, below("unsaved", tensors))
        self.context.plan = replace(self.context.plan, shared_classes=about["shared_classes"])
        self.context.current = None
        self.random.restore(below("random", tensors))
        self.history.restore_plain(about)

    def content(self, before: Snapshot | None) -> tuple[State, dict[str, Any]]:
        """Return the content of a file: tensors by name, and plain values; those of the learner
        `before` a task, in the middle of it."""
        tensors, about, tasks = before or self.snapshot()
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

    def packed(self, before: Snapshot | None, ranks: Ranks | None) -> bytes:
        """Return the `content` as a file holds it, the same in all processes."""
        tensors, about = self.content(before)
        if ranks is not None:
            check_alike(ranks, tensors, DIFFERENT)
        return file_format.pack(tensors, about)

    def load(self, path: Path, tensors: State, about: dict[str, Any]) -> None:
        """Stand where the `content` of a file was taken."""
        if self.intake.method != about["method"]:
            raise UserError(
                f"{path} was saved with method {about['method']}, not {self.intake.method}: pass "
                "the first."
            )
        self.intake.resize_head(about["head"])
        file_format.check_model(path, below("model", tensors), self.model)
        encoder = self.code.encoder
        if encoder is not None and encoder.weights != about["encoder"]:
            raise UserError(
                f"{path} was saved with an encoder of other weights: pass the encoder that it was "
                "saved with."
            )
        tasks = unpack_tasks(about["classes"], below("tasks", tensors))
        self.restore(Snapshot(tensors, about, tasks))
        self.history.restore(tensors)

    def roll_back(self, path: Path, tensors: State, about: dict[str, Any]) -> None:
        """Stand where the `content` of a file of this learner was taken, but for what was forgotten
        since."""
        ours = self.content(None)[1]
        if any(ours[name] != about[name] for name in ("method", "settings")):
            raise UserError(
                f"{path} was saved by a learner with another method or other settings: load it "
                "as a learner of its own, by ContinualLearner.load."
            )
        gone = self.history.ids.shown(self.history.forgotten)
        self.load(path, tensors, about)
        numbers = self.history.ids.numbered(gone, len(gone)) if gone else torch.zeros(0)
        if gone:
            self.history.ids.enter(gone, numbers)
        since = sorted({*map(int, numbers)} - {*self.history.forgotten})
        if since:
            self.trainer.forget(torch.tensor(since))
            self.history.forget(since, "forgotten before a roll-back")
        log.info("rolled back to version %d, of %s", self.history.version, path)


@dataclass
class Snapshots:
    """Stores a task under way every so many seconds, so that it goes on after a kill; the
    key is a digest of what the task began with."""

    path: Path
    seconds: float
    state: LearnerState
    ranks: Ranks | None
    key: str = ""
    last: float = field(default_factory=time.monotonic)

    def go_on(self, before: Snapshot, task: Task) -> None:
        """Stand where the last snapshot of this task was taken, if there is one: of the same
        examples, learned by the same settings from the same state."""
        batch = task.train.take(torch.arange(len(task.train)))
        tensors = {**before.tensors, **batch_state(batch)}
        about = json.dumps(
            [self.state.intake.method, self.state.settings.as_dict(), str(before.about["head"])]
        )
        self.key = file_format.digest({k: t.detach().cpu() for k, t in tensors.items()}, about)
        content = heard(self.ranks, self._read)
        if not content:
            return
        state, stored = file_format.parse(content, self.path)
        if stored["key"] != self.key:
            log.warning("%s is of another task, and is replaced", self.path)
            return
        self.state.restore(Snapshot(state, stored, list(self.state.trainer.tasks)))
        log.info("task %d goes on from %s", task.index + 1, self.path)

    def write_if_due(self) -> None:
        """Write a snapshot, if the last one is old enough."""
        due = time.monotonic() - self.last >= self.seconds
        if any_of(self.ranks, due)[0]:
            tensors, about, _ = self.state.snapshot()
            content = file_format.pack(tensors, {**about, "key": self.key})
            heard(self.ranks, lambda: file_format.write(self.path, content))
            self.last = time.monotonic()

    def _read(self) -> bytes:
        """Return the content of the file, empty if there is none."""
        return file_format.read(self.path) if self.path.exists() else b""

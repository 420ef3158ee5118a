"""What happens in a run, as data. Progress bar, store and trackers consume this one stream."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class TaskStarted:
    task: int
    classes: tuple[int, ...]
    examples: int


@dataclass(frozen=True)
class StepTaken:
    """One update. `kind` is the phase (finetune, rehearse, influence, …), which fixes its cost."""

    task: int
    epoch: int
    step: int
    kind: str
    loss: float
    lr: float
    seconds: float
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated:
    """Accuracy on the given tasks' test sets; `before` marks the look just before training."""

    task: int
    before: bool
    on: tuple[int, ...]
    class_il: tuple[float, ...]
    task_il: tuple[float, ...]


@dataclass(frozen=True)
class Validated:
    """The mean loss on held-out examples after an epoch, and whether it is the lowest so far."""

    task: int
    epoch: int
    loss: float
    lowest: bool


@dataclass(frozen=True)
class TaskFinished:
    """The memory as it stands, the influences recorded in this task, and how each of its examples
    fared in training, as columns."""

    task: int
    memory: Mapping[str, Sequence[Any]]
    influence: Mapping[str, Sequence[Any]]
    scores: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Noted:
    """Something in a task that a person should know, in one sentence."""

    task: int
    text: str


@dataclass(frozen=True)
class RunFinished:
    tasks: int
    seconds: float


Event = TaskStarted | StepTaken | Evaluated | Validated | Noted | TaskFinished | RunFinished


def as_record(event: Event) -> dict[str, Any]:
    """The event as one JSON object; the columns of a finished task are stored elsewhere."""
    if isinstance(event, TaskFinished):
        return {"event": "TaskFinished", "task": event.task}
    record = {"event": type(event).__name__, **asdict(event)}
    if isinstance(event, StepTaken):
        record.update(record.pop("numbers"))
    return record

"""What one step of each method costs, as a ratio to a step of experience replay."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import torch
from reproduce.published import rows as published
from torch import Tensor

from benchmarks.noise import noise_images, noise_trainer
from benchmarks.timing import Timing, Told, interleave, machine, part, silent
from metasp.events import StepTaken
from metasp.influence import Ranks
from metasp.methods import METHODS
from metasp.train import Trainer
from metasp.types import Task

TASK = 2  # the third
MEMORY = 500
BATCH = 32
VERIFIED = 64  # examples in memory by which labels are judged, of all three tasks
JUDGED = 20 * BATCH  # examples of a task whose labels are judged, once per epoch
REUSE = 4  # steps for which V is kept, in one line
LATER = 5  # an epoch, from 0, in which labels are judged by all that there is
WAY = 0.1  # roughly, the part of the time that goes into reaching the third task
LIMITS = {
    "er-ace": 1.05,
    "der": 1.1,
    "derpp": 1.6,
    "icarl": 1.4,
    "metasp-robust": 1.35,
    "metasp, head, V kept": 1.25,
    "agem": 1.5,
    "hal": 2.8,
    "mir": 2.4,
    "gmed": 3.0,
    "gss": 3.0,
    "gem": 1.1 * (MEMORY + BATCH) / (2 * BATCH),  # the examples it must differentiate, and 10 %
}

ADDED = {
    "metasp, head": {"method": "metasp"},
    "metasp, head, V kept": {"method": "metasp"},
    "derpp + influence": {"method": "derpp", "influence": "metasp"},
    "derpp + robust": {"method": "derpp", "influence": "robust"},
}
"""Methods with other settings or with influence added to them, by the name of their line."""

LINES: dict[str, dict[str, str]] = {**{name: {"method": name} for name in METHODS}, **ADDED}
JUDGES = ("metasp-robust", "derpp + robust")
BEGINS = " (an epoch begins)"

HEAD = {"scope": "head", "validation_old": BATCH, "validation_new": BATCH}
SETTINGS: dict[str, dict[str, object]] = {
    "gdumb": {"memory_epochs": 1},  # these two shorten the way, and change nothing in a step
    "hal": {"anchor_steps": 1},
    "metasp, head": HEAD,
    "metasp, head, V kept": {**HEAD, "reuse": REUSE},
}


@dataclass(frozen=True)
class Row:
    """One method's step: median seconds, the ratio to ER with its quartiles, and what the paper
    and our own limit say of that ratio."""

    method: str
    seconds: float
    ratio: float
    low: float
    high: float
    paper: float | None
    limit: float | None


def measure(
    rounds: int = 7,
    names: Sequence[str] = (),
    backbone: str = "resnet18",
    width: int = 20,
    told: Told = silent,
) -> list[Row]:
    """Time one step of each method in turn, round after round, so that a slow moment of the
    machine meets all of them; a ratio is that of the medians of processor time of one thread."""
    torch.set_num_threads(1)
    chosen = ["er", *(name for name in names or LINES if name != "er")]
    calls: dict[str, Callable[[], object]] = {}
    for done, name in enumerate(chosen, 1):
        calls |= steps(name, backbone, width)
        told(WAY * done / len(chosen))
    found = interleave(calls, rounds, clock=time.process_time, told=part(told, WAY, 1.0))
    timings = spread_over_an_epoch(found)
    er, paper = timings["er"].median, paper_ratios()
    rows = [
        Row(
            name,
            timing.median,
            timing.median / er,
            timing.low / er,
            timing.high / er,
            paper.get(name),
            LIMITS.get(name),
        )
        for name, timing in timings.items()
    ]
    return sorted(rows, key=lambda row: row.ratio)


def spread_over_an_epoch(timings: Mapping[str, Timing]) -> dict[str, Timing]:
    """Timings of steps with their part of what is done once when an epoch begins."""
    found = {}
    for name, within in timings.items():
        if name.endswith(BEGINS):
            continue
        first = timings.get(name + BEGINS, within)
        each = 1 / (JUDGED // BATCH)
        each_of = REUSE if "reuse" in SETTINGS.get(name, {}) else 1
        parts = ((w + each * (f - w)) / each_of for w, f in zip(astuple(within), astuple(first)))
        found[name] = Timing(*parts)
    return found


def steps(
    name: str, backbone: str, width: int, ranks: Ranks | None = None, **changes: Any
) -> dict[str, Callable[[], object]]:
    """A call that takes one step of a method in the middle of its third task, and offers the
    batch to the memory as in a task's first epoch. Of one that judges labels, it is a step of a
    later epoch, and another call takes the first step of that epoch, which judges the task."""
    trainer = at_third_task(name, backbone, width, ranks, **changes)
    method, task = trainer.method, trainer.tasks[TASK]
    phases = method.phases(task, trainer.tasks[: TASK + 1])
    phase = phases[-1]
    examples = phase.examples()
    batch = examples.take(torch.arange(min(phase.batch_size, len(examples))))

    def step() -> None:
        method.step(batch, phase)
        if len(phases) == 1:  # otherwise the memory was offered to before this phase
            method.remember(batch, task)

    if name not in JUDGES:
        times = REUSE if "reuse" in SETTINGS.get(name, {}) else 1

        def some() -> None:
            for _ in range(times):
                step()

        return {name: some}
    learner = trainer.learner
    learner.arrived = batch.size

    def first_step() -> None:
        learner.epoch = LATER + (learner.epoch == LATER)
        method.step(batch, phase)

    return {name + BEGINS: first_step, name: lambda: method.step(batch, phase)}


def at_third_task(
    name: str, backbone: str, width: int, ranks: Ranks | None = None, **changes: Any
) -> Trainer:
    """A trainer in its third task, after short first ones, with a full memory of those two; its
    spec has these ``changes``."""
    images = noise_images(JUDGED // 2 if name in JUDGES else BATCH // 2)
    trainer = noise_trainer(
        images,
        ranks,
        **LINES[name],
        settings=SETTINGS.get(name, {}),
        memory=MEMORY,
        batch_size=BATCH,
        memory_batch=BATCH,
        backbone=backbone,
        width=width,
        epochs=1,
        **changes,
    )
    for index in range(TASK):
        task = trainer.tasks[index]
        trainer.tasks[index] = replace(task, train=task.train.only(few_of(task)))
    if name == "verified-only":
        two = torch.arange(2)
        trainer.tasks = [replace(task, trusted=task.train.only(two)) for task in trainer.tasks]
    for event in trainer.run():
        if isinstance(event, StepTaken) and event.task == TASK:
            break
    memory = trainer.learner.memory
    if len(memory):
        share = MEMORY // TASK
        for task in trainer.tasks[:TASK]:
            held = task.train.take(torch.arange(share) % len(task.train))
            rows = torch.arange(share) + task.index * share
            memory.write(rows, held._replace(ids=10_000 + rows), task.index)
    if name in JUDGES:
        verify(trainer)
    return trainer


def few_of(task: Task) -> Tensor:
    """A batch of a task's examples, of all its classes."""
    rows = torch.arange(len(task.train))
    return rows[:: max(1, len(rows) // BATCH)][:BATCH]


def verify(trainer: Trainer) -> None:
    """Pin verified examples of the three tasks in the memory."""
    memory, tasks = trainer.learner.memory, trainer.tasks[: TASK + 1]
    for number, slots in enumerate(torch.arange(VERIFIED).tensor_split(len(tasks))):
        held = tasks[number].train.take(few_of(tasks[number])[: len(slots)])
        names = 20_000 + slots
        memory.write(slots, held._replace(ids=names), number, pinned=torch.ones_like(slots))


def paper_ratios() -> dict[str, float]:
    """The published one-step times as ratios to ER's, by our names."""
    seconds = {r["method"].lower(): float(r["one_step_s"]) for r in published("training_time")}
    return {name: value / seconds["er"] for name, value in seconds.items()}


def render(rows: Sequence[Row]) -> list[str]:
    """The table, one line per method, and one sentence on how it was made."""
    lines = [f"{'method':<21}{'seconds':>9}{'ratio':>7}  {'quartiles':<12}{'limit':>6}{'paper':>7}"]
    for row in rows:
        span = f"{row.low:.2f}–{row.high:.2f}"
        limit, paper = ("" if value is None else f"{value:.3g}" for value in (row.limit, row.paper))
        over = "  OVER" if row.limit is not None and row.ratio > row.limit else ""
        lines.append(
            f"{row.method:<21}{row.seconds:>9.3f}{row.ratio:>7.2f}  {span:<12}{limit:>6}{paper:>7}"
            + over
        )
    lines.append(
        f"One step at the third task, memory {MEMORY}, batch {BATCH} + {BATCH}, 32×32 images, "
        "interleaved with er in one process; the paper's ratios are its own hardware's."
    )
    lines.append(
        f"Of {' and '.join(JUDGES)}: a step of an epoch whose {JUDGED} examples are judged by "
        f"{VERIFIED} verified ones, with its part of the judging."
    )
    lines.append(
        f"metasp, head: influence in the head alone, |V| 2 × {BATCH}; V kept: for {REUSE} steps."
    )
    lines.append(machine())
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"step": [asdict(row) for row in rows]}

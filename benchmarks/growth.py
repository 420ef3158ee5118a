"""How time and memory grow with the size of a stream: each point in a process of its own."""

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.explored import explorer
from benchmarks.timing import Told, machine, silent
from metasp.data import Benchmark, Source, Transform, split
from metasp.events import Evaluated, StepTaken, TaskFinished
from metasp.learner import ContinualLearner
from metasp.methods.context import measured
from metasp.spec import RunSpec
from metasp.store.checkpoints import Checkpoint
from metasp.store.files import write_atomic
from metasp.train import Trainer, build_trainer
from metasp.train.evaluate import evaluate
from metasp.train.from_spec import complete
from metasp.types import Streams

Seconds = dict[str, float]
LIMIT = 1.15  # of the power of the size with which a time may grow
SMALLEST = 2e-4  # seconds: of less, the growth is that of the clock


def stream(examples: int, classes: int, tasks: int, side: int = 4, tests: int = 1000) -> Benchmark:
    """Noise pictures of so many classes, dealt to tasks."""
    noise = Streams(0)["noise"]
    inputs = torch.randint(0, 256, (examples, 1, side, side), dtype=torch.uint8, generator=noise)
    labels, few = torch.arange(examples) % classes, torch.arange(max(tests, classes)) % examples
    names = tuple(str(label) for label in range(classes))
    source = Source("noise", inputs, labels, inputs[few], labels[few], names, (0.5,), (0.25,),
                    "noise", tasks)  # fmt: skip
    return Benchmark(source, split(source), Transform(source.mean, source.std))


def trainer_on(benchmark: Benchmark, **changes: Any) -> Trainer:
    values = {"backbone": "mlp", "width": 16, "epochs": 1, "device": "cpu", "method": "er",
              "selection": None, "lr": 1e-3, **changes}  # fmt: skip
    spec = RunSpec.from_dict({"benchmark": "noise", **values})
    return build_trainer(complete(spec, benchmark), benchmark)


def spent(trainer: Trainer, steps: int = 10**9) -> Seconds:
    """The median step, and the mean end of a task with and without its tests."""
    taken, tests = [], [0.0]

    def score(*about: Any) -> tuple[float, float]:
        begun = time.process_time()
        found = evaluate(*about)
        tests[0] += time.process_time() - begun
        return found

    trainer.score = score
    ended, finished, before = 0.0, 0, time.process_time()
    for event in trainer.run():
        now = time.process_time()
        if isinstance(event, StepTaken):
            taken.append(now - before)
            if len(taken) >= steps:
                break
        elif isinstance(event, Evaluated | TaskFinished):
            ended += now - before
            finished += isinstance(event, TaskFinished)
        before = time.process_time()
    found = {"step": float(np.median(taken)), "longest step": max(taken)}
    if finished:
        found["end of a task"] = max(0.0, ended - tests[0]) / finished
        found["all tests"] = tests[0]
    return found


def data(size: int) -> Seconds:
    """A whole stream with the memory chosen at each task's end, and influences entered."""
    found = spent(trainer_on(stream(size, 10, 5), batch_size=256, selection="class-balanced"))
    found.pop("all tests"), found.pop("longest step")
    stats, ids = measured(), torch.randperm(size, generator=Streams(0)["ids"])
    begun = time.process_time()
    for part in torch.split(ids, 256):
        stats.add(part, **dict.fromkeys(stats.names, part.double()))
    stats.state_dict()
    return {**found, "ledger": time.process_time() - begun}


def tasks(size: int) -> Seconds:
    """The same number of examples in each task."""
    found: Seconds = {}
    for every in (1, 20):
        made = trainer_on(stream(32 * size, size, size, tests=32 * size), memory=size)
        made.test_every = every
        part = spent(made)
        found |= {"step": part["step"], f"all tests, every {every}": part["all tests"]}
    return found


def classes(size: int) -> Seconds:
    """A learner whose head grows, five times, to so many classes."""
    learner = ContinualLearner(
        nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)),
        "er", memory=size, epochs=1, head="2", batch_size=256,
    )  # fmt: skip
    draw, each = Streams(0)["data"], size // 5
    begun = time.process_time()
    for number in range(5):
        labels = number * each + torch.arange(max(each, 256)) % each
        learner.learn((torch.randn(len(labels), 16, generator=draw), labels), progress=False)
    whole = time.process_time() - begun
    greedy = spent(trainer_on(stream(4 * size, size, 5), memory=size, selection="greedy"), 40)
    robust = trainer_on(stream(4 * size, size, 5), memory=size, method="metasp-robust", epochs=2)
    judged = spent(robust, 3 * (4 * size // 5 // 32 + 1))
    found = {"learner, whole": whole, "step, greedy": greedy["step"]}
    return {**found, "step, robust": judged["step"], "judging": judged["longest step"]}


def memory(size: int) -> Seconds:
    """Steps with a full memory, and a checkpoint of it."""
    found = {}
    for selection in ("reservoir", "greedy"):
        made = trainer_on(stream(2 * size, 10, 2), memory=size, selection=selection,
                          batch_size=min(size, 1024))  # fmt: skip
        events = made.run()
        for event in events:
            if isinstance(event, TaskFinished):
                break
        made.learner.plan = made.learner.plan.__class__(
            **{**vars(made.learner.plan), "batch_size": 32}
        )
        found[f"step, {selection}"] = spent(made, 30)["step"]
    tensors, numbers = made.state()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        write_atomic(Path(folder) / "checkpoint", Checkpoint(arrays, numbers).pack())
    return {**found, "checkpoint": time.process_time() - begun}


def influence_step(**changes: Any) -> Seconds:
    """The median step of metasp in its second task."""
    values = {"backbone": "convnet", "width": 8, "memory": 2048, "method": "metasp", **changes}
    examples = 24 * values.get("batch_size", 32)
    made = trainer_on(stream(examples, 4, 2, side=8), **values)
    for event in made.run():
        if isinstance(event, TaskFinished):
            break
    return {"step": spent(made, 10)["step"]}


def batch(size: int) -> Seconds:
    return influence_step(batch_size=size, memory_batch=size)


def goal(size: int) -> Seconds:
    settings = {"validation_old": size, "validation_new": size}
    return influence_step(settings=settings, batch_size=256, memory_batch=64)


def width(size: int) -> Seconds:
    return influence_step(width=size)


@dataclass(frozen=True)
class Axis:
    """What is made larger, and why a time may grow faster than it."""

    measure: Callable[[int], Seconds]
    sizes: Sequence[int]
    why: str = ""


AXES = {
    "data": Axis(data, (1_000, 10_000, 100_000, 1_000_000)),
    "tasks": Axis(
        tasks,
        (5, 20, 50, 100, 200),
        "after each task all so far are tested, which makes the square of their number; "
        "--test-every 20 makes a twentieth of it",
    ),
    "classes": Axis(
        classes,
        (10, 100, 1_000, 10_000),
        "from 1,000 on the examples grow with the classes, and a pass costs examples × classes",
    ),
    "memory": Axis(memory, (100, 1_000, 10_000, 100_000)),
    "batch": Axis(batch, (32, 128, 512)),
    "goal": Axis(goal, (32, 128, 512)),
    "width": Axis(width, (8, 32, 128), "a layer has as many weights as the square of its width"),
    "explorer": Axis(explorer, (1_000, 10_000, 100_000)),
}


@dataclass(frozen=True)
class Row:
    """One point: the seconds of each thing measured, the power of the size with which each has
    grown since the point before, and the megabytes of memory beyond those of the start."""

    axis: str
    size: int
    seconds: Seconds
    powers: Seconds
    megabytes: float


def measure(only: str | None = None, told: Told = silent) -> list[Row]:
    """Each point in a fresh process, whose peak memory is then its own."""
    chosen = {only: AXES[only]} if only else AXES
    points = [(name, size) for name, axis in chosen.items() for size in axis.sizes]
    rows: list[Row] = []
    for done, (name, size) in enumerate(points, 1):
        asked = [sys.executable, "-m", "benchmarks.growth", name, str(size)]
        said = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds, megabytes = json.loads(said.splitlines()[-1])
        last = rows[-1] if rows and rows[-1].axis == name else None
        rows.append(Row(name, size, seconds, powers(last, size, seconds), megabytes))
        told(done / len(points))
    return rows


def powers(last: Row | None, size: int, seconds: Seconds) -> Seconds:
    """x where a time has grown as size^x."""
    if last is None:
        return {}
    larger = math.log(size / last.size)
    return {
        name: math.log(value / max(last.seconds[name], SMALLEST)) / larger
        for name, value in seconds.items()
        if value > SMALLEST
    }


def render(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        if not row.powers and row.size == AXES[row.axis].sizes[0]:
            lines += [
                "",
                f"{row.axis}" + (f" ({AXES[row.axis].why})" if AXES[row.axis].why else ""),
            ]
        parts = []
        for name, value in row.seconds.items():
            power = row.powers.get(name)
            over = " OVER" if power is not None and power > LIMIT and not AXES[row.axis].why else ""
            grown = "" if power is None else f" ^{power:.2f}{over}"
            size = f"{value:.1f}" if name.endswith(" MB") else f"{1e3 * value:.2f} ms"
            parts.append(f"{name} {size}{grown}")
        lines.append(f"{row.size:>9}  {row.megabytes:>7.0f} MB  " + "; ".join(parts))
    lines += [
        "",
        "Processor time of one thread, peak memory beyond that at the start; "
        f"^x: grown as the x-th power of the size since the line above, at most {LIMIT:g}.",
        machine(),
    ]
    return lines[1:]


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"growth": [asdict(row) for row in rows], "machine": machine()}


def peak() -> float:
    """Megabytes of this process at its largest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    before = peak()
    found = AXES[sys.argv[1]].measure(int(sys.argv[2]))
    print(json.dumps((found, peak() - before)))

"""What one step of each method costs, as a ratio to a step of experience replay."""

import csv
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import torch

from metasp.benchmarks import Benchmark, Source, Transform, split
from metasp.engine import Trainer, build_trainer
from metasp.engine.build import complete
from metasp.methods import METHODS
from metasp.spec import RunSpec
from metasp.types import Streams

TASK = 2  # the third
MEMORY = 500
BATCH = 32
LIMITS = {
    "agem": 1.5,
    "hal": 2.8,
    "mir": 2.4,
    "gmed": 3.0,
    "gss": 3.0,
    "gem": 1.1 * (MEMORY + BATCH) / (2 * BATCH),  # the examples it must differentiate, and 10 %
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
    rounds: int = 7, names: Sequence[str] = (), backbone: str = "resnet18", width: int = 20
) -> list[Row]:
    """Time one step of each method in turn, round after round, so that a slow moment of the
    machine meets all of them; a ratio is the median over rounds of that to the round's ER."""
    chosen = ["er", *(name for name in names or METHODS if name != "er")]
    steps = {name: one_step(name, backbone, width) for name in chosen}
    for step in steps.values():
        step()  # allocate and warm up
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - began)
    paper = paper_ratios()
    rows = []
    for name, seconds in taken.items():
        low, middle, high = quartiles([own / er for own, er in zip(seconds, taken["er"])])
        median = statistics.median(seconds)
        rows.append(Row(name, median, middle, low, high, paper.get(name), LIMITS.get(name)))
    return sorted(rows, key=lambda row: row.ratio)


def one_step(name: str, backbone: str, width: int) -> Callable[[], object]:
    """A call that takes one step of a method in the middle of its third task, and offers the
    batch to the memory as in a task's first epoch."""
    trainer = at_third_task(name, backbone, width)
    method, task = trainer.method, trainer.tasks[TASK]
    phases = method.phases(task, trainer.tasks[: TASK + 1])
    phase = phases[-1]
    examples = phase.examples()
    batch = examples.take(torch.arange(min(phase.batch_size, len(examples))))

    def step() -> None:
        method.step(batch, phase)
        if len(phases) == 1:  # otherwise the memory was offered to before this phase
            method.remember(batch, task)

    return step


def at_third_task(name: str, backbone: str, width: int) -> Trainer:
    """A trainer that has begun its third task, with a full memory of the first two."""
    benchmark = random_images()
    spec = RunSpec(
        method=name,
        benchmark="random",
        memory=MEMORY,
        batch_size=BATCH,
        memory_batch=BATCH,
        backbone=backbone,
        width=width,
        epochs=1,
        lr=1e-3,
        device="cpu",
    )
    trainer = build_trainer(complete(spec, benchmark), benchmark)
    method, memory = trainer.method, trainer.learner.memory
    for task in trainer.tasks[:TASK]:
        first = task.train.take(torch.arange(BATCH))
        if method.selection is not None:
            start = BATCH * task.index
            memory.write(torch.arange(start, start + BATCH), first, task.index)
        method.begin_task(task)
        phase = method.phases(task, trainer.tasks[: task.index + 1])[-1]
        method.step(first, phase)
        method.end_task(task)
    if method.selection is not None:
        share = MEMORY // TASK
        for task in trainer.tasks[:TASK]:
            slots = torch.arange(task.index * share, (task.index + 1) * share)
            memory.write(slots, task.train.take(torch.arange(share)), task.index)
        memory.offered = MEMORY
    method.begin_task(trainer.tasks[TASK])
    return trainer


def random_images() -> Benchmark:
    """Five tasks of two classes of noise, 32×32 in three channels."""
    noise = Streams(0)["noise"]
    count = 5 * MEMORY // TASK
    inputs = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=noise)
    labels = (torch.arange(count) * 10 // count).long()
    names = tuple(str(label) for label in range(10))
    source = Source(
        "random", inputs, labels, inputs[:10], labels[:10], names, (0.5,) * 3, (0.25,) * 3, "0", 5,
        crop_padding=4, flip=True,
    )  # fmt: skip
    transform = Transform(source.mean, source.std, source.crop_padding, source.flip)
    return Benchmark(source, split(source), transform)


def paper_ratios() -> dict[str, float]:
    """The published one-step times as ratios to ER's, by our names."""
    text = files("metasp").joinpath("data/paper/training_time.csv").read_text(encoding="utf-8")
    seconds = {r["method"].lower(): float(r["one_step_s"]) for r in csv.DictReader(text.split())}
    return {name: value / seconds["er"] for name, value in seconds.items()}


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def render(rows: Sequence[Row]) -> list[str]:
    """The table, one line per method, and one sentence on how it was made."""
    lines = [f"{'method':<15}{'seconds':>9}{'ratio':>7}  {'quartiles':<12}{'limit':>6}{'paper':>7}"]
    for row in rows:
        span = f"{row.low:.2f}–{row.high:.2f}"
        limit, paper = ("" if value is None else f"{value:.1f}" for value in (row.limit, row.paper))
        over = "  OVER" if row.limit is not None and row.ratio > row.limit else ""
        lines.append(
            f"{row.method:<15}{row.seconds:>9.3f}{row.ratio:>7.2f}  {span:<12}{limit:>6}{paper:>7}"
            + over
        )
    lines.append(
        f"One step at the third task, memory {MEMORY}, batch {BATCH} + {BATCH}, 32×32 images, "
        f"{torch.get_num_threads()} threads; the ratio is to er in the same round."
    )
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"step": [asdict(row) for row in rows]}

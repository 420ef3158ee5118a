"""What judging examples costs, against one evaluation of them."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.noise import noise_images, noise_trainer
from benchmarks.timing import Told, interleave, machine, silent
from metasp.events import TaskFinished
from metasp.methods.label_model import judge
from metasp.train.evaluate import all_scores

LIMIT = 1.5
PER_CLASS = 1_000
NETWORKS = {"convnet": 16, "resnet18": 8}


@dataclass(frozen=True)
class Row:
    """Judging the examples of a stream with one network: seconds, and the ratio to evaluating them
    with its quartiles."""

    backbone: str
    width: int
    examples: int
    seconds: float
    ratio: float
    low: float
    high: float
    limit: float = LIMIT


def measure(rounds: int = 5, per_class: int = PER_CLASS, told: Told = silent) -> list[Row]:
    """Evaluate and judge all examples in turn, in processor time of one thread, after a task."""
    torch.set_num_threads(1)
    rows = []
    for backbone, width in NETWORKS.items():
        calls = after_a_task(backbone, width, per_class)
        times = interleave(calls, rounds, clock=time.process_time, told=told)
        once, judged = times["evaluate"].median, times["judge"]
        spread = (judged.low / once, judged.high / once)
        rows.append(
            Row(backbone, width, 10 * per_class, judged.median, judged.median / once, *spread)
        )
    return rows


def after_a_task(backbone: str, width: int, per_class: int) -> dict[str, Any]:
    """Calls that evaluate and judge ten classes of noise, by a model that has learned two of them
    in a short way."""
    benchmark = noise_images(per_class, augmented=False)
    trainer = noise_trainer(
        benchmark, method="er", memory=200, epochs=1, backbone=backbone, width=width, batch_size=64
    )
    next(event for event in trainer.run() if isinstance(event, TaskFinished))
    examples, context = trainer.tasks[0].train, trainer.learner
    everything = [task.train for task in trainer.tasks]
    whole = type(examples).join(everything)
    return {
        "evaluate": lambda: all_scores(context, whole),
        "judge": lambda: judge(context, whole),
    }


def render(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"{'network':<12}{'width':>6}{'seconds':>9}{'ratio':>8}  {'quartiles':<12}{'limit':>6}"
    ]
    for row in rows:
        span, over = f"{row.low:.2f}–{row.high:.2f}", "  OVER" if row.ratio > row.limit else ""
        lines.append(
            f"{row.backbone:<12}{row.width:>6}{row.seconds:>9.2f}{row.ratio:>8.2f}  {span:<12}"
            f"{row.limit:>6.2f}{over}"
        )
    lines.append(f"{rows[0].examples} pictures of 32×32 judged, against one evaluation of them.")
    lines.append(machine())
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"judge": [asdict(row) for row in rows]}

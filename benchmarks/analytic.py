"""What analytic heads cost: learning 10,000 examples of 1280 features, and forgetting one."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.timing import Told, machine, silent
from metasp import ContinualLearner

EXAMPLES, FEATURES, CLASSES = 10_000, 1280, 10
MOST_SECONDS, MOST_MILLISECONDS = 3.0, 20.0
HEADS = ("slda", "ridge")


@dataclass(frozen=True)
class Row:
    """Processor seconds of one thread for a task, with each example left out of the head, and
    milliseconds to forget one example."""

    method: str
    seconds: float
    milliseconds: float


def measure(repeats: int = 9, told: Told = silent) -> list[Row]:
    """Learn random features that hardly tell classes apart, then forget an example at a time."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(EXAMPLES) % CLASSES
    centres = 0.1 * torch.randn(CLASSES, FEATURES, generator=draw)
    features = (torch.randn(EXAMPLES, FEATURES, generator=draw) + centres[labels]).relu()
    rows = []
    for name in HEADS:
        learner = ContinualLearner(torch.nn.Linear(FEATURES, CLASSES), name, batch_size=256)
        began = time.process_time()
        learner.learn((features, labels), progress=False)
        learner.predict(features[:1])
        seconds, forgetting = time.process_time() - began, []
        for example in range(repeats):
            began = time.process_time()
            learner.forget([example])
            forgetting.append(1000 * (time.process_time() - began))
        rows.append(Row(name, seconds, statistics.median(forgetting)))
        told(len(rows) / len(HEADS))
    return rows


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'method':<8}{'learn':>9}{'limit':>8}{'forget':>11}{'limit':>8}"]
    for row in rows:
        over = row.seconds > MOST_SECONDS or row.milliseconds > MOST_MILLISECONDS
        lines.append(
            f"{row.method:<8}{row.seconds:>7.2f} s{MOST_SECONDS:>6.0f} s{row.milliseconds:>8.1f} ms"
            f"{MOST_MILLISECONDS:>5.0f} ms{'  OVER' if over else ''}"
        )
    lines.append(f"{EXAMPLES} examples of {FEATURES} features, {CLASSES} classes.")
    lines.append(machine())
    return lines


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]

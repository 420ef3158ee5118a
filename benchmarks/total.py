"""What a whole run costs: MetaSP with the paper's schedule against ER that rehearses throughout."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.noise import noise_images, noise_trainer
from benchmarks.timing import Told, machine, silent
from metasp.events import Event, TaskFinished

EPOCHS = 10  # influence in the last one, as in 5 of the paper's 50
PER_CLASS, MEMORY = 64, 100
BOUND = 1.1
PAPER = 5898 / 2685
METHODS = ("er", "metasp", "metasp-rehsel")


@dataclass(frozen=True)
class Row:
    """One method: seconds of the whole run, and the ratio to ER's, in all and after task 1."""

    method: str
    seconds: float
    ratio: float
    later: float


def measure(backbone: str = "resnet18", width: int = 20, told: Told = silent) -> list[Row]:
    """Run the methods side by side, one task of each in turn, testing and selection included."""
    torch.set_num_threads(1)
    benchmark = noise_images(PER_CLASS)
    runs: dict[str, Iterator[Event]] = {}
    for name in METHODS:
        settings = {} if name == "er" else {"influence_last": EPOCHS // 10}
        trainer = noise_trainer(
            benchmark, method=name, memory=MEMORY, epochs=EPOCHS, backbone=backbone, width=width,
            settings=settings,
        )  # fmt: skip
        runs[name] = trainer.run()
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in benchmark.tasks:
        for name, events in runs.items():
            began = time.perf_counter()
            for event in events:
                if isinstance(event, TaskFinished):
                    break
            spent[name].append(time.perf_counter() - began)
            told(sum(map(len, spent.values())) / (len(METHODS) * len(benchmark.tasks)))
    er = spent["er"]
    return [
        Row(name, sum(own), sum(own) / sum(er), sum(own[1:]) / sum(er[1:]))
        for name, own in spent.items()
    ]


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'method':<15}{'seconds':>9}{'ratio':>8}{'tasks 2–5':>11}{'bound':>7}{'paper':>7}"]
    for row in rows:
        bound, paper = ("", "") if row.method == "er" else (f"{BOUND:.1f}", f"{PAPER:.1f}")
        over = "  OVER" if bound and row.ratio > BOUND else ""
        lines.append(
            f"{row.method:<15}{row.seconds:>9.1f}{row.ratio:>8.2f}{row.later:>11.2f}"
            f"{bound:>7}{paper:>7}{over}"
        )
    lines.append(
        f"5 tasks × {EPOCHS} epochs of {2 * PER_CLASS} noise images 32×32, memory {MEMORY}, "
        f"influence in the last epoch; one process, one task of each method in turn; {machine()}."
    )
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"total": [asdict(row) for row in rows], "machine": machine()}

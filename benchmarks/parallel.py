"""What a step costs when its batch is split over processes: how often they talk and what they send,
which is fixed, and time on this machine. The steps are those of runs, which share every pass."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.step import steps
from benchmarks.timing import Told, machine, silent
from metasp.influence import Ranks

CASES = (
    ("er", "mlp", 100),
    ("er", "resnet18", 20),
    ("metasp", "mlp", 100),
    ("metasp", "resnet18", 20),
)
LARGE = 10_000  # numbers in an all-reduce of parameters; those of BatchNorm have two per channel
KINDS = ("all-reduce of parameters", "small all-reduce", "gathering of rows")


@dataclass(frozen=True)
class SplitRow:
    """A step of a run on two processes: how often they talk, how many times its parameters one
    sends, and the step beside that of one process. The last three are parts of its time: in
    all-reduces of parameters, in small ones, and in gathering rows."""

    method: str
    backbone: str
    of_parameters: int
    small: int
    gathers: int
    sent: float
    alone: float
    seconds: float
    processor: float
    in_parameters: float
    in_small: float
    in_gathers: float


def measure(repeats: int = 15, told: Told = silent) -> list[SplitRow]:
    """Start two processes with torchrun, on this machine and over gloo."""
    told(0.0)
    return [SplitRow(**row) for row in json.loads(launched(2, repeats))]


def launched(count: int, repeats: int) -> str:
    paths = os.pathsep.join([entry for entry in sys.path if entry])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={count}", "-m", "benchmarks.parallel", str(repeats)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip().splitlines()[-1]


class Noting(Ranks):
    """Ranks that note each time they talk: its kind, how many numbers, and how long it took."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, int, float]] = []

    def _sum(self, buffer: Tensor) -> None:
        began = time.perf_counter()
        super()._sum(buffer)
        kind = KINDS[buffer.numel() < LARGE]
        self.noted.append((kind, buffer.numel(), time.perf_counter() - began))

    def all_rows(self, own: Tensor, bounds: Sequence[int], dim: int) -> Tensor:
        began = time.perf_counter()
        found = super().all_rows(own, bounds, dim)
        self.noted.append((KINDS[2], own.numel(), time.perf_counter() - began))
        return found


def split_step(ranks: Noting, case: tuple[str, str, int], repeats: int) -> SplitRow:
    """Steps of one process, while the other waits, and of both, in turn."""
    name, backbone, width = case
    alone, both = (steps(name, backbone, width, r)[name] for r in (None, ranks))
    taken = []
    for turn in range(-1, repeats):
        dist.barrier()
        one = timed(alone) if ranks.rank == 0 else (1.0, 1.0)
        dist.barrier()
        ranks.noted.clear()
        two = timed(both)
        spent = [sum(s for kind, _, s in ranks.noted if kind == k) / two[0] for k in KINDS]
        if turn >= 0:
            taken.append((one[1], two[0] / one[0], two[1] / one[1], *spent))
    kinds, counts, _ = zip(*ranks.noted)
    values: Any = [kinds.count(kind) for kind in KINDS] + [sum(counts) / max(counts)]
    values += [statistics.median(column) for column in zip(*taken)]
    return SplitRow(name, backbone, *values)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and those of the processor."""
    began, used = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - used


def render(split: list[SplitRow]) -> list[str]:
    """Return the table, and a sentence on how it was made."""
    lines = [f"{'':24}{'times that the ranks talk':>28}{'sent /':>12}{'one':>9}"
             f"{'two processes / one':>21}{'part of the time in':>27}"]  # fmt: skip
    lines.append(f"{'method':<9}{'backbone':<15}{'parameters':>11}{'small':>8}{'rows':>9}"
                 f"{'parameters':>12}{'process':>9}{'time':>9}{'processor':>12}"
                 f"{'parameters':>12}{'small':>8}{'rows':>7}")  # fmt: skip
    for r in split:
        lines.append(f"{r.method:<9}{r.backbone:<15}{r.of_parameters:>11}{r.small:>8}{r.gathers:>9}"
                     f"{r.sent:>12.2f}{r.alone:>9.4f}{r.seconds:>9.2f}{r.processor:>12.2f}"
                     f"{r.in_parameters:>12.2f}{r.in_small:>8.2f}{r.in_gathers:>7.2f}")  # fmt: skip
    lines.append(
        "One step of a run with batches of 32 + 32 and one thread per process, interleaved with "
        "the same step of one process: medians. One process in seconds of the processor; of two "
        "processes, the first one's. Small all-reduces are BatchNorm's, and a time among the ranks "
        "is mostly spent waiting for the other one."
    )
    return [*lines, machine()]


def as_json(split: list[SplitRow]) -> dict[str, Any]:
    return {"split": [asdict(row) for row in split]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    noting, repeats = Noting(), int(sys.argv[1])
    rows = [asdict(split_step(noting, case, repeats)) for case in CASES]
    if dist.get_rank() == 0:
        print(json.dumps(rows), flush=True)
    dist.barrier()
    dist.destroy_process_group()

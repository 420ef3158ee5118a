"""What a weighted step costs when its batch is split over processes: all-reduces and numbers sent,
which are fixed, and seconds on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.timing import Told, interleave, silent
from metasp.influence import Ranks, record, sp_influence
from metasp.methods.weighting import released
from metasp.types import CROSS_ENTROPY as LOSS
from metasp.types import Streams

BATCH, GOAL, WIDTH = 64, 32, 256
COUNTS = (1, 2, 4)


@dataclass(frozen=True)
class Row:
    """One number of processes: all-reduces and numbers sent per step, those of the model, and the
    median seconds of a step."""

    ranks: int
    all_reduces: int
    sent: int
    parameters: int
    seconds: float


def measure(counts: Sequence[int] = COUNTS, repeats: int = 5, told: Told = silent) -> list[Row]:
    """Start each number of processes with torchrun, on this machine and over gloo."""
    rows = []
    for done, count in enumerate(counts, 1):
        rows.append(Row(**json.loads(launched(count, repeats))))
        told(done / len(counts))
    return rows


def launched(count: int, repeats: int) -> str:
    paths = os.pathsep.join([entry for entry in sys.path if entry])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={count}", "-m", "benchmarks.parallel", str(repeats)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip().splitlines()[-1]


def one_rank(repeats: int) -> Row:
    """Take the steps of one rank."""
    ranks, streams = Ranks(), Streams(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10)
    )
    for parameter in model.parameters():  # the same on every rank
        torch.nn.init.normal_(parameter, std=0.05, generator=streams["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    share = [max(1, size // ranks.size) for size in (BATCH, GOAL, GOAL)]
    pairs = []
    for size in share:
        inputs = torch.randn(size, 64, generator=streams["data"])
        pairs.append((inputs, torch.arange(size) % 10))

    batch, old, new = pairs

    def step() -> None:
        passed = record(model, LOSS, batch)
        found = sp_influence(
            model, LOSS, batch, old, new, optimizer=optimizer, recorded=passed, ranks=ranks
        )
        ranks.descend((released(found).weights[found.own] * passed.losses).sum(), optimizer)

    step()
    reduced, sent = ranks.reduced, ranks.sent
    seconds = interleave({"step": step}, repeats)["step"].median
    total = sum(p.numel() for p in model.parameters())
    return Row(ranks.size, reduced, sent, total, seconds)


def render(rows: Sequence[Row]) -> list[str]:
    """The table, and one sentence on how it was made."""
    lines = [f"{'ranks':<7}{'all-reduces':>12}{'sent / parameters':>19}{'seconds':>10}"]
    for row in rows:
        ratio = row.sent / row.parameters
        lines.append(f"{row.ranks:<7}{row.all_reduces:>12}{ratio:>19.2f}{row.seconds:>10.4f}")
    lines.append(
        f"One weighted step of a global batch of {BATCH} with goals of {GOAL}, one thread per "
        "rank, gloo on this machine."
    )
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"parallel": [asdict(row) for row in rows]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    row = one_rank(int(sys.argv[1]))
    if dist.get_rank() == 0:
        print(json.dumps(asdict(row)), flush=True)
    dist.destroy_process_group()

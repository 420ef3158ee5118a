"""How long a run takes to start: alone, from the command to its first step, and in a sweep."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import Timing, Told, machine, part, silent, summary

ALONE = 3.0  # seconds of processor time that are allowed
IN_A_SWEEP = 0.5  # seconds for each run
RUNS = 32
WORDS = ("--threads", "1", "--epochs", "1", "--memory", "100")
AT_FIRST_STEP = """
import os, sys, time
from metasp import events
def first(self, *values, **more):
    print(time.process_time(), flush=True)
    os._exit(0)
events.StepTaken.__init__ = first
from metasp.cli import main
main(sys.argv[1:])
"""
SWEEP = """
threads = 1
epochs = 1
memory = 100
method = "er"
[grid]
seed = [{seeds}]
"""


@dataclass(frozen=True)
class Row:
    """Seconds of one way to start: what was measured, its median and spread, and the bound."""

    name: str
    timing: Timing
    bound: float


def measure(repeats: int = 7, runs: int = RUNS, told: Told = silent) -> list[Row]:
    """Processor time to the first step of runs alone; and of a sweep, one run at a time, the time
    that its runs took beside their training."""
    tell, seconds = part(told, 0.0, 0.5), []
    for turn in range(-1, repeats):  # the first one fills the caches of the disk
        spent = alone()
        if turn >= 0:
            seconds.append(spent)
        tell((turn + 2) / (repeats + 1))
    each = in_a_sweep(runs)
    told(1.0)
    return [
        Row("run, to its first step (processor)", summary(seconds), ALONE),
        Row(f"each of {runs} runs of a sweep", Timing(each, each, each), IN_A_SWEEP),
    ]


def alone() -> float:
    """Processor time of `metasp run` on the digits until its first step, interpreter and all."""
    with tempfile.TemporaryDirectory() as runs:
        words = [sys.executable, "-c", AT_FIRST_STEP, "run", *WORDS, "--json", "--runs", runs]
        return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def in_a_sweep(runs: int) -> float:
    """Seconds from the start of a sweep's first run to the end of its last, less those that the
    runs trained, for each run. What the sweep itself takes to start is not of a run."""
    with tempfile.TemporaryDirectory() as folder:
        file, where = Path(folder) / "sweep.toml", Path(folder) / "runs"
        file.write_text(SWEEP.format(seeds=", ".join(str(seed) for seed in range(runs))))
        words = ["sweep", str(file), "--jobs", "1", "--json", "--runs", str(where)]
        dry = [sys.executable, "-m", "metasp", *words, "--dry-run"]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        start = time.perf_counter()
        subprocess.run(dry, check=True, capture_output=True, env=environment)
        loaded = time.perf_counter()
        subprocess.run(dry[:-1], check=True, capture_output=True, env=environment)
        whole = (time.perf_counter() - loaded) - (loaded - start)
        results = [json.loads(path.read_text()) for path in where.glob("*/result.json")]
    if len(results) != runs:
        raise RuntimeError(f"{len(results)} of {runs} runs have a result")
    trained = sum(float(result["seconds"]["total"]) for result in results)
    return (whole - trained) / runs


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'start of a':<38}{'seconds':>8}{'at most':>9}"]
    for row in rows:
        over = "  OVER" if row.timing.median > row.bound else ""
        lines.append(f"{row.name:<38}{row.timing.median:>8.2f}{row.bound:>9.1f}{over}")
    lines.append(f"The digits, one thread; median of runs alone; {machine()}.")
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"startup": [asdict(row) for row in rows], "machine": machine()}

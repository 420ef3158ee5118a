"""How long a run takes to start: alone, from the command to its first step, and in a sweep."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.timing import Timing, Told, machine, part, silent, summary
from metasp import events
from metasp.experiment import prepare
from metasp.spec import RunSpec
from metasp.sweeps.jobs import Job, carry_out, order_for
from metasp.sweeps.local import Local

ALONE = 3.0  # seconds of processor time that are allowed
IN_A_SWEEP = 0.5  # for each run
QUIET_BOUND = 0.5  # for a command that trains nothing
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
QUIET = (
    ("list", "methods"),
    ("report",),
    ("suspects",),
    ("figures", "--help"),
    ("sweep", "--help"),
)


@dataclass(frozen=True)
class Row:
    """Processor seconds of one way to start: what was measured, median and spread, and bound."""

    name: str
    timing: Timing
    bound: float


def measure(repeats: int = 7, runs: int = RUNS, told: Told = silent) -> list[Row]:
    """Processor time to the first step of runs alone and of a sweep's, and of commands that train
    nothing."""
    tell, seconds = part(told, 0.0, 0.5), []
    for turn in range(-1, repeats):  # the first one fills the caches of the disk
        spent = alone()
        if turn >= 0:
            seconds.append(spent)
        tell((turn + 2) / (repeats + 1))
    rows = [Row("run, to its first step", summary(seconds), ALONE)]
    rows.append(Row(f"run of a sweep of {runs}", summary(in_a_sweep(runs)), IN_A_SWEEP))
    told(0.75)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "metasp", "run", *WORDS, "--runs", folder]
        subprocess.run(words, check=True, capture_output=True)
        (run,) = Path(folder).iterdir()
        for command in QUIET:
            given = [*command, str(run)] if len(command) == 1 else list(command)
            times = summary(without_torch(given, repeats))
            rows.append(Row(f"metasp {' '.join(command)}", times, QUIET_BOUND))
    told(1.0)
    return rows


def alone() -> float:
    """Processor time of `metasp run` on the digits until its first step, interpreter and all."""
    with tempfile.TemporaryDirectory() as runs:
        words = [sys.executable, "-c", AT_FIRST_STEP, "run", *WORDS, "--json", "--runs", runs]
        return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def in_a_sweep(runs: int) -> list[float]:
    """Processor time of each run that is forked as a sweep forks it, to its first step."""
    seconds, context = [], Local().context
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            spec = RunSpec(threads=1, epochs=1, memory=100, method="er", seed=number)
            job = Job(spec, prepare(spec, Path(folder)).directory.path, "new")
            ours, its = context.Pipe(duplex=False)
            process = context.Process(target=to_first_step, args=(order_for(job, None), its))
            process.start()
            seconds.append(ours.recv())
            process.join()
    return seconds


def to_first_step(order: dict[str, Any], sent: Connection) -> None:
    """Carry out an order until its first step, and send the processor time of this process."""

    def first(*values: object, **more: object) -> None:
        sent.send(time.process_time())
        os._exit(0)

    events.StepTaken.__init__ = first  # type: ignore[method-assign, assignment]
    carry_out(order, lambda: False, lambda update: None)


def without_torch(words: list[str], repeats: int) -> list[float]:
    """Processor times of a command, which may not load torch."""
    asked = [sys.executable, "-X", "importtime", "-m", "metasp", *words]
    loaded = subprocess.run(asked, check=True, capture_output=True, text=True).stderr
    if any(line.endswith("| torch") for line in loaded.splitlines()):
        raise RuntimeError(f"metasp {' '.join(words)} loads torch")
    seconds = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = [sys.executable, "-m", "metasp", *words]
        subprocess.run(ran, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return seconds


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'start of a':<38}{'seconds':>8}{'at most':>9}"]
    for row in rows:
        over = "  OVER" if row.timing.median > row.bound else ""
        lines.append(f"{row.name:<38}{row.timing.median:>8.2f}{row.bound:>9.1f}{over}")
    lines.append(f"The digits, one thread; medians of processor time; {machine()}.")
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"startup": [asdict(row) for row in rows], "machine": machine()}

"""Timing that survives a busy machine: everything interleaved in one process, medians reported."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

Told = Callable[[float], None]
"""Hears what part of a measurement is done, from 0 to 1."""


def silent(done: float) -> None:
    """Tells nobody."""


def part(told: Told, low: float, high: float) -> Told:
    """For a piece of a measurement that leads from ``low`` to ``high`` of the whole."""
    return lambda done: told(low + (high - low) * done)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median over the repeats and its quartiles."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a fraction of the median."""
        return (self.high - self.low) / 2 / self.median


def interleave(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    told: Told = silent,
) -> dict[str, Timing]:
    """Run all calls in turn, ``repeats`` times; a slow moment then hits all of them alike.

    ``clock=time.process_time`` counts processor time, for one thread on a machine that others use.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-warmup, repeats):
        for name, call in calls.items():
            start = clock()
            call()
            if turn >= 0:
                seconds[name].append(clock() - start)
        told((warmup + turn + 1) / (warmup + repeats))
    return {name: summary(values) for name, values in seconds.items()}


def paired(
    first: Callable[[], object],
    second: Callable[[], object],
    groups: int,
    turns: int,
    told: Told = silent,
) -> tuple[Timing, Timing, Timing]:
    """Seconds of both calls, ``turns`` of each together, and the ratio of the first to the second.

    For differences of a few percent on a busy machine: the two change places at every turn, each
    group of turns has its own ratio, and the median of these is told. The clock is that of one
    thread's processor time."""
    sums: list[list[float]] = []
    for group in range(-1, groups):
        spent = [0.0, 0.0]
        for turn in range(turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                start = time.process_time()
                (first, second)[which]()
                spent[which] += time.process_time() - start
        if group >= 0:
            sums.append(spent)
        told((group + 2) / (groups + 1))
    ratios = [one / other for one, other in sums]
    return (summary([one for one, _ in sums]), summary([other for _, other in sums]),
            summary(ratios))  # fmt: skip


def summary(values: list[float]) -> Timing:
    """Median and quartiles."""
    if len(values) < 2:
        return Timing(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(middle, low, high)


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that tensors made during ``call`` take at one time (CPU)."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes on the terminal
    activity = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activity, profile_memory=True) as profile:
        call()
    results = profile.profiler.kineto_results if profile.profiler is not None else None
    events = [e for e in results.events() if e.name() == "[memory]"] if results is not None else []
    level = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


def machine() -> str:
    """One line on what was measured with: processor, threads, versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = f"{names[0]}, {len(names)} cores" if names else model
    return (
        f"{model}; {torch.get_num_threads()} thread(s); "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )

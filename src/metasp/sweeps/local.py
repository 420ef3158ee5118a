"""Runs on this machine: each in a process of its own, as many as the cores can carry.

The processes are forked by the standard library's forkserver, which has loaded what a run needs and
computes nothing: threads start in the fork, as in a fresh process, so a run has the same bits."""

import contextlib
import multiprocessing
import os
import pkgutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import metasp.methods
from metasp.store.files import write_atomic
from metasp.sweeps.jobs import Job, Update, carry_out_order, order_for

POLL_SECONDS = 0.2
# What a run loads only on its way; pyarrow looks for pandas, which takes long where it is there.
ALSO = ("pyarrow.dataset", "pandas", "filelock", "torch._dynamo")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Child:
    """A process that carries out one job, and its last update."""

    job: Job
    process: Any
    updates: connection.Connection
    log: Path
    last: Update | None = None
    asked: bool = False  # to stop

    def stop(self) -> None:
        self.asked = True
        self.process.terminate()


@dataclass(frozen=True)
class Local:
    """How to run on this machine."""

    data: Path | None = None
    checkpoint_seconds: float = 60.0
    jobs: int | None = None
    cores: int = field(default_factory=usable_cores)

    def room(self, running: list[Child], job: Job) -> bool:
        """Return whether one more run fits: by number if one was given, else by threads. Runs that
        share a core would slow each other down far more than waiting does."""
        if self.jobs is not None:
            return len(running) < self.jobs
        busy = sum(child.job.spec.threads for child in running)
        return not running or busy + job.spec.threads <= self.cores

    def at_once(self, jobs: list[Job]) -> int:
        """Return how many of these runs go at the same time, for the time left."""
        threads = max((job.spec.threads for job in jobs), default=1)
        return self.jobs or max(1, self.cores // threads)

    def run(self, jobs: list[Job], stop: Callable[[], bool]) -> Iterator[Update]:
        """Carry out the jobs; what becomes of each. When told to stop, every run stores a
        checkpoint first."""
        waiting, running, asked = list(jobs), list[Child](), False
        context = preloaded()
        with tempfile.TemporaryDirectory(prefix="metasp-sweep-") as logs:
            try:
                while waiting or running:
                    if stop() and not asked:
                        asked = True
                        yield from (Update(job.name, "stopped") for job in waiting)
                        waiting.clear()
                        for child in running:
                            child.stop()
                    while waiting and self.room(running, waiting[0]):
                        running.append(self._start(waiting.pop(0), context, Path(logs)))
                    yield from listen(running)
            finally:
                for child in running:
                    child.process.kill()
                    child.process.join()

    def _start(self, job: Job, context: Any, logs: Path) -> Child:
        updates, its_end = context.Pipe(duplex=False)
        log = logs / job.name
        order = order_for(job, self.data, self.checkpoint_seconds)
        process = context.Process(target=work, args=(order, its_end, str(log)))
        process.start()
        its_end.close()
        return Child(job, process, updates, log)


def preloaded() -> BaseContext:
    """Return a context whose processes have loaded what a run needs. Elsewhere than on Linux,
    system libraries may not survive a fork: there each process loads it for itself."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    methods = pkgutil.iter_modules(metasp.methods.__path__, "metasp.methods.")
    loaded = [name for name in sys.modules if name.startswith("metasp.")]
    context.set_forkserver_preload([*loaded, *(module.name for module in methods), *ALSO])
    return context


def listen(running: list[Child]) -> Iterator[Update]:
    """Give the updates that arrive within a moment; children that ended are taken off the list."""
    connection.wait([end for c in running for end in (c.updates, c.process.sentinel)], POLL_SECONDS)
    for child in list(running):
        over = not child.process.is_alive()  # asked first: nothing is said after that
        with contextlib.suppress(EOFError):
            while child.updates.poll():
                child.last = child.updates.recv()
                if child.last.state == "running":
                    yield child.last
        if over:
            running.remove(child)
            yield ended(child)


def ended(child: Child) -> Update:
    """Return the last word on a child: its own, or what its death says."""
    child.process.join()
    code, last = child.process.exitcode, child.last
    child.updates.close()
    output = child.log.read_text(errors="replace").strip() if child.log.exists() else ""
    if last is None or last.state == "running":
        # Asked before it could listen, it has nothing to store yet.
        stopped = child.asked and code in (1, -signal.SIGTERM)
        note = "" if stopped else reason_of(code, output)
        last = Update(child.job.name, "stopped" if stopped else "failed", note=note)
    log = child.job.path.with_name(f"{child.job.name}.failed.log")
    if last.state == "done":
        with contextlib.suppress(OSError):
            log.unlink()
    elif last.state == "failed" and output:
        last = replace(last, note=f"{last.note}; {stored_trace(log, output)}")
    return last


def stored_trace(log: Path, output: str) -> str:
    """Store what a failed child printed, and tell where; where that fails the other runs go on."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(log, output.encode())
    except OSError as error:
        return f"its trace could not be stored in {log}: {error.strerror or error}"
    return f"see {log}"


def reason_of(code: int, output: str) -> str:
    """Say why a process ended that did not say so itself."""
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')} (out of memory?)"
    return output.splitlines()[-1] if output else f"ended with code {code}"


def work(order: dict[str, Any], updates: connection.Connection, log: str) -> None:
    """Carry out one order in this process and send how it goes; what is printed goes to the log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep, which then asks us
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        last = carry_out_order(order, asked.is_set, updates.send)
    except Exception as error:  # a mistake of ours: its name in one line, and the trace in the log
        traceback.print_exc()
        line = str(error).splitlines()[0] if str(error) else ""
        last = Update(order["name"], "failed", note=f"{type(error).__name__}: {line}")
    updates.send(last)


def end_with_parent() -> None:
    """End at once when the sweep is dead, which frees the run for the next; the last checkpoint
    stands."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

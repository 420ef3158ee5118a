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
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import connection
from pathlib import Path
from typing import Any

import metasp.methods
from metasp.store.files import write_atomic
from metasp.sweeps.jobs import Job, Runner, Update, carry_out, order_for

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


@dataclass
class Local(Runner[Child]):
    """Carry out jobs in processes of this machine."""

    data: Path | None = None
    checkpoint_seconds: float = 60.0
    jobs: int | None = None
    cores: int = field(default_factory=usable_cores)

    def has_room(self, active: list[Child], job: Job) -> bool:
        """Return whether one more run fits: by number if one was given, else by threads. Runs that
        share a core would slow each other down far more than waiting does."""
        if self.jobs is not None:
            return len(active) < self.jobs
        busy = sum(child.job.spec.threads for child in active)
        return not active or busy + job.spec.threads <= self.cores

    def at_once(self, jobs: list[Job]) -> int:
        """Return how many of these runs go at the same time, for the time left."""
        threads = max((job.spec.threads for job in jobs), default=1)
        return self.jobs or max(1, self.cores // threads)

    @cached_property
    def context(self) -> Any:
        """Return a context whose processes have loaded what a run needs. Elsewhere than on Linux,
        system libraries may not survive a fork: there each process loads it for itself."""
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("PYTHONSAFEPATH", "1")  # import no file that lies where we stand
        if sys.platform != "linux":
            return multiprocessing.get_context("spawn")
        context = multiprocessing.get_context("forkserver")
        methods = pkgutil.iter_modules(metasp.methods.__path__, "metasp.methods.")
        loaded = [name for name in sys.modules if name.startswith("metasp.")]
        context.set_forkserver_preload([*loaded, *(module.name for module in methods), *ALSO])
        return context

    @cached_property
    def logs(self) -> tempfile.TemporaryDirectory[str]:
        """Return the folder of what the processes print."""
        return tempfile.TemporaryDirectory(prefix="metasp-sweep-")

    def start(self, job: Job) -> Child:
        """Fork a process for a job."""
        updates, its_end = self.context.Pipe(duplex=False)
        log = Path(self.logs.name) / job.name
        order = order_for(job, self.data, checkpoint_seconds=self.checkpoint_seconds)
        process = self.context.Process(target=work, args=(order, its_end, str(log)))
        process.start()
        its_end.close()
        return Child(job, process, updates, log)

    def ask_to_stop(self, active: Child) -> None:
        """Send SIGTERM, upon which the process stores a checkpoint."""
        active.asked = True
        active.process.terminate()

    def listen(self, active: list[Child]) -> Iterator[Update]:
        """Yield the updates of a moment, and take processes that ended off the list."""
        ends = [child.updates for child in active] + [child.process.sentinel for child in active]
        connection.wait(ends, POLL_SECONDS)
        for child in list(active):
            over = not child.process.is_alive()  # asked first: nothing is sent after that
            with contextlib.suppress(EOFError):
                while child.updates.poll():
                    child.last = child.updates.recv()
                    if child.last.state == "running":
                        yield child.last
            if over:
                active.remove(child)
                yield last_update(child)

    def close(self, active: list[Child]) -> None:
        """Kill what still runs; its last checkpoint stands."""
        for child in active:
            child.process.kill()
            child.process.join()
        self.logs.cleanup()


def last_update(child: Child) -> Update:
    """Return the last update of a process that ended: its own, or what its death says."""
    child.process.join()
    code, last = child.process.exitcode, child.last
    child.updates.close()
    output = child.log.read_text(errors="replace").strip() if child.log.exists() else ""
    if last is None or last.state == "running":
        # Asked before it could listen, it has nothing to store yet.
        if child.asked and code in (1, -signal.SIGTERM):
            return Update(child.job.name, "stopped")
        last = Update(child.job.name, "failed", note=reason_of(code, output))
    log = child.job.path.with_name(f"{child.job.name}.failed.log")
    if last.state == "failed" and output:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(log, output.encode())
            note = f"see {log}"
        except OSError as error:  # the other runs go on
            note = f"its trace could not be stored in {log}: {error.strerror or error}"
        last = replace(last, note=f"{last.note}; {note}")
    elif last.state == "done":
        with contextlib.suppress(OSError):
            log.unlink()
    return last


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
        last = carry_out(order, asked.is_set, updates.send)
    except Exception as error:  # a mistake of ours: its name in one line, and the trace in the log
        traceback.print_exc()
        line = str(error).splitlines()[0] if str(error) else ""
        last = Update(Path(order["path"]).name, "failed", note=f"{type(error).__name__}: {line}")
    updates.send(last)


def end_with_parent() -> None:
    """End at once when the sweep is dead, which frees the run for the next; the last checkpoint
    stands."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Runs on this machine: each in a process of its own, as many as the cores can carry."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from metasp.store.files import write_atomic
from metasp.sweeps.jobs import Job, Update, order_for
from metasp.sweeps.warm import USABLE, Forked, Warm

POLL_SECONDS = 0.2


def usable_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Child:
    """A process that carries out one job, and what it has said."""

    job: Job
    process: subprocess.Popen[str] | Forked
    errors: IO[bytes]
    last: Update | None = None
    asked: bool = False  # to stop

    def stop(self) -> None:
        self.asked = True
        self.process.send_signal(signal.SIGTERM)

    @property
    def out(self) -> IO[str]:
        if self.process.stdout is None:
            raise RuntimeError("the child was started without a pipe")
        return self.process.stdout


def fresh(errors: IO[bytes]) -> subprocess.Popen[str]:
    """A process that waits for an order on its stdin, and loads everything first."""
    return subprocess.Popen(
        # -P: a file json.py where the sweep was started is none of ours.
        [sys.executable, "-P", "-m", "metasp.sweeps.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        start_new_session=True,  # Ctrl-C reaches the sweep alone, which then asks its runs
    )


@dataclass(frozen=True)
class Local:
    """How to run on this machine."""

    data: Path | None = None
    checkpoint_seconds: float = 60.0
    jobs: int | None = None
    cores: int = field(default_factory=usable_cores)

    def room(self, running: list[Child], job: Job) -> bool:
        """Whether one more run fits: by number if one was given, else by threads. Runs that
        share a core would slow each other down far more than waiting does."""
        if self.jobs is not None:
            return len(running) < self.jobs
        busy = sum(child.job.spec.threads for child in running)
        return not running or busy + job.spec.threads <= self.cores

    def at_once(self, jobs: list[Job]) -> int:
        """How many of these runs go at the same time, for the time left."""
        threads = max((job.spec.threads for job in jobs), default=1)
        return self.jobs or max(1, self.cores // threads)

    def run(self, jobs: list[Job], stop: Callable[[], bool]) -> Iterator[Update]:
        """Carry out the jobs; what becomes of each. When told to stop, every run stores a
        checkpoint first."""
        waiting, running = list(jobs), list[Child]()
        asked, warm = False, Warm() if USABLE else None
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or running:
                    if stop() and not asked:
                        asked = True
                        yield from (Update(job.name, "stopped") for job in waiting)
                        waiting.clear()
                        for child in running:
                            child.stop()
                    while waiting and self.room(running, waiting[0]):
                        running.append(self._start(waiting.pop(0), selector, warm))
                    yield from self._listen(selector, running)
            finally:
                for child in running:
                    child.process.kill()
                    child.process.wait()
                if warm is not None:
                    warm.close()

    def _start(self, job: Job, selector: selectors.BaseSelector, warm: Warm | None) -> Child:
        order = order_for(job, self.data, self.checkpoint_seconds)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        process = fresh(errors) if warm is None else warm.start(errors)
        if process.stdin is None:
            raise RuntimeError("the child was started without a pipe")
        with contextlib.suppress(BrokenPipeError):  # it died at once: its end tells why
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        child = Child(job, process, errors)
        selector.register(child.out, selectors.EVENT_READ, child)
        return child

    def _listen(self, selector: selectors.BaseSelector, running: list[Child]) -> Iterator[Update]:
        """What the children say within a moment; those that ended are taken off the list."""
        for key, _ in selector.select(POLL_SECONDS):
            child: Child = key.data
            line = child.out.readline()
            if line:
                child.last = Update(**json.loads(line))
                if child.last.state == "running":
                    yield child.last
                continue
            selector.unregister(child.out)
            running.remove(child)
            yield ended(child)


def ended(child: Child) -> Update:
    """The last word on a child: its own, or what its death says."""
    code = child.process.wait()
    for pipe in (child.process.stdin, child.process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    child.errors.seek(0)
    said = child.errors.read().decode(errors="replace").strip()
    child.errors.close()
    last = child.last
    if last is None or last.state == "running":
        # Asked before it could listen, it has nothing to store yet.
        stopped = child.asked and code == -signal.SIGTERM
        note = "" if stopped else reason_of(code, said)
        last = Update(child.job.name, "stopped" if stopped else "failed", note=note)
    log = child.job.path.with_name(f"{child.job.name}.failed.log")
    if last.state == "done":
        with contextlib.suppress(OSError):
            log.unlink()
    elif last.state == "failed" and said:
        last = replace(last, note=f"{last.note}; {stored_trace(log, said)}")
    return last


def stored_trace(log: Path, said: str) -> str:
    """Store what a failed child said, and tell where; where that fails the other runs go on."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(log, said.encode())
    except OSError as error:
        return f"its trace could not be stored in {log}: {error.strerror or error}"
    return f"see {log}"


def reason_of(code: int, said: str) -> str:
    """Why a process ended that did not say so itself."""
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by {known.get(-code, f'signal {-code}')} (out of memory?)"
    return said.splitlines()[-1] if said else f"ended with code {code}"

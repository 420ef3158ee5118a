"""The same jobs on a Ray cluster. The driver polls its runs, fetches each new checkpoint, and
starts a run whose worker or node is lost elsewhere from the last one."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metasp.errors import UserError
from metasp.store.files import locked
from metasp.store.parcel import pack, unpack
from metasp.sweeps.cluster import (
    POLL_SECONDS,
    RayError,
    RayTaskError,
    connect,
    lacking,
    last_line,
    ray,
    room_for,
    warn,
    where,
)
from metasp.sweeps.jobs import Job, Update, order_for
from metasp.sweeps.remote import LOCAL, Remote, Word

CALLS_AT_ONCE = 3  # run, poll and stop of one actor overlap


@dataclass
class Active:
    """A job on the cluster: its actor, and the answers that are on their way."""

    job: Job
    held: contextlib.ExitStack
    actor: Any = None
    end: Any = None
    poll: Any = None
    asked: float = 0.0
    heard: bool = False
    losses: int = 0

    def open_answers(self) -> list[Any]:
        return [ref for ref in (self.end, self.poll) if ref is not None]


@dataclass
class OnRay:
    """How to run on a cluster."""

    data: Path | None = None
    checkpoint_seconds: float = 60.0
    address: str | None = None
    cpus_per_run: float | None = None
    gpus_per_run: float = 0.0
    shared: bool = False
    retries: int = 3
    active: list[Active] = field(default_factory=list)
    stopping: bool = False
    warned: bool = False

    def at_once(self, jobs: list[Job]) -> int:
        """How many runs the cluster can carry now."""
        connect(self.address)
        needs = {
            "CPU": max([self.cpus(job) for job in jobs], default=1.0),
            "GPU": self.gpus_per_run,
        }
        room = room_for(needs)
        if not room:
            lack = lacking(needs)
            if where(self.address) == LOCAL:
                raise UserError(
                    f"a run asks for {lack} here: give less by --cpus-per-run or --gpus-per-run."
                )
            if not self.warned:
                self.warned = True  # no error: a cluster may grow when it is asked for more
                warn(f"a run asks for {lack} on one node, and waits until one has them")
        return max(1, room)

    def cpus(self, job: Job) -> float:
        return float(job.spec.threads) if self.cpus_per_run is None else self.cpus_per_run

    def run(self, jobs: list[Job], stop: Callable[[], bool]) -> Iterator[Update]:
        """Carry out the jobs; what becomes of each. When told to stop, every run stores a
        checkpoint first."""
        connect(self.address)
        waiting, self.stopping = list(jobs), False
        try:
            while waiting or self.active:
                if stop() and not self.stopping:
                    self.stopping = True
                    yield from (Update(job.name, "stopped") for job in waiting)
                    waiting.clear()
                    yield from self._ask_to_stop()
                while waiting and len(self.active) < self.at_once(jobs):
                    yield from self._take(waiting.pop(0))
                yield from self._hear()
        finally:
            for entry in self.active:
                ray.kill(entry.actor)
                entry.held.close()
            self.active.clear()
            ray.shutdown()

    def _take(self, job: Job) -> Iterator[Update]:
        """Hold a run for writing here, and start it on the cluster."""
        entry = Active(job, contextlib.ExitStack())
        try:
            if not self.shared:  # else the worker itself holds it
                job.path.mkdir(parents=True, exist_ok=True)
                entry.held.enter_context(locked(job.path / "lock"))
            self._start(entry)
        except (UserError, OSError) as error:
            entry.held.close()
            yield Update(job.name, "failed", note=str(error))
            return
        self.active.append(entry)

    def _start(self, entry: Active) -> None:
        """Start a run from what is stored of it, wherever there is room."""
        job = entry.job
        order = order_for(job, self.data, self.checkpoint_seconds)
        kind = ray.remote(Remote).options(
            num_cpus=self.cpus(job),
            num_gpus=self.gpus_per_run,
            max_concurrency=CALLS_AT_ONCE,
            max_restarts=0,  # a lost run is started again here, with the files that were fetched
        )
        entry.actor = kind.remote(order, None if self.shared else pack(job.path))
        entry.end, entry.poll = entry.actor.run.remote(), entry.actor.poll.remote()
        entry.asked, entry.heard = time.monotonic(), False

    def _hear(self) -> Iterator[Update]:
        """What the runs answer within a moment."""
        now = time.monotonic()
        for entry in self.active:
            if entry.poll is None and now - entry.asked >= POLL_SECONDS:
                entry.poll, entry.asked = entry.actor.poll.remote(), now
        answers = [ref for entry in self.active for ref in entry.open_answers()]
        ready, _ = ray.wait(answers, num_returns=1, timeout=POLL_SECONDS) if answers else ([], [])
        for entry in list(self.active):
            if entry.end in ready or entry.poll in ready:
                yield from self._answered(entry, final=entry.end in ready)

    def _answered(self, entry: Active, final: bool) -> Iterator[Update]:
        """Take in one answer of a run: its progress, its end or its loss."""
        ref = entry.end if final else entry.poll
        if not final:
            entry.poll = None
        try:
            word, parcel = ray.get(ref)
            if parcel:
                unpack(entry.job.path, parcel)
        except RayTaskError as error:  # an exception of the run's own, not of the cluster
            yield self._over(entry, failed(last_line(error)))
        except RayError as error:
            yield self._lost(entry, error)
        except (UserError, OSError) as error:  # what came cannot be stored here
            yield self._over(entry, failed(str(error)))
        else:
            entry.heard = True
            yield self._over(entry, word) if final else Update(entry.job.name, **word)

    def _over(self, entry: Active, word: Word) -> Update:
        ray.kill(entry.actor)
        entry.held.close()
        self.active.remove(entry)
        return Update(entry.job.name, **word)

    def _lost(self, entry: Active, error: RayError) -> Update:
        """The worker or its node is gone: start again elsewhere, unless it has been too often, or
        it never came up (metasp is not installed there, its disk is full)."""
        entry.losses += 1
        if self.stopping:
            return self._over(entry, {"state": "stopped"})
        if getattr(error, "actor_init_failed", False):
            return self._over(entry, failed(f"its worker does not start: {last_line(error)}"))
        if entry.losses > self.retries:
            note = f"its worker was lost {entry.losses} times ({type(error).__name__})"
            return self._over(entry, failed(f"{note}: {last_line(error)}"))
        ray.kill(entry.actor)
        try:
            self._start(entry)
        except (UserError, OSError) as broken:
            return self._over(entry, failed(str(broken)))
        note = f"worker or node lost ({type(error).__name__}): try {entry.losses + 1}"
        return Update(entry.job.name, "running", note=note)

    def _ask_to_stop(self) -> Iterator[Update]:
        """Ask every run that has begun to stop; those still queued are taken back."""
        for entry in list(self.active):
            if entry.heard:
                entry.actor.stop.remote()
            else:
                yield self._over(entry, {"state": "stopped"})


def failed(note: str) -> Word:
    return {"state": "failed", "note": note}

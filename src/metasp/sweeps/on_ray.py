"""The same jobs on a Ray cluster whose nodes share the folder of runs. Each run is a task. Ray
starts it again elsewhere when its worker or node is lost, and it goes on from its last checkpoint.

A worker imports this module before its environment is set, so it must not import torch."""

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasp.errors import UserError
from metasp.sweeps.cluster import (
    LOCAL,
    POLL_SECONDS,
    Mailbox,
    RayError,
    RayTaskError,
    TaskCancelledError,
    Word,
    connect,
    lacking,
    last_line,
    ray,
    room_for,
    warn,
    where,
)

if TYPE_CHECKING:
    from metasp.influence.parallel import Ranks
    from metasp.sweeps.jobs import Job, Update


@dataclass
class Active:
    """A job on the cluster: the promise of its last word, and its mailbox."""

    job: "Job"
    end: Any
    mailbox: Mailbox
    word: Word = field(default_factory=dict)


@dataclass
class OnRay:
    """How to run on a cluster."""

    data: Path | None = None
    checkpoint_seconds: float = 60.0
    address: str | None = None
    cpus_per_run: float | None = None
    gpus_per_run: float = 0.0
    retries: int = 3
    warned: bool = False

    def at_once(self, jobs: "list[Job]") -> int:
        """Return how many runs the cluster can carry now."""
        connect(self.address)
        cpus = max([self.cpus(job) for job in jobs], default=1.0)
        needs = {"CPU": cpus, "GPU": self.gpus_per_run}
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

    def cpus(self, job: "Job") -> float:
        return float(job.spec.threads) if self.cpus_per_run is None else self.cpus_per_run

    def run(self, jobs: "list[Job]", stop: Callable[[], bool]) -> "Iterator[Update]":
        """Carry out the jobs; what becomes of each. When told to stop, every run stores a
        checkpoint first."""
        from metasp.sweeps.jobs import Update

        connect(self.address)
        waiting, active, stopping = list(jobs), list[Active](), False
        try:
            while waiting or active:
                if stop() and not stopping:
                    stopping = True
                    yield from (Update(job.name, "stopped") for job in waiting)
                    waiting.clear()
                    for each in active:
                        ask_to_stop(each)
                while waiting and len(active) < self.at_once(jobs):
                    active.append(self._start(waiting.pop(0)))
                refs = [each.end for each in active]
                ended, _ = ray.wait(refs, timeout=POLL_SECONDS) if refs else ([], [])
                for each in list(active):
                    if each.end in ended:
                        active.remove(each)
                        each.mailbox.close()
                        yield Update(each.job.name, **last_word(each, stopping))
                    elif (word := each.mailbox.read()) != each.word:
                        each.word = word
                        yield Update(each.job.name, **word)
        finally:
            for each in active:
                ray.cancel(each.end, force=True)
                each.mailbox.close()
            ray.shutdown()

    def _start(self, job: "Job") -> Active:
        from metasp.sweeps.jobs import order_for

        mailbox = Mailbox(job.path)
        mailbox.open("waiting for a worker")
        task = ray.remote(carry_out).options(
            num_cpus=self.cpus(job), num_gpus=self.gpus_per_run, max_retries=self.retries
        )
        order = order_for(job, self.data, self.checkpoint_seconds)
        return Active(job, task.remote(order), mailbox, mailbox.read())


def ask_to_stop(each: Active) -> None:
    """Have a run store a checkpoint and end; one that waits for a worker is taken back."""
    each.mailbox.ask_to_stop()
    if "fraction" not in each.mailbox.read():
        ray.cancel(each.end)


def last_word(each: Active, stopping: bool) -> Word:
    """Return what became of a task: its own word, or what its loss says."""
    try:
        word: Word = ray.get(each.end)
    except RayTaskError as error:  # an exception of the run's own, not of the cluster
        word = {"state": "failed", "note": last_line(error)}
    except TaskCancelledError:
        word = {"state": "stopped"}
    except RayError as error:
        note = f"its worker or node was lost ({type(error).__name__}): {last_line(error)}"
        word = {"state": "stopped"} if stopping else {"state": "failed", "note": note}
    done = word["state"] == "done" and not (each.job.path / "result.json").exists()
    return {"state": "failed", "note": unseen(each.job.path.parent)} if done else word


def unseen(runs: Path) -> str:
    """Say that a node does not share the folder of runs."""
    return (
        f"the node {socket.gethostname()} sees another folder {runs} than the command: give --runs "
        "a folder on storage that all nodes share."
    )


def carry_out(order: dict[str, Any], ranks: "Ranks | None" = None) -> Word:
    """Carry out one order on a worker, alone or as one of its processes. Returns the last word."""
    # Threads that spin while they wait would steal the cores of the node's other runs.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    from metasp.sweeps.jobs import carry_out_order

    mailbox = Mailbox(Path(order["runs"]) / order["name"])
    if not mailbox.read():
        return {"state": "failed", "note": unseen(Path(order["runs"]))}
    if ranks is None and mailbox.stop():  # lost while stopping, and tried again
        return {"state": "stopped"}
    first = ranks is None or ranks.rank == 0

    def tell(update: "Update") -> None:
        if first:
            mailbox.tell(word_of(update))

    return word_of(carry_out_order(order, mailbox.stop, tell, ranks))


def word_of(update: "Update") -> Word:
    """Return an update without its name, which the command knows."""
    return {name: value for name, value in asdict(update).items() if name != "name"}

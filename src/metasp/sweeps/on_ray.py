"""Run jobs on a Ray cluster whose nodes share the folder of runs.

A job of one worker is a task, which Ray starts again elsewhere when its worker or node is lost. A
job of several is a TorchTrainer of Ray Train, which starts all of them again when one is lost; they
share the run as processes under torchrun do (see processes.py). Both go on from the last
checkpoint.

A worker imports this module before its environment is set, so it must not import torch."""

import concurrent.futures as futures
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasp.errors import UserError
from metasp.sweeps.jobs import Job, Runner, Update, carry_out, order_for

try:
    import ray
    from ray.exceptions import TaskCancelledError
except ImportError as missing:
    raise UserError("Ray is not installed: pip install -e '.[cluster]' in the clone.") from missing

if TYPE_CHECKING:
    from metasp.influence.parallel import Ranks

POLL_SECONDS = 0.5
LOCAL = "local"  # Ray's word for a cluster of our own


class Mailbox:
    """Two files beside a run, on storage that all nodes see: its latest update, written by its
    worker, and a request to stop, made by the command that started it."""

    def __init__(self, run: Path) -> None:
        self.name = run.name
        self.update = run.with_name(f".{run.name}.update")
        self.request = run.with_name(f".{run.name}.stop")

    def open(self) -> None:
        """Begin with the update of a run that waits for its workers."""
        self.update.parent.mkdir(parents=True, exist_ok=True)
        self.request.unlink(missing_ok=True)
        self.write(Update(self.name, "running", note="waiting for workers"))

    def close(self) -> None:
        """Remove both files."""
        for file in (self.update, self.request):
            file.unlink(missing_ok=True)

    def write(self, update: Update) -> None:
        """Replace the update in one step."""
        written = self.update.with_name(f"{self.update.name}.{os.getpid()}")
        written.write_text(json.dumps(asdict(update)))
        written.replace(self.update)

    def read(self) -> Update | None:
        """Return the latest update; None where there is no mailbox here."""
        try:
            return Update(**json.loads(self.update.read_text()))
        except FileNotFoundError:
            return None


@dataclass
class Remote:
    """A job on the cluster: the future of its last update, its mailbox, and its task, if it is
    one."""

    job: Job
    end: futures.Future[Any]
    mailbox: Mailbox
    task: Any = None


@dataclass
class OnRay(Runner[Remote]):
    """Carry out jobs on a cluster, with `workers` processes for each job."""

    data: Path | None = None
    address: str | None = None
    cpus: float | None = None  # of each worker; None: the threads of a run
    gpus: float = 0.0  # of each worker
    retries: int = 3
    workers: int = 1
    options: dict[str, Any] = field(default_factory=dict)  # of metasp.experiment.prepare
    warned: bool = False
    stopping: bool = False

    @property
    def device(self) -> str:
        """Return what "auto" is there."""
        return "cuda" if self.gpus else "cpu"

    def needs(self, job: Job) -> dict[str, float]:
        """Return what each worker of a job asks for."""
        cpus = float(job.spec.threads) if self.cpus is None else self.cpus
        return {kind: need for kind, need in (("CPU", cpus), ("GPU", self.gpus)) if need}

    def at_once(self, jobs: list[Job]) -> int:
        """Return how many runs the cluster can carry now."""
        connect(self.address)
        needs = self.needs(max(jobs, key=lambda job: job.spec.threads))
        room = 0
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            has = node["Resources"] if node["Alive"] else {}
            room += int(min([has.get(kind, 0.0) / need for kind, need in needs.items()] or [1.0]))
        if room < self.workers and not self.warned:
            asked = ", ".join(f"{need:g} {kind}" for kind, need in needs.items())
            lack = (
                f"a run asks for {self.workers} × {asked}, and there is room for {room} × {asked}"
            )
            if cluster_at(self.address) == LOCAL:
                raise UserError(
                    f"{lack}: give fewer --workers or --threads, or less by --cpus-per-worker or "
                    "--gpus-per-worker."
                )
            self.warned = True  # no error: a cluster may grow when it is asked for more
            print(f"warning: {lack}; it waits until there is more", file=sys.stderr)
        return max(1, room // self.workers)

    def has_room(self, active: list[Remote], job: Job) -> bool:
        """Return whether the cluster can carry one more."""
        return len(active) < self.at_once([job])

    def start(self, job: Job) -> Remote:
        """Submit a job."""
        mailbox = Mailbox(job.path)
        mailbox.open()
        order = order_for(job, self.data, **self.options)
        if self.workers > 1:
            # In a thread: in the main one Ray would take Ctrl-C for itself.
            end = futures.ThreadPoolExecutor(1).submit(self._train, order, self.needs(job))
            return Remote(job, end, mailbox)
        cpus, gpus = (self.needs(job).get(kind, 0.0) for kind in ("CPU", "GPU"))
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": self.retries}
        task = ray.remote(serve).options(**options).remote(order)
        return Remote(job, task.future(), mailbox, task)

    def _train(self, order: dict[str, Any], needs: dict[str, float]) -> Update | None:
        """Have Ray Train carry out an order of several workers. Returns its last update."""
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # paths in a spec count from where we are
        # Threads that spin while they wait would steal the cores of the other workers.
        passive: Any = {"worker_runtime_env": {"env_vars": {"OMP_WAIT_POLICY": "passive"}}}
        with tempfile.TemporaryDirectory() as folder:
            TorchTrainer(
                share,
                train_loop_config=order,
                torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if self.gpus else "gloo"),
                scaling_config=ScalingConfig(
                    num_workers=self.workers, use_gpu=self.gpus > 0, resources_per_worker=needs
                ),
                run_config=RunConfig(
                    name=Path(order["path"]).name,
                    storage_path=folder,  # of Ray's own notes: it has no checkpoint of ours
                    failure_config=FailureConfig(max_failures=self.retries),
                    **passive,
                ),
            ).fit()
        return Mailbox(Path(order["path"])).read()

    def ask_to_stop(self, active: Remote) -> None:
        """Leave a request; a task that waits for a worker is taken back."""
        self.stopping = True
        active.mailbox.request.touch()
        update = active.mailbox.read()
        if active.task is not None and (update is None or update.left is None):
            ray.cancel(active.task)

    def listen(self, active: list[Remote]) -> Iterator[Update]:
        """Yield the updates of a moment, and take jobs that ended off the list."""
        futures.wait([one.end for one in active], POLL_SECONDS, futures.FIRST_COMPLETED)
        for one in list(active):
            update = one.mailbox.read()
            if one.end.done():
                active.remove(one)
                one.mailbox.close()
                yield self.last_update(one, update)
            elif update is not None and update.state == "running":
                yield update

    def last_update(self, one: Remote, update: Update | None) -> Update:
        """Return what became of a job: its own update, or what its loss says."""
        try:
            last: Update = one.end.result()
        except TaskCancelledError:
            return Update(one.job.name, "stopped")
        except Exception as error:
            if update is not None and update.state != "running":  # before its workers were lost
                return update
            why = f"its workers were lost ({type(error).__name__}): {last_line(error)}"
            return Update(one.job.name, "stopped" if self.stopping else "failed", note=why)
        if last.state == "done" and not (one.job.path / "result.json").exists():
            return unseen(one.job.path)
        return last

    def close(self, active: list[Remote]) -> None:
        """Cancel what is left and leave the cluster."""
        for one in active:
            if one.task is not None:
                ray.cancel(one.task, force=True)
            one.mailbox.close()
        ray.shutdown()


def cluster_at(address: str | None) -> str:
    """Return the cluster to join; LOCAL where one is started here."""
    return address or os.environ.get("RAY_ADDRESS") or LOCAL


def connect(address: str | None) -> None:
    """Join the cluster, or start one on this machine where no address is given: Ray itself would
    join whatever cluster a file that anyone can write to names."""
    if ray.is_initialized():
        return
    cluster = cluster_at(address)
    new: Any = {"include_dashboard": False} if cluster == LOCAL else {}
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=cluster, logging_level=logging.ERROR, log_to_driver=False, **new)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        if cluster == LOCAL:
            raise UserError(f"Ray does not start here ({reason}): leave out --on ray.") from error
        raise UserError(
            f"cannot reach a Ray cluster at {cluster} ({reason}): start one by `ray start --head`."
        ) from error
    signal.signal(signal.SIGTERM, on_term)  # Ray sets its own; ours stores checkpoints


def last_line(error: Exception) -> str:
    """Return the last line of a message, which says most."""
    return str(error).strip().splitlines()[-1]


def unseen(run: Path) -> Update:
    """Say that a node does not share the folder of runs."""
    note = (
        f"the node {socket.gethostname()} sees another folder {run.parent} than the command: give "
        "--runs a folder on storage that all nodes share."
    )
    return Update(run.name, "failed", note=note)


def serve(order: dict[str, Any], ranks: "Ranks | None" = None) -> Update:
    """Carry out one order on a worker, alone or as one of its processes. Returns the last
    update."""
    # Threads that spin while they wait would steal the cores of the node's other runs.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    run = Path(order["path"])
    mailbox = Mailbox(run)
    if mailbox.read() is None:
        return unseen(run)
    if ranks is None and mailbox.request.exists():  # lost while stopping, and tried again
        return Update(run.name, "stopped")
    send = mailbox.write if ranks is None or ranks.rank == 0 else lambda update: None
    return carry_out(order, mailbox.request.exists, send, ranks)


def share(order: dict[str, Any]) -> None:
    """Take a share of the run as one of its workers. The first of them, and one that fails, leaves
    the last update."""
    from metasp.processes import joined, leave

    mailbox, ranks = Mailbox(Path(order["path"])), joined()
    update = mailbox.read()
    over = update is not None and update.state != "running"  # in an earlier try
    if over if ranks is None else ranks.hear(b"over" if over else b""):
        return
    try:
        update = serve(order, ranks)
    except UserError:  # others are gone: all are started again
        raise
    except Exception as error:
        update = Update(mailbox.name, "failed", note=last_line(error))
    if ranks is None or ranks.rank == 0 or update.state == "failed":
        mailbox.write(update)
    if update.state == "failed":
        raise RuntimeError(update.note)  # so that Ray ends the others, which may wait for it
    leave()

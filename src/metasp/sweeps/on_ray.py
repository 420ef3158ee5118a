"""The same jobs on a Ray cluster whose nodes share the folder of runs.

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
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasp.errors import UserError
from metasp.sweeps.jobs import Job, Runner, Update, carry_out, order_for

try:
    import ray
    from ray.exceptions import RayError, RayTaskError, TaskCancelledError
except ImportError as missing:
    raise UserError("Ray is not installed: pip install -e '.[cluster]' in the clone.") from missing

if TYPE_CHECKING:
    from metasp.influence.parallel import Ranks

POLL_SECONDS = 0.5
LOCAL = "local"  # Ray's word for a cluster of our own

Message = dict[str, Any]  # an update without its name


class Mailbox:
    """Two files beside a run, on storage that all nodes see: its latest update, written by its
    worker, and a request to stop, made by the command that started it."""

    def __init__(self, run: Path) -> None:
        self.update = run.with_name(f".{run.name}.update")
        self.request = run.with_name(f".{run.name}.stop")
        self.looked = 0.0
        self.requested = False

    def open(self, note: str) -> None:
        """Begin with the update of a run that waits for its workers."""
        self.update.parent.mkdir(parents=True, exist_ok=True)
        self.request.unlink(missing_ok=True)
        self.write({"state": "running", "note": note})

    def close(self) -> None:
        """Remove both files."""
        for file in (self.update, self.request):
            file.unlink(missing_ok=True)

    def write(self, message: Message) -> None:
        """Replace the update in one step."""
        written = self.update.with_name(f"{self.update.name}.{os.getpid()}")
        written.write_text(json.dumps(message))
        written.replace(self.update)

    def read(self) -> Message:
        """Return the latest update; empty where there is no mailbox here."""
        with suppress(FileNotFoundError):
            return dict(json.loads(self.update.read_text()))
        return {}

    def stop_requested(self) -> bool:
        """Return whether the run is to stop; storage is asked now and then only."""
        now = time.monotonic()
        if not self.requested and now - self.looked > POLL_SECONDS:
            self.looked, self.requested = now, self.request.exists()
        return self.requested


@dataclass
class Remote:
    """A job on the cluster: the future of its last message, its mailbox, and what it said last."""

    job: Job
    end: futures.Future[Message]
    mailbox: Mailbox
    task: Any = None  # None for a job of several workers
    message: Message = field(default_factory=dict)


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
        needs = max([self.needs(job) for job in jobs], key=lambda need: need.get("CPU", 0.0))
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        room = 0
        for node in nodes:
            room += int(min([node.get(kind, 0.0) / need for kind, need in needs.items()] or [1.0]))
        if room < self.workers and not self.warned:
            short = []
            for kind, need in needs.items():
                most = max([node.get(kind, 0.0) for node in nodes], default=0.0)
                short += [f"{need:g} {kind} of {most:g}"] if need > most else []
            lack = f"{self.workers} workers of {room}" if room else ", ".join(short)
            if cluster_at(self.address) == LOCAL:
                raise UserError(
                    f"a run asks for {lack} here: give fewer --workers or --threads, or less by "
                    "--cpus-per-run or --gpus-per-run."
                )
            self.warned = True  # no error: a cluster may grow when it is asked for more
            message = f"warning: a run asks for {lack} on one node, and waits until one has them"
            print(message, file=sys.stderr)
        return max(1, room // self.workers)

    def has_room(self, active: list[Remote], job: Job) -> bool:
        """Return whether the cluster can carry one more."""
        return len(active) < self.at_once([job])

    def start(self, job: Job) -> Remote:
        """Submit a job."""
        mailbox = Mailbox(job.path)
        mailbox.open("waiting for workers")
        order = order_for(job, self.data, **self.options)
        if self.workers > 1:
            # In a thread: in the main one Ray would take Ctrl-C for itself.
            end = futures.ThreadPoolExecutor(1).submit(self._train, order, self.needs(job))
            return Remote(job, end, mailbox)
        needs = self.needs(job)
        task = (
            ray.remote(serve)
            .options(
                num_cpus=needs.get("CPU", 0.0),
                num_gpus=needs.get("GPU", 0.0),
                max_retries=self.retries,
            )
            .remote(order)
        )
        return Remote(job, task.future(), mailbox, task)

    def _train(self, order: dict[str, Any], needs: dict[str, float]) -> Message:
        """Have Ray Train carry out an order of several workers. Returns its last message."""
        try:
            from ray.train import FailureConfig, RunConfig, ScalingConfig
            from ray.train.torch import TorchConfig, TorchTrainer
        except ImportError as missing:
            raise UserError(
                f"Ray Train misses a package ({missing}): pip install -e '.[cluster]' in the clone."
            ) from missing
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
        if active.task is not None and "fraction" not in active.mailbox.read():
            ray.cancel(active.task)

    def listen(self, active: list[Remote]) -> Iterator[Update]:
        """Yield the updates of a moment, and take jobs that ended off the list."""
        futures.wait([one.end for one in active], POLL_SECONDS, futures.FIRST_COMPLETED)
        for one in list(active):
            message = one.mailbox.read()
            if one.end.done():
                active.remove(one)
                one.mailbox.close()
                yield Update(one.job.name, **self.last_message(one, message))
            elif message != one.message and message.get("state") == "running":
                one.message = message
                yield Update(one.job.name, **message)

    def last_message(self, one: Remote, message: Message) -> Message:
        """Return what became of a job: its own message, or what its loss says."""
        try:
            last = one.end.result()
        except TaskCancelledError:
            return {"state": "stopped"}
        except Exception as error:
            if (
                message.get("state", "running") != "running"
            ):  # it ended before its workers were lost
                return message
            why = str(error).strip().splitlines()[-1]
            if isinstance(error, RayError) and not isinstance(error, RayTaskError):
                why = f"its worker or node was lost ({type(error).__name__}): {why}"
            lost = not isinstance(error, RayTaskError | UserError)
            return {"state": "stopped"} if self.stopping and lost else failed(why)
        if last["state"] == "done" and not (one.job.path / "result.json").exists():
            return failed(unseen(one.job.path.parent))
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


def failed(note: str) -> Message:
    """Return the message of a failure."""
    return {"state": "failed", "note": note}


def unseen(runs: Path) -> str:
    """Say that a node does not share the folder of runs."""
    return (
        f"the node {socket.gethostname()} sees another folder {runs} than the command: give --runs "
        "a folder on storage that all nodes share."
    )


def serve(order: dict[str, Any], ranks: "Ranks | None" = None) -> Message:
    """Carry out one order on a worker, alone or as one of its processes. Returns the last
    message."""
    # Threads that spin while they wait would steal the cores of the node's other runs.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    mailbox = Mailbox(Path(order["path"]))
    if not mailbox.read():
        return failed(unseen(Path(order["path"]).parent))
    if ranks is None and mailbox.stop_requested():  # lost while stopping, and tried again
        return {"state": "stopped"}
    first = ranks is None or ranks.rank == 0

    def send(update: Update) -> None:
        if first:
            mailbox.write(message_of(update))

    return message_of(carry_out(order, mailbox.stop_requested, send, ranks))


def message_of(update: Update) -> Message:
    """Return an update without its name, which the command knows."""
    return {name: value for name, value in asdict(update).items() if name != "name"}


def share(order: dict[str, Any]) -> None:
    """Take a share of the run as one of its workers. The first of them, and one that fails, leaves
    the last message."""
    from metasp.processes import joined, leave

    mailbox, ranks = Mailbox(Path(order["path"])), joined()
    first = ranks is None or ranks.rank == 0
    over = mailbox.read().get("state", "running") != "running"  # in an earlier try
    if over if ranks is None else ranks.hear(b"over" if over else b""):
        return
    try:
        message = serve(order, ranks)
    except UserError:  # others are gone: all are started again
        raise
    except Exception as error:
        message = failed(str(error).strip().splitlines()[-1])
    if first or message["state"] == "failed":
        mailbox.write(message)
    if message["state"] == "failed":
        raise RuntimeError(message["note"])  # so that Ray ends the others, which may wait for it
    leave()

"""One run on many workers of a Ray cluster whose nodes share the folder of runs, through the
TorchTrainer of Ray Train.

Ray starts the workers, lets them meet, and starts all of them again when one is lost. They share
the run as processes under torchrun do (see processes.py) and store it as one process does."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasp.errors import UserError
from metasp.experiment import Experiment
from metasp.sweeps.cluster import (
    LOCAL,
    POLL_SECONDS,
    Mailbox,
    Word,
    connect,
    lacking,
    last_line,
    ray,
    room_for,
    warn,
    where,
)
from metasp.sweeps.jobs import Job, Update, order_for
from metasp.sweeps.on_ray import carry_out

try:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
except ImportError as missing:
    raise UserError(
        f"Ray Train misses a package ({missing}): pip install -e '.[cluster]' in the clone."
    ) from missing


@dataclass
class RanksOnRay:
    """How one run is shared by the workers of a cluster."""

    data: Path | None = None
    workers: int = 1
    gpus_per_worker: float = 0.0
    address: str | None = None
    retries: int = 3

    @property
    def device(self) -> str:
        """Return what "auto" is there."""
        return "cuda" if self.gpus_per_worker else "cpu"

    def run(self, experiment: Experiment, stop: Callable[[], bool]) -> Iterator[Update]:
        """Make a run happen; how it is, again and again, and its end. When told to stop, it stores
        a checkpoint first."""
        connect(self.address)
        needs = {"CPU": float(experiment.spec.threads), "GPU": self.gpus_per_worker}
        self._check_room(needs)
        directory = experiment.directory
        try:
            with directory.open(experiment.spec, fresh=experiment.force):
                pass  # so that workers that are started again go on
            job = Job(experiment.spec, directory.path, "unfinished")
            kept = experiment.keep_checkpoints
            order = order_for(job, self.data, experiment.checkpoint_seconds, kept)
            yield from self._followed(Mailbox(directory.path), order, needs, stop)
        finally:
            ray.shutdown()

    def _check_room(self, needs: dict[str, float]) -> None:
        room = room_for(needs)
        if room >= self.workers:
            return
        if where(self.address) == LOCAL:
            lack = (
                f"{room} of {self.workers} workers" if room else f"a worker with {lacking(needs)}"
            )
            raise UserError(
                f"this machine has room for {lack}: give less by --workers, --threads or "
                "--gpus-per-worker."
            )
        warn(f"the cluster has room for {room} of {self.workers} workers, and the run waits")

    def _followed(
        self,
        mailbox: Mailbox,
        order: dict[str, Any],
        needs: dict[str, float],
        stop: Callable[[], bool],
    ) -> Iterator[Update]:
        """Have Ray Train carry the order out, and give what its mailbox says."""
        mailbox.open("waiting for workers")
        errors: list[Exception] = []
        ended, asked = threading.Event(), False

        def fit() -> None:
            try:
                self._trainer(order, needs, folder).fit()
            except Exception as error:  # whatever it is, the main thread must hear of it
                errors.append(error)
            ended.set()

        with tempfile.TemporaryDirectory() as folder:
            # Not in the main thread, where Ray would take Ctrl-C for itself.
            threading.Thread(target=fit, daemon=True).start()
            while not ended.wait(POLL_SECONDS):
                if stop() and not asked:
                    asked = True
                    mailbox.ask_to_stop()
                if (word := mailbox.read()).get("state") == "running":
                    yield Update(order["name"], **word)
        word = mailbox.read()
        mailbox.close()
        yield Update(order["name"], **last_word(word, errors, asked))

    def _trainer(self, order: dict[str, Any], needs: dict[str, float], folder: str) -> TorchTrainer:
        os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # paths in a spec count from where we are
        # Threads that spin while they wait would steal the cores of the other workers.
        passive: Any = {"worker_runtime_env": {"env_vars": {"OMP_WAIT_POLICY": "passive"}}}
        on_gpus = self.gpus_per_worker > 0
        return TorchTrainer(
            share,
            train_loop_config=order,
            torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if on_gpus else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=self.workers,
                use_gpu=on_gpus,
                resources_per_worker={kind: need for kind, need in needs.items() if need},
            ),
            run_config=RunConfig(
                name=order["name"],
                storage_path=folder,  # of what Ray itself notes: it has no checkpoint of ours
                failure_config=FailureConfig(max_failures=self.retries),
                **passive,
            ),
        )


def last_word(word: Word, errors: list[Exception], asked: bool) -> Word:
    """Return the last word on a run: its own, or what Ray says where it has none."""
    if word.get("state", "running") != "running":
        return word
    if asked:
        return {"state": "stopped"}
    why = f" ({type(errors[0]).__name__}): {last_line(errors[0])}" if errors else ""
    return {"state": "failed", "note": f"its workers were lost{why}"}


def share(order: dict[str, Any]) -> None:
    """Take a share of the run as one of its workers. The first of them, and one that fails, leaves
    the last word."""
    from metasp.processes import joined, leave

    mailbox, ranks = Mailbox(Path(order["runs"]) / order["name"]), joined()
    first = ranks is None or ranks.rank == 0
    over = mailbox.read().get("state", "running") != "running"  # in an earlier try
    if over if ranks is None else ranks.hear(b"over" if over else b""):
        return
    try:
        word = carry_out(order, ranks)
    except UserError:  # others are gone: all are started again
        raise
    except Exception as error:
        word = {"state": "failed", "note": last_line(error)}
    if first or word["state"] == "failed":
        mailbox.tell(word)
    if word["state"] == "failed":
        raise RuntimeError(word["note"])  # so that Ray ends the others, which may wait for this one
    leave()

"""One run on many workers of a Ray cluster, through Ray Train's TorchTrainer.

Ray starts the workers, lets them meet, and starts all of them again when one is lost. They share
the run as processes under torchrun do (see processes.py). Checkpoints are the run's own: the first
worker sends its files to this machine, so that no storage need be shared between nodes."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasp.errors import UserError
from metasp.experiment import Experiment
from metasp.store.parcel import pack, unpack
from metasp.sweeps.cluster import (
    POLL_SECONDS,
    connect,
    lacking,
    last_line,
    ray,
    room_for,
    warn,
    where,
)
from metasp.sweeps.jobs import Job, Update, order_for
from metasp.sweeps.remote import LOCAL, Post, Remote, Word

try:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
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
        """What "auto" is there."""
        return "cuda" if self.gpus_per_worker else "cpu"

    def run(self, experiment: Experiment, stop: Callable[[], bool]) -> Iterator[Update]:
        """Make a run happen; how it is, again and again, and its end. When told to stop, it stores
        a checkpoint first."""
        connect(self.address)
        needs = {"CPU": float(experiment.spec.threads), "GPU": self.gpus_per_worker}
        self._check_room(needs)
        path, spec = experiment.directory.path, experiment.spec
        try:
            with experiment.directory.open(spec, fresh=experiment.force):
                job = Job(spec, path.with_name(spec.name), "unfinished")
                order = order_for(job, self.data, experiment.checkpoint_seconds)
                yield from self._followed(path, order, needs, stop)
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
        self, path: Path, order: dict[str, Any], needs: dict[str, float], stop: Callable[[], bool]
    ) -> Iterator[Update]:
        """Have Ray Train carry the order out, and bring here what it comes to."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        kind: Any = ray.remote(Post)
        post = kind.options(num_cpus=0, scheduling_strategy=here).remote(pack(path))
        errors: list[Exception] = []
        ended, asked = threading.Event(), False

        def fit() -> None:
            try:
                self._trainer(post, order, needs, folder).fit()
            except Exception as error:  # whatever it is, the main thread must hear of it
                errors.append(error)
            ended.set()

        with tempfile.TemporaryDirectory() as folder:
            # Not in the main thread, where Ray would take Ctrl-C for itself.
            threading.Thread(target=fit, daemon=True).start()
            over = False
            while not over:
                over = ended.wait(POLL_SECONDS)
                if stop() and not asked:
                    asked = True
                    post.stop.remote()
                word, parcel = ray.get(post.ask.remote())
                if parcel:
                    unpack(path, parcel)
                if word["state"] == "running" and not over:
                    yield Update(order["name"], **word)
        yield Update(order["name"], **self._last(word, errors, asked))

    def _trainer(
        self, post: Any, order: dict[str, Any], needs: dict[str, float], folder: str
    ) -> TorchTrainer:
        os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # paths in a spec count from where we are
        # Threads that spin while they wait would steal the cores of the other workers.
        passive: Any = {"worker_runtime_env": {"env_vars": {"OMP_WAIT_POLICY": "passive"}}}
        on_gpus = self.gpus_per_worker > 0
        return TorchTrainer(
            share,
            train_loop_config={"post": post, "order": order},
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

    def _last(self, word: Word, errors: list[Exception], asked: bool) -> Word:
        """The last word on a run: its own, or what Ray says where it has none."""
        if word["state"] != "running":
            return word
        if asked:
            return {"state": "stopped"}
        why = f" ({type(errors[0]).__name__}): {last_line(errors[0])}" if errors else ""
        return {"state": "failed", "note": f"its workers were lost{why}"}


def share(config: dict[str, Any]) -> None:
    """What each worker does: its share of the run. The first one tells of it."""
    from metasp.processes import joined, leave

    post, ranks = config["post"], joined()
    first = ranks is None or ranks.rank == 0
    parcel = ray.get(post.begin.remote()) if first else None
    begins = parcel is not None
    if not (begins if ranks is None else ranks.hear(b"begins" if begins else b"")):
        return
    remote, over = Remote(config["order"], parcel or {}), threading.Event()
    telling = threading.Thread(target=tell, args=(remote, post, over), daemon=True)
    if first:
        telling.start()
    try:
        word, files = remote.run(ranks)
    except UserError:  # others are gone: all are started again
        raise
    except Exception as error:
        word, files = {"state": "failed", "note": last_line(error)}, None
    finally:
        over.set()
    if first:
        telling.join()
    if first or word["state"] == "failed":
        ray.get(post.tell.remote(word, files))
    if word["state"] == "failed":
        raise RuntimeError(word["note"])  # so that Ray ends the others, which may wait for this one
    leave()


def tell(remote: Remote, post: Any, over: threading.Event) -> None:
    """Say how a run is until it is over."""
    while not over.wait(POLL_SECONDS):
        with suppress(Exception):  # a command that is gone takes its workers with it
            if ray.get(post.tell.remote(*remote.poll())):
                remote.stop()

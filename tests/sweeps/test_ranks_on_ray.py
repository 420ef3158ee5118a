"""One run shared by the workers of a real Ray cluster, which are killed, lost and stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ray

from metasp.errors import UserError
from metasp.experiment import prepare
from metasp.spec import RunSpec
from metasp.store import RunDir, runs_in
from metasp.sweeps.jobs import Job
from metasp.sweeps.on_ray import OnRay
from tests.helpers import assert_same_run, last_checkpoint, metasp
from tests.sweeps.conftest import STORE, newest_checkpoint
from tests.sweeps.test_local import children_of, wait_for
from tests.train.test_ranks_killed import RUN, finished

EPOCHS = 20  # enough that a run is not over before it is stopped
SPEC = RunSpec(
    method="metasp",
    backbone="convnet",
    width=4,
    limit_per_class=30,
    memory=20,
    epochs=EPOCHS,
    threads=1,
)
LONG = (*RUN, "--epochs", str(EPOCHS))  # the same as flags


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run under torchrun, with as many ranks, undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    finished(2, folder, "--epochs", str(EPOCHS))
    (run,) = runs_in(folder)
    return run


def job_of(spec, folder: Path) -> Job:
    experiment = prepare(spec, folder, device="cpu")
    return Job(experiment.spec, experiment.directory.path, "new")


def newest(folder: Path) -> int:
    return max(map(newest_checkpoint, folder.glob("*")), default=0)


def first_worker(run: Path) -> int:
    """The process that writes the run."""
    return int((run / "lock").read_text())


def workers_of(node) -> list[int]:
    """The processes of a node that share a run."""
    (raylet,) = node.all_processes["raylet"]
    children = children_of(raylet.process.pid)
    return [p for p in children if "TrainWorker" in Path(f"/proc/{p}/cmdline").read_text()]


@pytest.mark.slow
def test_a_worker_killed_and_a_node_lost_cost_at_most_a_checkpoint(cluster_of, tmp_path, whole):
    """First the worker that does not write the run, then the node of the one that does."""
    cluster = cluster_of(0, 1, 1)
    job = job_of(SPEC, tmp_path / "runs")
    path = job.path

    def kill_the_other() -> None:
        first = first_worker(path)
        (other,) = {p for node in cluster.worker_nodes for p in workers_of(node)} - {first}
        os.kill(other, signal.SIGKILL)

    def lose_the_first() -> None:
        first = first_worker(path)
        (node,) = [node for node in cluster.worker_nodes if first in workers_of(node)]
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1, object_store_memory=STORE)

    plan = [("from the start", kill_the_other), ("from checkpoint", lose_the_first)]
    lost_at, notes = [], []
    options = {"checkpoint_seconds": 0.05}
    runner = OnRay(workers=2, address=cluster.address, options=options)
    for update in runner.run([job], lambda: False):
        notes.append(update.note)
        stored = newest_checkpoint(path)
        if plan and plan[0][0] in update.note and stored > sum(lost_at[-1:]) + 2:
            lost_at.append(stored)
            plan.pop(0)[1]()
    assert update.state == "done", update.note
    assert not plan, "over before the kills: give it more to do"
    origins = [n.split("from checkpoint ")[1] for n in notes if "from checkpoint " in n]
    first, second = dict.fromkeys(map(int, origins))
    assert first >= lost_at[0]
    assert second >= lost_at[1]
    assert_same_run(RunDir(path), whole)


@pytest.mark.slow
def test_ctrl_c_stores_a_checkpoint_from_which_the_run_goes_on(cluster, tmp_path, whole):
    words = ["--on", "ray", "--workers", "2", "--address", cluster.address]
    command = [sys.executable, "-m", "metasp", "run", *LONG, "--checkpoint-seconds", "900", *words]
    process = subprocess.Popen(
        [*command, "--runs", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: newest(tmp_path) >= 1)  # that of a task's end
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "after task 1/5  class-IL" in out
    (run,) = runs_in(tmp_path)
    assert run.result() is None, "over before Ctrl-C: give it more to do"
    assert f"continue with: metasp resume {run.path} --checkpoint-seconds 900.0 --on ray" in err
    position = last_checkpoint(run).numbers
    assert (position["epoch"], position["step"]) != (0, 0)  # one was stored in the midst of a task
    moved = run.path.rename(tmp_path / "moved")
    done = metasp("resume", moved, *words)
    assert done.returncode == 0, done.stderr
    assert_same_run(RunDir(moved), whole)


@pytest.mark.slow
def test_what_goes_wrong_on_the_cluster_is_said_here_and_not_tried_again(cluster, tmp_path):
    data = tmp_path / "digits.npz"
    x, y = np.zeros((60, 4, 4), np.uint8), np.arange(60) % 2
    np.savez(data, x_train=x, y_train=y, x_test=x, y_test=y)
    spec = SPEC.with_(benchmark=f"arrays:{data}", tasks=2, backbone="mlp", limit_per_class=None)
    job = job_of(spec, tmp_path / "runs")
    data.unlink()  # as on a cluster whose nodes do not see it
    *_, last = OnRay(workers=2, address=cluster.address).run([job], lambda: False)
    assert last.state == "failed"
    assert str(data) in last.note
    ray.init(address=cluster.address, log_to_driver=False)
    with pytest.raises(
        UserError, match="asks for 3 × 1 CPU, and there is room for 2 × 1 CPU: give fewer"
    ):
        next(OnRay(workers=3).run([job], lambda: False))

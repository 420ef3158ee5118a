"""A real Ray cluster of two nodes, one of which dies in mid-run."""

import os
import subprocess
import sys

import pytest

from metasp.errors import UserError
from metasp.sweeps.grid import expand, parse
from metasp.sweeps.jobs import jobs_of
from metasp.sweeps.on_ray import OnRay, serve
from tests.sweeps.conftest import STORE, newest_checkpoint
from tests.sweeps.test_local import SOURCE, plain, results

TABLES = {
    "threads": 1,
    "width": 4,
    "memory": 40,
    "limit_per_class": 60,
    "epochs": 60,
    "grid": {"method": ["er", "finetune"]},
}


@pytest.mark.slow
def test_a_node_killed_in_mid_run_costs_at_most_a_checkpoint(cluster, tmp_path):
    specs = expand(parse(TABLES, "test"))
    jobs = jobs_of(specs, tmp_path / "runs", None, device="cpu")
    runner = OnRay(address=cluster.address, options={"checkpoint_seconds": 0.3})
    assert runner.at_once(jobs) == 2
    (victim,) = cluster.worker_nodes
    updates, killed, last_of = [], False, {}
    for update in runner.run(jobs, lambda: False):
        updates.append(update)
        if not killed and all(newest_checkpoint(job.path) for job in jobs):
            assert not results(tmp_path / "runs"), "over before the kill: give it more to do"
            last_of = {job.name: newest_checkpoint(job.path) for job in jobs}
            cluster.remove_node(victim, allow_graceful=False)
            killed = True
    assert killed
    assert [u.state for u in updates if u.state != "running"] == ["done", "done"]
    again = [u for u in updates if "from checkpoint " in u.note]
    (name,) = {u.name for u in again}  # one run was on the node that died, and did not begin anew
    origins = {u.note.split("from checkpoint ")[1] for u in again}
    assert all(int(origin) >= last_of[name] for origin in origins)
    assert results(tmp_path / "runs") == plain(specs, tmp_path / "plain")


@pytest.mark.slow
def test_a_run_lost_while_stopping_is_not_started_again(cluster, tmp_path):
    jobs = jobs_of(expand(parse(TABLES, "test")), tmp_path / "runs", None, device="cpu")
    (victim,) = cluster.worker_nodes
    updates = []

    def stop() -> bool:
        """The node dies at the moment of Ctrl-C."""
        if all(newest_checkpoint(job.path) for job in jobs):
            if victim in cluster.worker_nodes:
                cluster.remove_node(victim, allow_graceful=False)
            return True
        return False

    runner = OnRay(address=cluster.address, options={"checkpoint_seconds": 0.3})
    updates = list(runner.run(jobs, stop))
    assert [u.state for u in updates if u.state != "running"] == ["stopped", "stopped"]
    assert not [u for u in updates if "from checkpoint" in u.note]
    assert all(newest_checkpoint(job.path) for job in jobs)


OWN = """
from metasp.cli.options import guard_own_cluster
guard_own_cluster(None)
from metasp.sweeps.on_ray import connect, ray
connect(None)
print(ray.get_runtime_context().gcs_address, flush=True)
input()
"""
STRANGER = "import ray, sys; ray.init(address=sys.argv[1]); print(ray.cluster_resources())"


@pytest.mark.slow
def test_a_cluster_of_its_own_lets_nobody_else_in():
    """Ray runs what it is sent, and listens on the network."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    clean["PYTHONPATH"] = str(SOURCE)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", OWN], env=clean, **pipes) as own:
        address = own.stdout.readline().strip()
        tried = subprocess.run(
            [sys.executable, "-c", STRANGER, address], env=clean, capture_output=True, text=True
        )
        own.communicate("\n")
    assert ":" in address
    assert own.returncode == 0
    assert tried.returncode != 0
    assert "auth" in tried.stderr.lower()
    assert not tried.stdout


@pytest.mark.slow
def test_on_shared_storage_a_stopped_run_is_stored_and_goes_on(cluster, tmp_path):
    specs = expand(parse({**TABLES, "grid": {"method": ["er"]}}, "test"))
    (job,) = jobs_of(specs, tmp_path / "runs", None, device="cpu")
    seen = []

    def stop() -> bool:
        return any(update.fraction > 0 for update in seen)

    runner = OnRay(address=cluster.address, options={"checkpoint_seconds": 900})
    for update in runner.run([job], stop):
        seen.append(update)
    assert seen[-1].state == "stopped"
    assert newest_checkpoint(job.path) >= 1
    assert not results(tmp_path / "runs")
    again = OnRay(address=cluster.address)
    assert [u.state for u in again.run([job], lambda: False)][-1] == "done"
    assert results(tmp_path / "runs") == plain(specs, tmp_path / "plain")


@pytest.mark.slow
def test_what_a_cluster_has_not_is_refused_here_and_waited_for_elsewhere(cluster, tmp_path, capsys):
    """A cluster of our own cannot grow; another one may."""
    jobs = jobs_of(expand(parse(TABLES, "test")), tmp_path / "runs", None, device="cpu")
    elsewhere = OnRay(address=cluster.address, gpus=1)
    assert [elsewhere.at_once(jobs) for _ in range(2)] == [1, 1]
    assert capsys.readouterr().err.count("asks for 1 × 1 CPU, 1 GPU, and there is room for 0") == 1
    wide = OnRay(address=cluster.address, cpus=2)  # two nodes of one: no room for any
    assert wide.at_once(jobs) == 1
    assert "asks for 1 × 2 CPU, and there is room for 0 × 2 CPU" in capsys.readouterr().err
    assert OnRay(address=cluster.address, cpus=0.25).at_once(jobs) == 8
    assert not capsys.readouterr().err
    own = OnRay(cpus=64)  # connected already: only where it believes to be matters
    with pytest.raises(
        UserError, match="asks for 1 × 64 CPU, and there is room for 0 × 64 CPU: give"
    ):
        own.at_once(jobs)


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why_and_is_not_tried_again(cluster, tmp_path):
    poison = tmp_path / "metasp"
    poison.mkdir()
    (poison / "__init__.py").write_text("raise ImportError('this node has no metasp')")
    there = {"PYTHONPATH": str(tmp_path)}
    cluster.add_node(num_cpus=2, object_store_memory=STORE, env_vars=there)
    jobs = jobs_of(expand(parse(TABLES, "test")), tmp_path / "runs", None, device="cpu")
    runner = OnRay(address=cluster.address, cpus=2)  # only the third node has as many
    updates = list(runner.run(jobs[:1], lambda: False))
    assert [update.state for update in updates if update.state != "running"] == ["failed"]
    updates = updates[-1:]
    assert "no metasp" in updates[0].note


def test_a_node_that_sees_another_folder_says_so(tmp_path):
    message = serve({"path": str(tmp_path / "not shared" / "a-run")})
    assert message.state == "failed"
    assert "on storage that all nodes share" in message.note
    assert not (tmp_path / "not shared").exists()

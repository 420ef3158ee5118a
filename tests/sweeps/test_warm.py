"""Runs that are forked from a warm process: the same bits, each for itself, whoever is killed."""

import json
import os
import signal
import tempfile

import pytest

from metasp.spec import RunSpec
from metasp.sweeps import local
from metasp.sweeps.jobs import jobs_of
from metasp.sweeps.local import Local
from metasp.sweeps.warm import USABLE, Warm
from tests.sweeps.test_local import SOURCE, alive, children_of, wait_for

pytestmark = pytest.mark.skipif(not USABLE, reason="forks on Linux alone")


@pytest.fixture(autouse=True)
def our_source(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


def specs(count, **more):
    common = {"limit_per_class": 30, "memory": 20, "epochs": 1, **more}
    return [RunSpec(seed=seed, **common) for seed in range(count)]


def told(folder, given):
    """The log of each run, without its times, after a sweep of one at a time."""
    jobs = jobs_of(given, folder, None)
    assert [update.state for update in Local(jobs=1).run(jobs, lambda: False)][-1] == "done"
    logs = {}
    for job in jobs:
        lines = (job.path / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        logs[job.name] = [{k: v for k, v in e.items() if k != "seconds"} for e in events]
    return logs


@pytest.mark.slow
def test_a_forked_run_has_the_bits_of_a_fresh_process(tmp_path, monkeypatch):
    given = specs(2, method="metasp-rehsel", backbone="convnet", width=8, threads=2)
    warm = told(tmp_path / "warm", given)
    monkeypatch.setattr(local, "USABLE", False)
    assert warm == told(tmp_path / "fresh", given)
    assert all(len(log) > 20 for log in warm.values())


def said_by(forked, order):
    forked.stdin.write(json.dumps(order) + "\n")
    forked.stdin.flush()
    return json.loads(forked.stdout.read().splitlines()[-1])


@pytest.mark.slow
def test_what_befalls_one_process_is_its_own_and_a_killed_server_is_replaced(tmp_path):
    warm, broken = Warm(), {"name": "a-run", "runs": ".", "data": None}
    with tempfile.TemporaryFile() as errors:
        killed, asked, crashing, left = (warm.start(errors) for _ in range(4))
        server = warm.server.process.pid
        wait_for(lambda: len(children_of(server)) == 4)
        pids = children_of(server)
        killed.kill()
        asked.send_signal(signal.SIGTERM)  # while it waits for its order, so it dies of it
        assert (killed.wait(), killed.stdout.read()) == (-signal.SIGKILL, "")
        assert asked.wait() == -signal.SIGTERM
        assert said_by(crashing, broken)["note"] == "KeyError: 'spec'"
        assert crashing.wait() == 1
        errors.seek(0)
        assert b"Traceback" in errors.read()
        os.kill(server, signal.SIGKILL)
        warm.server.process.wait()
        assert said_by(left, broken)["state"] == "failed"  # it lives on, and is heard
        assert left.wait() == 1
        after = warm.start(errors)
        assert warm.server.process.pid != server
        after.kill()
        assert after.wait() == -signal.SIGKILL
    warm.close()
    wait_for(lambda: not any(alive(pid) for pid in pids), 20)


@pytest.mark.slow
def test_without_the_server_a_process_that_is_to_end_does_so():
    warm = Warm()
    with tempfile.TemporaryFile() as errors:
        forked = warm.start(errors)
        server = warm.server.process.pid
        wait_for(lambda: children_of(server))
        (pid,) = children_of(server)
        os.kill(server, signal.SIGKILL)
        warm.server.process.wait()
        assert alive(pid)  # of itself it lives on
        forked.kill()
        wait_for(lambda: not alive(pid), 20)
        assert forked.wait() == 1  # nobody knows its code
    warm.close()

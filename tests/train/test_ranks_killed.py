"""A run on several processes, killed and stopped: real processes under torchrun."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from metasp.store import runs_in
from tests.helpers import ROOT, assert_same_run, final_weights, last_checkpoint, timeless
from tests.sweeps.test_local import children_of, wait_for

RUN = (
    "--method", "metasp", "--backbone", "convnet", "--width", "4", "--limit-per-class", "30",
    "--memory", "20", "--epochs", "6", "--threads", "1", "--checkpoint-seconds", "0.05",
)  # fmt: skip


def start(count: int, folder, *more: str) -> subprocess.Popen:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    return subprocess.Popen(
        [sys.executable, *torchrun, "-m", "metasp", "run", *RUN, "--runs", str(folder), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(count: int, folder, *more: str) -> str:
    process = start(count, folder, *more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def checkpoints(folder) -> int:
    return max((int(path.stem) for path in folder.glob("*/checkpoint/*.safetensors")), default=0)


def killed(process: subprocess.Popen, folder, rank: int) -> bytes:
    """Kill one rank, without a word, after some checkpoints, and wait for the end of all; the log
    up to the last checkpoint."""
    wait_for(lambda: checkpoints(folder) >= 4)
    (run,) = runs_in(folder)
    writer = int((run.path / "lock").read_text())
    (other,) = set(children_of(process.pid)) - {writer}
    os.kill(other if rank else writer, signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert run.result() is None, "the run was over before it was killed: give it more to do"
    return (run.path / "events.jsonl").read_bytes()[: last_checkpoint(run).numbers["log"]]


@pytest.mark.slow
def test_whichever_rank_is_killed_the_run_goes_on_from_its_last_checkpoint(tmp_path):
    out = finished(2, tmp_path / "whole", "--json")
    (whole,) = runs_in(tmp_path / "whole")
    assert json.loads(out)["run"] == str(whole.path)  # said once, by the first rank
    assert json.loads(finished(2, tmp_path / "whole", "--json")) == json.loads(out)  # found done
    assert whole.result()["environment"]["ranks"] == 2
    for rank in (0, 1):
        folder = tmp_path / f"killed-{rank}"
        stored = killed(start(2, folder), folder, rank)
        finished(2, folder)
        (run,) = runs_in(folder)
        # The times in the log say that nothing before the last checkpoint was done again.
        assert stored
        assert (run.path / "events.jsonl").read_bytes().startswith(stored)
        assert_same_run(run, whole)
        assert final_weights(run) == final_weights(whole)


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_with_the_same_numbers_and_says_so(tmp_path):
    finished(1, tmp_path / "whole")
    (whole,) = runs_in(tmp_path / "whole")
    process = start(2, tmp_path / "moved")
    wait_for(lambda: checkpoints(tmp_path / "moved") >= 4)
    for pid in children_of(process.pid):  # as torchrun passes on a Ctrl-C or an end of its time
        os.kill(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert err.count("continue with: metasp resume") == 1
    (moved,) = runs_in(tmp_path / "moved")
    assert last_checkpoint(moved).numbers["ranks"] == 2
    out = finished(1, tmp_path / "moved")
    note = "goes on with 1 process (2 before): the same numbers up to rounding"
    assert note in out
    assert [note in e["text"] for e in moved.events() if e["event"] == "Noted"] == [True]
    steps = [e for e in timeless(whole) if e["event"] == "StepTaken"]
    again = [e for e in timeless(moved) if e["event"] == "StepTaken"]
    assert [e["step"] for e in steps] == [e["step"] for e in again]
    early = len(steps) // 3
    np.testing.assert_allclose(
        [e["loss"] for e in steps[:early]], [e["loss"] for e in again[:early]], rtol=1e-3
    )


@pytest.mark.slow
def test_processes_that_were_asked_for_different_runs_say_so(tmp_path):
    code = (
        "import os, sys; from metasp.cli import main; "
        "main(['run', '--seed', os.environ['RANK'], *sys.argv[1:]])"
    )
    script = tmp_path / "start.py"
    script.write_text(code)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *torchrun, str(script), *RUN, "--runs", str(tmp_path / "runs")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True,
    )  # fmt: skip
    assert "the processes were not started for the same run" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert time.monotonic() - began < 100

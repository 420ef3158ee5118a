"""Kill it anywhere: real processes, real SIGKILLs, every method."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from metasp.methods import METHODS
from metasp.store import RunDir, runs_in
from tests.helpers import ROOT, assert_same_run, finish, outcome

KILLED = [*METHODS, "derpp+metasp", "er-ace+robust"]  # with influence added


@pytest.fixture
def in_main_memory(tmp_path):
    """A folder where waiting for the disk, after each step, is not most of a run's time."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_killed_anywhere_every_method_ends_with_the_same_bits(in_main_memory):
    """Every method is killed twice or more in each kind of phase that it has, each time after it
    had stored a checkpoint. METASP_KILL_SEED=N repeats the aims of a run that failed."""
    seed = os.environ.get("METASP_KILL_SEED") or int.from_bytes(os.urandom(4), "little")
    print(f"METASP_KILL_SEED={seed}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.killing", str(in_main_memory), str(seed), *KILLED],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=850,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
    kills = [tuple(line.split()) for line in done.stdout.splitlines()]
    hits = Counter((method, kind) for method, _, kind in kills)
    later = {method for method, task, _ in kills if int(task)}
    assert later == set(KILLED)
    for method in KILLED:
        (whole,) = runs_in(in_main_memory / method / "whole")
        kinds = {event["kind"] for event in whole.events() if event["event"] == "StepTaken"}
        assert {kind for kind in kinds if hits[method, kind] < 2} == set(), method
        for folder in sorted((in_main_memory / method).glob("killed-*")):
            (killed,) = runs_in(folder)
            assert_same_run(killed, whole)


@pytest.mark.slow
def test_interrupt_stores_a_checkpoint_and_says_how_to_go_on(tiny, tmp_path):
    """Ctrl-C in a real process in mid-run, then the command it prints."""
    whole = finish(tiny("whole", method="er", epochs=25))
    spec = tmp_path / "spec.toml"
    spec.write_text(whole.spec().to_toml())
    command = [sys.executable, "-m", "metasp", "run", "--spec", spec, "--runs", tmp_path / "cut"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "cut" / whole.path.name
    until = time.monotonic() + 60
    while not (folder / "memory" / "task-000.parquet").exists() and time.monotonic() < until:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    _, words = run.communicate(timeout=60)
    assert run.returncode == 130
    assert f"continue with: metasp resume {folder}" in words
    assert RunDir(folder).result() is None
    resumed = [sys.executable, "-m", "metasp", "resume", folder, "--json"]
    assert subprocess.run(resumed, capture_output=True, timeout=120).returncode == 0
    assert_same_run(RunDir(folder), whole)
    assert outcome(whole)["class_il"]["A_inf"] > 0.5

"""Kill it anywhere: real processes, real SIGKILLs at random moments, every method."""

import os
import signal
import subprocess
import sys
import time

import pytest

from metasp.methods import METHODS
from metasp.store import RunDir
from tests.helpers import ROOT, assert_same_run, finish, outcome


@pytest.mark.slow
def test_killed_at_random_moments_every_method_ends_with_the_same_bits(tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    done = subprocess.run(
        [sys.executable, "-m", "tests.killing", str(tmp_path), str(seed), *METHODS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kills = dict(line.split() for line in done.stdout.splitlines())
    assert set(kills) == set(METHODS)
    assert sum(map(int, kills.values())) >= len(METHODS)
    for method in METHODS:
        whole, killed = (
            RunDir(next((tmp_path / method / kind).iterdir())) for kind in ("whole", "killed")
        )
        assert_same_run(killed, whole)


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

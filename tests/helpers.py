"""What several tests ask of a run."""

import os
import subprocess
import sys
from pathlib import Path

from metasp.experiment import Experiment
from metasp.store import RunDir
from metasp.store.checkpoints import load_latest

ROOT = Path(__file__).parent.parent


def finish(experiment: Experiment) -> RunDir:
    """Run to the end."""
    for _ in experiment.events():
        pass
    return experiment.directory


def final_weights(directory: RunDir) -> dict[str, bytes]:
    """Everything in the last checkpoint, as bytes by name."""
    found, damaged = load_latest(directory.path / "checkpoint")
    assert found is not None
    assert not damaged
    return {name: value.tobytes() for name, value in found.arrays.items()}


def timeless(directory: RunDir) -> list[dict]:
    """The log without wall-clock times."""
    return [{k: v for k, v in e.items() if k != "seconds"} for e in directory.events()]


def outcome(directory: RunDir) -> dict:
    """The result without times and machine."""
    result = directory.result()
    assert result is not None
    return {key: result[key] for key in ("spec", "class_il", "task_il")}


def assert_same_run(one: RunDir, other: RunDir) -> None:
    """Same result, same final bits, same events."""
    assert outcome(one) == outcome(other)
    assert timeless(one) == timeless(other)
    assert final_weights(one) == final_weights(other)


def metasp(*arguments: object, cwd: Path | None = None, **environment: str):
    """The real command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "metasp", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=300,
    )

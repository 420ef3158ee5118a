"""What several tests ask of a run."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from metasp.experiment import Experiment
from metasp.store import RunDir
from metasp.store.checkpoints import Checkpoint
from metasp.store.files import sha256
from metasp.store.manifest import read_manifest

ROOT = Path(__file__).parent.parent


def finish(experiment: Experiment) -> RunDir:
    """Run to the end."""
    for _ in experiment.events():
        pass
    return experiment.directory


def final_weights(directory: RunDir) -> dict[str, bytes]:
    """Everything in the last checkpoint, as bytes by name."""
    return {name: value.tobytes() for name, value in last_checkpoint(directory).arrays.items()}


def last_checkpoint(directory: RunDir) -> Checkpoint:
    stored = directory.checkpoint()
    assert stored is not None
    return stored


def list_anew(run: Path) -> None:
    """Have the manifest of a run list its files as they are now."""
    manifest = read_manifest(run)
    paths = [path for path in run.rglob("*.*") if path.suffix in (".json", ".parquet")]
    for path in paths:
        if path.name != "manifest.json":
            manifest.files[path.relative_to(run).as_posix()] = [sha256(path.read_bytes())]
    manifest.write(run)


def timeless(directory: RunDir) -> list[dict]:
    """The log without wall-clock times."""
    return [{k: v for k, v in e.items() if k != "seconds"} for e in directory.events()]


def outcome(directory: RunDir) -> dict:
    """The scores of a run, and what was asked for."""
    result = directory.result()
    assert result is not None
    return {key: result[key] for key in ("spec", "class_il", "task_il")}


def files_of(directory: RunDir) -> set[str]:
    """What a run consists of, but for its checkpoints, which are counted, and its lock."""
    paths = directory.path.rglob("*")
    names = {path.relative_to(directory.path).as_posix() for path in paths if path.is_file()}
    return {name for name in names if not name.startswith("checkpoint/")} - {"lock"}


def assert_same_run(one: RunDir, other: RunDir) -> None:
    """Every stored file says the same, but for times: spec, log, tables, last state, result."""
    assert files_of(one) == files_of(other)
    ended, as_well = one.result(), other.result()
    assert ended.pop("seconds")["steps"] == as_well.pop("seconds")["steps"]
    assert ended == as_well
    assert timeless(one) == timeless(other)
    for name in files_of(one):
        if name.endswith(".parquet"):
            ours, theirs = (pq.read_table(run.path / name) for run in (one, other))
            assert ours.schema == theirs.schema, name
            assert repr(ours.to_pydict()) == repr(theirs.to_pydict()), name  # NaN is itself
        elif name not in ("events.jsonl", "result.json", "manifest.json"):
            assert (one.path / name).read_bytes() == (other.path / name).read_bytes(), name
    ours, theirs = last_checkpoint(one), last_checkpoint(other)
    assert ours.arrays.keys() == theirs.arrays.keys()
    for name, value in ours.arrays.items():
        assert value.dtype == theirs.arrays[name].dtype, name
        assert value.shape == theirs.arrays[name].shape, name
        assert value.tobytes() == theirs.arrays[name].tobytes(), name
    clocks = ("seconds", "log")  # the length of a log depends on the times in it
    numbers = ({k: v for k, v in c.numbers.items() if k not in clocks} for c in (ours, theirs))
    assert next(numbers) == next(numbers)


def metasp(*arguments: object, cwd: Path | None = None, module: str = "metasp", **environment: str):
    """The real command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=300,
    )

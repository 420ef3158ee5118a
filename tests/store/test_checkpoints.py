"""Checkpoints by themselves: what goes in comes out, and only what the manifest lists counts."""

import numpy as np
import pytest

from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store.checkpoints import Checkpoint, numbers_in

ARRAYS = {
    "model/w": np.arange(12, dtype=np.float32).reshape(3, 4).T,  # not contiguous
    "memory/ids": np.array([3, -1], np.int64),
    "engine/none": np.zeros((0, 2), np.uint8),
}
NUMBERS = {"task": 1, "step": 7, "seconds": 0.25, "begun": True, "first_loss": None}


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path / "run")


def names(run):
    return sorted(path.name for path in (run.path / "checkpoint").iterdir())


def test_what_goes_in_comes_out():
    stored = Checkpoint.parse(Checkpoint(ARRAYS, NUMBERS).pack())
    assert stored.numbers == NUMBERS
    assert stored.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert stored.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(stored.arrays[name], array)


def test_the_last_two_are_kept_and_numbers_go_on(run):
    for half in (range(5), range(5, 12)):
        with run.open(RunSpec()) as writer:
            for step in half:
                writer.checkpoint(ARRAYS, {"step": step})
                assert run.checkpoint().numbers == {"step": step, "log": 0}
    assert names(run) == ["000011.safetensors", "000012.safetensors"]


def test_only_what_the_manifest_lists_counts(run):
    with run.open(RunSpec()) as writer:
        writer.checkpoint(ARRAYS, {"step": 1})
    folder = run.path / "checkpoint"
    for name in ("1 copy", "notes", "12a", "000002"):
        (folder / f"{name}.safetensors").write_bytes(b"written, but never listed")
    assert sorted(numbers_in(folder)) == [1, 2]
    assert run.checkpoint().numbers["step"] == 1
    with run.open(RunSpec()) as writer:
        content, warnings = writer.resume()
        assert (Checkpoint.parse(content).numbers["step"], warnings) == (1, [])
        assert sorted(numbers_in(folder)) == [1]
        writer.checkpoint(ARRAYS, {"step": 2})
    assert run.checkpoint().numbers["step"] == 2
    assert names(run) == ["000001.safetensors", "000002.safetensors", "1 copy.safetensors",
                          "12a.safetensors", "notes.safetensors"]  # fmt: skip

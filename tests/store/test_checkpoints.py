"""Checkpoints by themselves: what goes in comes out, or is called damaged."""

import json

import numpy as np
import pytest

from metasp.errors import UserError
from metasp.store.checkpoints import load_checkpoint, load_latest, numbers_in, save_checkpoint

ARRAYS = {
    "model/w": np.arange(12, dtype=np.float32).reshape(3, 4).T,  # not contiguous
    "memory/ids": np.array([3, -1], np.int64),
    "engine/none": np.zeros((0, 2), np.uint8),
}
NUMBERS = {"task": 1, "step": 7, "seconds": 0.25, "begun": True}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_goes_in_comes_out(tmp_path):
    folder = tmp_path / "checkpoint"
    assert load_latest(folder) == (None, {})
    assert save_checkpoint(folder, ARRAYS, NUMBERS) == 1
    found, damaged = load_latest(folder)
    assert (found.number, found.numbers, damaged) == (1, NUMBERS, {})
    assert found.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)


def test_the_last_two_are_kept_and_numbers_go_on(tmp_path):
    for step in range(12):
        assert save_checkpoint(tmp_path, ARRAYS, {"step": step}) == step + 1
    assert names(tmp_path) == [
        "000011.json", "000011.safetensors", "000012.json", "000012.safetensors"
    ]  # fmt: skip
    assert sorted(numbers_in(tmp_path)) == [11, 12]
    assert load_latest(tmp_path)[0].numbers == {"step": 11}
    assert load_checkpoint(tmp_path, 11).numbers == {"step": 10}


def test_only_what_was_written_to_the_end_counts(tmp_path):
    save_checkpoint(tmp_path, ARRAYS, NUMBERS)
    (tmp_path / "000002.safetensors").write_bytes(b"its JSON was never written")
    for name in ("1 copy.json", "notes.json", "12a.json"):
        (tmp_path / name).write_text("{}")
    assert numbers_in(tmp_path) == [1]
    assert load_latest(tmp_path)[0].number == 1
    assert save_checkpoint(tmp_path, ARRAYS, NUMBERS) == 2
    assert load_checkpoint(tmp_path, 2).numbers == NUMBERS


def altered(entry, **changes):
    return {**entry, "body": {**entry["body"], **changes}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entry: altered(entry, numbers={**NUMBERS, "step": 8}), "its numbers were altered"),
        (lambda entry: altered(entry, format=2), "its numbers were altered"),
        (lambda entry: {**entry, "checksum": "0"}, "its numbers were altered"),
        (lambda entry: {"body": entry["body"]}, "'checksum'"),
        (lambda entry: [entry], "list indices"),
    ],
)
def test_numbers_that_were_changed_are_not_used(tmp_path, change, words):
    save_checkpoint(tmp_path, ARRAYS, NUMBERS)
    save_checkpoint(tmp_path, ARRAYS, NUMBERS)
    path = tmp_path / "000002.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    found, damaged = load_latest(tmp_path)
    assert found.number == 1
    assert damaged.keys() == {2}
    assert damaged[2].startswith(f"checkpoint 2 in {tmp_path} is damaged (")
    assert words in damaged[2]


@pytest.mark.parametrize("bad", [b"", b"garbage", None])
def test_tensors_that_were_changed_or_lost_are_not_used(tmp_path, bad):
    save_checkpoint(tmp_path, ARRAYS, NUMBERS)
    path = tmp_path / "000001.safetensors"
    path.unlink() if bad is None else path.write_bytes(bad)
    found, damaged = load_latest(tmp_path)
    assert found is None
    reason = "No such file" if bad is None else "its tensors were cut short or altered"
    assert reason in damaged[1]


def test_another_format_is_refused_and_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr("metasp.store.checkpoints.FORMAT", 7)
    save_checkpoint(tmp_path, ARRAYS, NUMBERS)
    monkeypatch.undo()
    with pytest.raises(UserError, match="has format 7 and this version of metasp reads 1"):
        load_latest(tmp_path)

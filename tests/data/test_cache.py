"""What is kept of data between runs: keyed by content, written whole, mapped and never changed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from metasp.data import load_benchmark
from metasp.data.lazy_images import cached_array
from metasp.data.source import Source
from metasp.errors import UserError
from metasp.spec import RunSpec
from tests.data.factories import noise_picture, png, table_set, write_parquet


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METASP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def source(folder: Path) -> Source:
    return load_benchmark(RunSpec(benchmark=f"folder:{folder}")).source


def arrays_in(at: Path) -> list[Path]:
    """The decoded pictures, without their checksums."""
    return [path for path in (at / "cache").glob("*.npy") if np.load(path, "r").ndim == 4]


def test_the_decoded_pixels_are_the_pictures(at: Path) -> None:
    pictures = source(table_set(at / "set"))
    for row in (0, 7, 23):
        expected = noise_picture(row).transpose(2, 0, 1)
        assert np.array_equal(pictures.train.take(torch.tensor([row])).inputs[0].numpy(), expected)
    first_test = pictures.test.take(torch.tensor([0])).inputs[0].numpy()
    assert np.array_equal(first_test, noise_picture(10_000).transpose(2, 0, 1))
    (array,) = arrays_in(at)
    assert np.load(array).shape == (32, 3, 8, 8)  # a plain .npy that any tool can read


def test_the_key_is_the_content_not_the_place(at: Path) -> None:
    folder = table_set(at / "set")
    first = source(folder)
    folder.rename(at / "moved")
    os.utime(at / "moved" / "data" / "test-00000-of-00001.parquet", (1, 1))
    assert source(at / "moved").digest == first.digest
    assert len(arrays_in(at)) == 1


def test_changed_content_is_read_anew(at: Path) -> None:
    folder = table_set(at / "set")
    first = source(folder)
    file = folder / "data" / "train-00000-of-00001.parquet"
    pictures = [png(noise_picture(500 + row)) for row in range(24)]
    write_parquet(file, pictures, [0, 1, 2, 3] * 6, [f"kind {k}" for k in range(4)])
    second = source(folder)
    assert second.digest != first.digest
    assert np.array_equal(second.inputs[0].numpy(), noise_picture(500).transpose(2, 0, 1))


@pytest.mark.parametrize("damage", ["cut", "header", "empty", "other shape"])
def test_a_damaged_array_is_made_again(at: Path, damage: str) -> None:
    def rows_of(rows: range) -> np.ndarray:
        return np.arange(12).reshape(3, 4)[rows.start : rows.stop]

    cached_array("key", (3, 4), np.int64, rows_of, "counting")
    (path,) = (at / "cache").glob("*.npy")
    content = path.read_bytes()
    if damage == "other shape":
        np.save(path, np.zeros((3, 5)))
    else:
        path.write_bytes({"cut": content[:-1], "header": content[8:], "empty": b""}[damage])
    again = cached_array("key", (3, 4), np.int64, rows_of, "counting")
    assert again.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert path.read_bytes() == content


def test_writing_to_the_tensor_never_changes_the_file(at: Path) -> None:
    folder = table_set(at / "set")
    pictures = source(folder)
    before = arrays_in(at)[0].read_bytes()
    pictures.inputs[:] = 0
    assert arrays_in(at)[0].read_bytes() == before
    assert source(folder).inputs.any()


def test_no_room_is_one_sentence(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (at / "file").write_text("")
    monkeypatch.setenv("METASP_CACHE", str(at / "file" / "inside"))
    with pytest.raises(UserError, match=r"METASP_CACHE|cannot be read"):
        source(table_set(at / "set"))


def test_a_failure_half_way_leaves_nothing(at: Path) -> None:
    def rows_of(rows: range) -> np.ndarray:
        if rows.start:
            raise UserError("stop")
        return np.ones(len(rows))

    with pytest.raises(UserError, match="stop"):
        cached_array("key", (1000,), np.int64, rows_of, "counting")
    assert [*(at / "cache").iterdir()] == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to measure")
def test_sixty_thousand_pictures_take_less_than_a_gigabyte(tmp_path: Path) -> None:
    """The peak of a process that decodes CIFAR-10 in full size, over that of its imports."""
    rng = np.random.default_rng(0)
    kinds = [png(rng.integers(0, 256, (32, 32, 3))) for _ in range(100)]
    names = [f"kind {label}" for label in range(10)]
    for split, count in (("train", 50_000), ("test", 10_000)):
        rows = range(count)
        write_parquet(
            tmp_path / "cifar10" / "data" / f"{split}-00000-of-00001.parquet",
            [kinds[row % 100] + row.to_bytes(4, "big") for row in rows],  # no two alike on disk
            [row % 10 for row in rows],
            names,
        )
    code = """
import re, sys, torch
from pathlib import Path
import metasp.experiment
from metasp.data import load_benchmark
from metasp.spec import RunSpec
status = Path("/proc/self/status")  # getrusage would count the parent's memory at the fork
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) / 2**20
start = peak()
found = load_benchmark(RunSpec(benchmark="split-cifar10"), Path(sys.argv[1]))
for task in found.tasks:
    for batch in torch.arange(len(task.train)).split(32):
        task.train.take(batch)
assert sum(len(task.train) for task in found.tasks) == 50_000
print(peak() - start)
"""
    env = {**os.environ, "METASP_CACHE": str(tmp_path / "cache")}
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    grown = []
    for _ in range(2):  # decoding, then from the copy
        done = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        grown.append(float(done.stdout))
    print(f"grown by {grown[0]:.2f} GB when decoding, {grown[1]:.2f} GB from the copy")
    assert min(grown) > 0.1, "the train rows alone are 0.14 GB: this measures nothing"
    assert max(grown) < 1.0

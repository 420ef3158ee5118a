"""The decoded copy: written whole, keyed by content, checked, rebuilt, and mapped, not copied."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from metasp.benchmarks import load_benchmark
from metasp.benchmarks.cache import whole
from metasp.benchmarks.own import folder_source
from metasp.benchmarks.request import Request
from metasp.errors import UserError
from metasp.spec import RunSpec
from tests.benchmarks.factories import noise_picture, png, table_set, write_parquet


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METASP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def source(folder: Path, **request: object):  # type: ignore[no-untyped-def]
    return folder_source(str(folder), Request(**request), None)  # type: ignore[arg-type]


def arrays_in(place: Path) -> list[Path]:
    return sorted((place / "cache").glob("*.npy"))


def test_the_decoded_pixels_are_the_pictures(place: Path) -> None:
    found = source(table_set(place / "set"))
    for row in (0, 7, 23):
        expected = noise_picture(row).transpose(2, 0, 1)
        assert np.array_equal(found.train.take(torch.tensor([row])).inputs[0].numpy(), expected)
    first_test = found.test.take(torch.tensor([0])).inputs[0].numpy()
    assert np.array_equal(first_test, noise_picture(10_000).transpose(2, 0, 1))
    (array,) = arrays_in(place)
    assert np.load(array).shape == (32, 3, 8, 8)  # a plain .npy that any tool can read


def test_the_second_start_reads_the_copy_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = table_set(place / "set")
    first = source(folder)
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it would now fail
    second = source(folder)
    assert second.digest == first.digest
    assert torch.equal(second.inputs, first.inputs)
    assert torch.equal(second.labels, first.labels)


def test_the_key_is_the_content_not_the_place(place: Path) -> None:
    folder = table_set(place / "set")
    first = source(folder)
    folder.rename(place / "moved")
    os.utime(place / "moved" / "data" / "test-00000-of-00001.parquet", (1, 1))
    assert source(place / "moved").digest == first.digest
    assert len(arrays_in(place)) == 1


def test_changed_content_is_read_anew(place: Path) -> None:
    folder = table_set(place / "set")
    first = source(folder)
    file = folder / "data" / "train-00000-of-00001.parquet"
    pictures = [png(noise_picture(500 + row)) for row in range(24)]
    write_parquet(file, pictures, [0, 1, 2, 3] * 6, [f"kind {k}" for k in range(4)])
    second = source(folder)
    assert second.digest != first.digest
    assert np.array_equal(second.inputs[0].numpy(), noise_picture(500).transpose(2, 0, 1))


@pytest.mark.parametrize("damage", ["cut", "flip", "header", "no header", "empty", "deep"])
def test_a_damaged_copy_is_rebuilt(place: Path, damage: str) -> None:
    folder = table_set(place / "set")
    first = source(folder)
    pixels, digest = first.inputs.clone(), first.digest
    (array,) = arrays_in(place)
    header = array.with_suffix(".json")
    content = array.read_bytes()
    if damage == "cut":
        array.write_bytes(content[:-1])
    elif damage == "flip":
        changed = bytearray(content)
        changed[-5] ^= 1
        array.write_bytes(changed)
    elif damage == "header":
        header.write_text(header.read_text().replace("kind 0", "kind 9"))
    elif damage == "no header":
        header.unlink()
    elif damage == "deep":
        header.write_bytes(b"[" * 10**5)
    else:
        header.write_bytes(b"")
    again = source(folder)
    assert torch.equal(again.inputs, pixels)
    assert again.digest == digest
    assert array.read_bytes() == content


def test_writing_to_the_tensor_never_changes_the_file(place: Path) -> None:
    folder = table_set(place / "set")
    found = source(folder)
    before = arrays_in(place)[0].read_bytes()
    found.inputs[:] = 0
    assert arrays_in(place)[0].read_bytes() == before
    assert source(folder).inputs.any()


def test_a_batch_is_read_from_the_map(place: Path) -> None:
    """Train and test examples are rows of one mapped array, whatever the split."""
    found = load_benchmark(RunSpec(benchmark=f"folder:{table_set(place / 'set')}", tasks=2))
    pointers = {part.source.data_ptr() for task in found.tasks for part in (task.train, task.test)}
    assert pointers == {found.source.inputs.data_ptr()}
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(arrays_in(place)[0]) in maps.read_text()


def test_no_place_for_the_copy_is_one_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "file").write_text("")
    monkeypatch.setenv("METASP_CACHE", str(place / "file" / "inside"))
    with pytest.raises(UserError, match="METASP_CACHE"):
        source(table_set(place / "set"))


@pytest.mark.slow
def test_a_killed_reader_leaves_nothing_that_counts(place: Path) -> None:
    """SIGKILL half-way through decoding: the next start reads anew."""
    folder = table_set(place / "set")
    code = """
import os, signal, sys
from pathlib import Path
from metasp.benchmarks import own
from metasp.benchmarks.request import Request
append = own.Pictures.append
def stop(self, picture):
    append(self, picture)
    self.file.flush()
    if self.count == 10:
        os.kill(os.getpid(), signal.SIGKILL)
own.Pictures.append = stop
own.folder_source(sys.argv[1], Request(), None)
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], timeout=120)
    assert done.returncode == -9
    assert arrays_in(place) == []
    assert len(source(folder).labels) == 24


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
from metasp.benchmarks import load_benchmark
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


def test_two_machines_with_the_same_process_number_do_not_mix_their_files(tmp_path, monkeypatch):
    """As containers have that share a cache: each writes its own file, and the last one stays."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    with whole(tmp_path / "data") as one:
        one.write(b"one")
        with whole(tmp_path / "data") as other:
            other.write(b"other")
        assert (tmp_path / "data").read_bytes() == b"other"
    assert (tmp_path / "data").read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]

"""Pictures that are decoded as they are needed: the same bits as those that were decoded before."""

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from metasp import encoded
from metasp.data import lazy_images
from metasp.data.loading import folder as folder_source
from metasp.encoded import EncodedRows, EncodedSlots, ahead
from metasp.errors import UserError
from metasp.experiment import Experiment, prepare
from metasp.memory import Memory
from metasp.spec import RunSpec
from metasp.store import RunDir, runs_in
from metasp.store.checkpoints import newest
from metasp.types import Batch
from tests.data.factories import noise_picture, png, write_parquet
from tests.helpers import assert_same_run, finish, last_checkpoint, timeless

CLASSES, EACH = ("ant", "bee", "cat", "dog"), 9
KEPT = "memory/inputs"
Place = tuple[int, ...]


def jpeg(seed: int, size: int = 12) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(noise_picture(seed, size)).save(sink, "JPEG", quality=40)
    return sink.getvalue()


def folder_set(at: Path) -> Path:
    """Files of several kinds and sizes of file, with a test part."""
    for split, count in (("train", EACH), ("test", 3)):
        for label, name in enumerate(CLASSES):
            (at / split / name).mkdir(parents=True)
            for row in range(count):
                seed = 1000 * label + row + 500 * (split == "test")
                content = png(noise_picture(seed, 12)) if row % 3 == 0 else jpeg(seed)
                (at / split / name / f"{row:02d}.img.png").write_bytes(content)
    return at


def tables(at: Path) -> Path:
    """Parquet files of several row groups each."""
    for split, count in (("train", EACH), ("test", 3)):
        for part in (0, 1):
            labels = [label for _ in range(count) for label in range(4)][part::2]
            pictures = [jpeg(100_000 * part + row) for row in range(len(labels))]
            path = at / "data" / f"{split}-{part}.parquet"
            days = [f"day {row % 2}" for row in range(len(labels))]
            write_parquet(path, pictures, labels, CLASSES, day=days)
            pq.write_table(pq.read_table(path), path, row_group_size=4)
    return at


KINDS = {"folder": folder_set, "parquet": tables}


def experiment(data: Path, runs: Path, **settings: Any) -> Experiment:
    chosen = {"tasks": 2, "method": "er", "memory": 10, "epochs": 2, "batch_size": 5} | settings
    small: dict[str, Any] = {"threads": 1, "backbone": "mlp", "width": 8, **chosen}
    return prepare(RunSpec(benchmark=f"folder:{data}", **small), runs)


def pictures_in(run: Experiment) -> torch.Tensor:
    """What the memory holds, decoded, slot by slot."""
    assert run.trainer is not None
    memory = run.trainer.learner.memory
    inputs = memory.read(torch.arange(memory.capacity)).inputs
    assert isinstance(inputs, torch.Tensor)
    return inputs


def assert_same_bits(one: Experiment, other: Experiment) -> None:
    """All that the runs stored, but for how the memory's pictures are."""
    assert timeless(one.directory) == timeless(other.directory)
    ours, theirs = (last_checkpoint(run.directory).arrays for run in (one, other))
    names = [{name for name in arrays if not name.startswith(KEPT)} for arrays in (ours, theirs)]
    assert names[0] == names[1]
    for name in names[0]:
        assert ours[name].tobytes() == theirs[name].tobytes(), name
    if one.trainer and one.trainer.learner.memory.inputs is not None:
        assert torch.equal(pictures_in(one), pictures_in(other))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["er", "metasp-rehsel", "derpp", "gmed", "joint"])
def test_the_same_bits_as_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, method: str
) -> None:
    data, keeps = KINDS[kind](tmp_path / "set"), {}
    if method == "derpp":
        keeps = {"selection": "herding", "label_noise": 0.2, "trusted": 1, "validation": 0.2}
    ended = {}
    for decode, workers in (("eager", "2"), ("lazy", "1"), ("lazy", "3")):
        monkeypatch.setenv(encoded.WORKERS, workers)
        run = experiment(data, tmp_path / workers, method=method, decode=decode, **keeps)
        finish(run)
        ended[decode, workers] = run
    eager, *lazy = ended.values()
    for run in lazy:
        assert run.spec.decode == "lazy"
        assert isinstance(run.benchmark.source.inputs, EncodedRows)
        assert_same_bits(eager, run)
    held = lazy[0].trainer.learner.memory.inputs  # type: ignore[union-attr]
    assert isinstance(held, EncodedSlots) == (method not in ("gmed", "joint"))


@pytest.fixture
def quick() -> Iterator[Path]:
    """A folder in main memory, where there is one: a checkpoint after each step is quick there."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_in_the_middle_of_an_epoch(quick: Path, kind: str) -> None:
    data = KINDS[kind](quick / "set")
    flags = ["--benchmark", f"folder:{data}", "--tasks", "2", "--method", "er", "--memory", "10",
             "--epochs", "12", "--batch-size", "4", "--threads", "1", "--backbone", "mlp",
             "--decode", "lazy", "--json"]  # fmt: skip
    command, always = [sys.executable, "-m", "metasp"], ["--checkpoint-seconds", "0"]
    subprocess.run([*command, "run", *flags, "--runs", str(quick / "whole")], check=True)
    runs = quick / "killed"
    process = subprocess.Popen([*command, "run", *flags, *always, "--runs", str(runs)])
    hits = [killed_at(runs, process, (0, 0, 0))]
    (path,) = [run.path for run in runs_in(runs)]
    again = [*command, "resume", str(path), "--json"]
    hits.append(killed_at(runs, subprocess.Popen([*again, *always]), hits[0]))
    subprocess.run(again, check=True)
    assert all(step for *_, step in hits)  # an epoch was under way
    assert_same_run(RunDir(path), *runs_in(quick / "whole"))


def killed_at(runs: Path, process: "subprocess.Popen[bytes]", before: Place) -> Place:
    """Kill a run in an epoch that lies behind; gives task, epoch and step of its checkpoint."""
    at, deadline = before, time.monotonic() + 120
    while at[:2] <= before[:2] or not at[2]:
        assert time.monotonic() < deadline
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
        at = stored_place(runs) or before
    process.kill()
    process.wait()
    return stored_place(runs) or before


def stored_place(runs: Path) -> Place | None:
    for folder in runs.glob("*/checkpoint"):
        found = newest(folder.parent)
        if found is not None:
            return tuple(found.numbers[name] for name in ("task", "epoch", "step"))
    return None


def test_nothing_raw_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASP_CACHE", str(tmp_path / "cache"))
    data = folder_set(tmp_path / "set")
    finish(experiment(data, tmp_path / "runs", decode="lazy"))
    arrays = [np.load(path) for path in tmp_path.rglob("*.npy")]  # checksums and constants
    assert {array.dtype for array in arrays} == {np.dtype("uint64"), np.dtype("float64")}


def test_the_size_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it decided stays with the run."""
    monkeypatch.setenv("METASP_CACHE", str(tmp_path / "cache"))
    data = folder_set(tmp_path / "set")
    size = (len(CLASSES) * (EACH + 3)) * 3 * 12 * 12
    monkeypatch.setattr(lazy_images, "LARGE", size - 1)
    large = experiment(data, tmp_path / "runs")
    assert large.spec.decode == "lazy"
    monkeypatch.setattr(lazy_images, "LARGE", size)
    small = experiment(data, tmp_path / "runs")
    assert small.spec.decode == "auto"
    monkeypatch.setattr(lazy_images, "LARGE", 1)
    for first in (large, small):
        assert prepare(first.spec, tmp_path / "runs").spec == first.spec


def test_other_data_has_nothing_to_decode() -> None:
    with pytest.raises(UserError, match="--decode does not apply to the digits"):
        prepare(RunSpec(decode="lazy"), Path("runs"))


class TestMemory:
    def test_it_holds_the_files(self, tmp_path: Path) -> None:
        data = folder_set(tmp_path / "set")
        run = experiment(data, tmp_path / "runs", decode="lazy")
        finish(run)
        memory = run.trainer.learner.memory  # type: ignore[union-attr]
        files = sorted((data / "train").rglob("*.png"))
        held = memory.inputs
        assert isinstance(held, EncodedSlots)
        for slot, example in enumerate(memory.ids.tolist()):
            content = files[example].read_bytes()
            # Random noise is larger as PNG than it is raw: it is then no worse than that.
            assert held.contents[slot] == content or len(held.contents[slot]) < len(content)

    def test_a_large_file_is_made_smaller(self, tmp_path: Path) -> None:
        """Pictures that are resized are not kept in their own size."""
        for name in ("ant", "bee"):
            (tmp_path / "set" / name).mkdir(parents=True)
            for row in range(4):
                flat = np.full((200, 200, 3), 20 * row, np.uint8)
                flat[::2] = noise_picture(row, 200)[::2]
                (tmp_path / "set" / name / f"{row}.png").write_bytes(png(flat))
        source = folder_source(str(tmp_path / "set"), RunSpec(image_size=8, decode="lazy"), None)
        assert isinstance(source.inputs, EncodedRows)
        slots = EncodedSlots(4, source.inputs)
        batch = source.train.take(torch.tensor([0, 2]))
        assert isinstance(batch.inputs, torch.Tensor)
        slots.put(torch.tensor([3, 1]), batch.ids, batch.inputs)
        assert all(len(content) < 400 for content in slots.contents)
        assert torch.equal(slots[torch.tensor([1, 3])], batch.inputs[[1, 0]])

    def test_forgotten_without_a_trace(self, tmp_path: Path) -> None:
        data = folder_set(tmp_path / "set")
        run = experiment(data, tmp_path / "runs", decode="lazy")
        directory = finish(run)
        before = last_checkpoint(directory).arrays
        gone = int(before["memory/ids"][3])
        start, end = before["memory/inputs['places']"][3]
        trace = before["memory/inputs['encoded']"][start:end].tobytes()
        assert len(trace) > 100
        assert sum(trace in path.read_bytes() for path in directory.path.rglob("*.safetensors"))
        directory.forget([gone])
        files = [path for path in directory.path.rglob("*") if path.is_file()]
        assert not any(trace in path.read_bytes() for path in files)
        listed = directory.memory()
        assert gone not in listed["id"]
        assert len(listed["id"]) == 9
        assert set(listed) == {"slot", "id", "label", "task", "entered", "influence", "pinned"}
        left = Memory(10, pictures=run.benchmark.source.inputs)
        stored = last_checkpoint(directory).arrays
        names = [name for name in stored if name.startswith("memory/")]
        left.load_state_dict({n[7:]: torch.from_numpy(stored[n]) for n in names})
        assert gone not in left.ids.tolist()
        assert torch.equal(left.read(left.occupied).inputs, pictures_in(run)[left.occupied])

    def test_written_again_and_cleared(self, tmp_path: Path) -> None:
        source = folder_source(str(folder_set(tmp_path / "set")), RunSpec(decode="lazy"), None)
        assert isinstance(source.inputs, EncodedRows)
        memory, slots = Memory(3, pictures=source.inputs), torch.tensor([0, 1, 2])
        for rows in ([0, 1, 2], [5, 4, 3]):
            batch = source.train.take(torch.tensor(rows))
            memory.write(slots, batch, 0)
            assert torch.equal(memory.read(slots).inputs, batch.inputs)
        memory.clear(torch.tensor([1]))
        other = Memory(3, pictures=source.inputs)
        other.load_state_dict(memory.state_dict())
        assert isinstance(batch, Batch)
        for held in (memory, other):
            assert torch.equal(held.read(slots[::2]).inputs, batch.inputs[::2])
            assert not held.read(slots[1:2]).inputs.any()  # type: ignore[union-attr]


class TestCorrupt:
    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        return folder_set(tmp_path / "set")

    def test_changed_in_the_middle_of_a_run_it_is_named(self, data: Path, tmp_path: Path) -> None:
        run = experiment(data, tmp_path / "runs", decode="lazy", class_order="0,1,2,3")
        path = data / "train" / "dog" / "05.img.png"  # of the second task
        path.write_bytes(path.read_bytes()[:60])
        with pytest.raises(UserError, match=r"05\.img\.png has changed since this run began"):
            finish(run)
        assert {e["task"] for e in run.directory.events()} == {0, 1}

    def test_a_row_is_named(self, tmp_path: Path) -> None:
        data = tables(tmp_path / "set")
        pictures = [jpeg(row) for row in range(18)]
        pictures[7] = pictures[7][:50]
        write_parquet(data / "data" / "train-1.parquet", pictures, [1, 3] * 9, CLASSES)
        with pytest.raises(UserError, match="in row 25 of the train split cannot be decoded"):
            experiment(data, tmp_path / "runs", decode="lazy")

    def test_it_is_left_out_and_counted(self, data: Path, tmp_path: Path) -> None:
        bad = [data / "train" / "ant" / "00.img.png", data / "train" / "cat" / "04.img.png",
               data / "test" / "dog" / "01.img.png"]  # fmt: skip
        for path in bad:
            path.write_bytes(path.read_bytes()[:60])
        ended = []
        for decode in ("eager", "lazy"):
            with pytest.raises(UserError, match=r"00\.img\.png cannot be decoded"):
                experiment(data, tmp_path / decode, decode=decode)
            run = experiment(data, tmp_path / decode, decode=decode, skip_corrupt=True)
            result = finish(run).result()
            assert result is not None
            assert result["corrupt"] == 3
            said = [e["text"] for e in run.directory.events() if e["event"] == "Noted"]
            assert sum(path.name in " ".join(said) for path in bad) == 3
            started = [e for e in run.directory.events() if e["event"] == "TaskStarted"]
            assert [e["examples"] for e in started] == [2 * EACH - 1, 2 * EACH - 1]
            ended.append(run)
        assert_same_bits(*ended)

    def test_a_resumed_run_remembers(self, data: Path, tmp_path: Path) -> None:
        path = data / "train" / "ant" / "03.img.png"
        path.write_bytes(b"")
        whole = experiment(data, tmp_path / "whole", decode="lazy", skip_corrupt=True)
        finish(whole)
        spec = whole.spec
        first = prepare(spec, tmp_path / "parts", checkpoint_seconds=0.0)
        taken = 0
        for event in first.events():
            taken += type(event).__name__ == "StepTaken"
            if taken == 3:
                break
        second = prepare(spec, tmp_path / "parts")
        finish(second)
        assert second.trainer is not None
        assert second.trainer.skipping.rows.tolist() == [3]
        assert_same_bits(whole, second)


class TestAhead:
    def test_in_order_and_only_a_little(self) -> None:
        made: list[int] = []

        def make(item: int) -> int:
            made.append(item)
            return 10 * item

        found = ahead(make, range(100))
        assert [next(found) for _ in range(5)] == [0, 10, 20, 30, 40]
        found.close()  # type: ignore[attr-defined]
        assert 5 <= len(made) <= 5 + encoded.AHEAD
        assert made == sorted(made)

    def test_a_failure_comes_in_its_turn(self) -> None:
        found = ahead(lambda item: 1 // (item - 3), range(9))
        assert [next(found) for _ in range(3)] == [-1, -1, -1]
        with pytest.raises(ZeroDivisionError):
            next(found)

    def test_the_cache_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(encoded, "DECODED_BYTES", 3 * 4)
        recent, out = encoded.RecentPictures((100, 2, 2)), np.zeros((2, 2), np.uint8)
        for row in (1, 2, 3):
            recent.put(row, np.full((2, 2), row, np.uint8))
        assert recent.copy(1, out)  # used: 2 is now the oldest
        assert (out == 1).all()
        recent.put(4, np.full((2, 2), 4, np.uint8))
        assert [recent.copy(row, out) for row in (1, 2, 3, 4)] == [True, False, True, True]
        assert (out == 4).all()
        assert recent._block.nbytes == 12


def test_workers_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(encoded.WORKERS, "many")
    with pytest.raises(UserError, match="METASP_DECODE_WORKERS is 'many'"):
        encoded.workers()

"""The user's own data: folders, arrays, tables and torch Datasets."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import metasp
from metasp.cli import main
from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.experiment import prepare
from metasp.spec import RunSpec
from metasp.train import build_trainer
from tests.data.factories import class_folder_set, noise_picture, png, write_parquet

ROWS = np.random.default_rng(7).normal(3, 2, (60, 5))
SIX = np.arange(60) % 6


def npz(at: Path, **arrays: Any) -> str:
    np.savez(at / "a.npz", **arrays)
    return f"arrays:{at / 'a.npz'}"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--epochs", "1", "--threads", "1", *arguments])
    return int(ended.value.code or 0)


def test_one_folder_per_class(tmp_path: Path) -> None:
    folder = class_folder_set(tmp_path / "pets", ["dog", "cat", "cow", "ant"], each=10)
    (folder / "notes.txt").write_text("not a picture")
    (folder / ".hidden").mkdir()
    found = load_benchmark(RunSpec(benchmark=f"folder:{folder}", tasks=2))
    assert found.source.class_names == ("ant", "cat", "cow", "dog")
    assert found.source.shape == (3, 8, 8)
    assert [len(task.train) for task in found.tasks] == [16, 16]
    assert [len(task.test) for task in found.tasks] == [4, 4]
    files = [
        path for name in ("ant", "cat", "cow", "dog") for path in sorted((folder / name).iterdir())
    ]
    batch = found.tasks[1].train.take(torch.arange(16))
    for picture, number in zip(batch.inputs, batch.ids):
        label = ["dog", "cat", "cow", "ant"].index(files[number].parent.name)
        seed = 100 * label + int(files[number].stem)
        assert np.array_equal(picture.permute(1, 2, 0).numpy(), noise_picture(seed))


@pytest.mark.parametrize("name", ["test", "validation", "valid", "Val", "dev"])
def test_the_second_split_goes_by_the_names_that_tables_have(tmp_path: Path, name: str) -> None:
    class_folder_set(tmp_path / "set" / "Train", ["a", "b"], each=4)
    class_folder_set(tmp_path / "set" / name, ["a", "b"], each=2)
    source = load_benchmark(RunSpec(benchmark=f"folder:{tmp_path / 'set'}")).source
    assert source.class_names == ("a", "b")
    assert (len(source.labels), len(source.test_labels)) == (8, 4)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    folder = class_folder_set(tmp_path / "set", ["car", "ship", "train"], each=5)
    source = load_benchmark(RunSpec(benchmark=f"folder:{folder}", tasks=3)).source
    assert source.class_names == ("car", "ship", "train")


def test_an_empty_test_file_says_nothing_of_the_columns(tmp_path: Path) -> None:
    """As some tools write them: without rows no type is known."""
    pictures = [png(noise_picture(row)) for row in range(20)]
    write_parquet(tmp_path / "set" / "train.parquet", pictures, [0, 1] * 10)
    empty = pa.table({"image": pa.nulls(0), "label": pa.nulls(0)})
    pq.write_table(empty, tmp_path / "set" / "test.parquet")
    source = load_benchmark(RunSpec(benchmark=f"folder:{tmp_path / 'set'}")).source
    assert (len(source.labels), len(source.test_labels)) == (16, 4)  # a fifth is held out


def test_pictures_of_all_sizes_by_request(tmp_path: Path) -> None:
    folder = class_folder_set(tmp_path / "set", ["a", "b"])
    (folder / "a" / "big.png").write_bytes(png(noise_picture(5, size=30, colour=False)))
    found = load_benchmark(RunSpec(benchmark=f"folder:{folder}", image_size=12, colour="grey"))
    assert found.source.shape == (1, 12, 12)
    colours = load_benchmark(RunSpec(benchmark=f"folder:{folder}", image_size=12))
    assert colours.source.shape == (3, 12, 12)


def test_colour_after_grey_is_refused_and_by_request_allowed(tmp_path: Path) -> None:
    folder = class_folder_set(tmp_path / "set", ["b", "c"])
    (folder / "a").mkdir()
    for row in range(3):
        (folder / "a" / f"{row}.png").write_bytes(png(noise_picture(row, colour=False)))
    with pytest.raises(UserError, match="--colour grey or rgb"):
        load_benchmark(RunSpec(benchmark=f"folder:{folder}"))
    found = load_benchmark(RunSpec(benchmark=f"folder:{folder}", colour="rgb"))
    assert found.source.shape == (3, 8, 8)


def test_constants_come_from_train_rows_alone(tmp_path: Path) -> None:
    """Moving the test data far away moves no constant."""
    test = np.random.default_rng(8).normal(0, 1, (12, 5))
    near = npz(tmp_path, inputs=ROWS, labels=SIX, test_inputs=test, test_labels=np.arange(12) % 6)
    first = load_benchmark(RunSpec(benchmark=near)).source
    far = npz(tmp_path, x_train=ROWS, y_train=SIX, x_test=test + 1e6, y_test=np.arange(12) % 6)
    second = load_benchmark(RunSpec(benchmark=far)).source
    assert first.mean == second.mean
    assert np.allclose(first.mean, ROWS.mean(0), rtol=1e-3)
    assert np.allclose(first.std, ROWS.std(0), rtol=1e-3)
    assert first.digest != second.digest


@pytest.mark.parametrize(("offset", "scale"), [(1_004_321.0, 1.0), (0.0, 1e-7), (-3e5, 20.0)])
def test_a_table_reaches_the_network_with_mean_0_and_deviation_1(offset, scale, tmp_path):
    """Wherever it lies; a column that never changes becomes 0."""
    rows = np.concatenate([offset + scale * ROWS, np.full((len(ROWS), 1), 7e6)], 1)
    test = rows[:12]
    where = npz(tmp_path, inputs=rows, labels=SIX, test_inputs=test, test_labels=np.arange(12) % 6)
    experiment = prepare(RunSpec(benchmark=where, tasks=1, backbone="mlp", method="er"), tmp_path)
    trainer = build_trainer(experiment.spec, experiment.benchmark)
    train = trainer.tasks[0].train
    seen = trainer.learner.unaugmented(train.take(torch.arange(len(train)))).inputs.numpy()
    np.testing.assert_allclose(seen.mean(0), 0.0, atol=0.05)  # float32 has no more of it
    np.testing.assert_allclose(seen.std(0)[:-1], 1.0, atol=0.05)
    assert (seen[:, -1] == 0).all()


def test_held_out_rows_never_reach_training_memory_or_constants(tmp_path: Path) -> None:
    """Every row carries its own number, so that its way can be followed to the end of a run."""
    inputs = np.tile(np.arange(60.0)[:, None], (1, 3))
    spec = RunSpec(benchmark=npz(tmp_path, inputs=inputs, labels=SIX), tasks=3, backbone="mlp",
                   epochs=1, memory=30, threads=1, device="cpu")  # fmt: skip
    experiment = prepare(spec, tmp_path / "runs")
    source = experiment.benchmark.source
    test = set(source.test.rows.tolist())
    assert len(test) == 12  # a fifth of each class
    kept = np.array([row for row in range(60) if row not in test])
    assert source.mean[0] == pytest.approx(kept.mean(), rel=1e-3)
    for _ in experiment.events():
        assert experiment.trainer is not None
        memory = experiment.trainer.learner.memory
        if memory.inputs is not None:
            held = memory.inputs[memory.occupied][:, 0].long().tolist()
            assert test.isdisjoint(held)
            assert held == memory.ids[memory.occupied].tolist()
    for task in experiment.benchmark.tasks:
        batch = task.train.take(torch.arange(len(task.train)))
        assert torch.equal(batch.inputs[:, 0].long(), batch.ids)
        assert test.isdisjoint(batch.ids.tolist())


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((60, 9, 8), (1, 9, 8)), ((60, 9, 8, 3), (3, 9, 8)), ((60, 3, 9, 8), (3, 9, 8)),
     ((60, 9, 8, 1), (1, 9, 8))],
)  # fmt: skip
def test_layouts_of_pictures(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    pictures = np.random.default_rng(9).integers(0, 256, shape, dtype=np.uint8)
    found = load_benchmark(RunSpec(benchmark=npz(tmp_path, inputs=pictures, labels=SIX)))
    assert found.source.shape == expected
    assert found.source.inputs.dtype == torch.uint8
    number = int(found.source.train.ids[7])
    moved = pictures[number].reshape(9, 8, -1).transpose(2, 0, 1)
    expected_picture = pictures[number] if shape[1] == 3 else moved
    shown = found.source.train.take(torch.tensor([7])).inputs[0].numpy()
    assert np.array_equal(shown, expected_picture)


def test_labels_that_are_words_or_have_gaps(tmp_path: Path) -> None:
    words = np.array(["pear", "apple", "fig"])[np.arange(60) % 3]
    found = load_benchmark(RunSpec(benchmark=npz(tmp_path, inputs=ROWS, labels=words)))
    assert found.source.class_names == ("apple", "fig", "pear")
    gaps = load_benchmark(RunSpec(benchmark=npz(tmp_path, inputs=ROWS, labels=SIX * 10)))
    assert gaps.source.class_names == ("0", "10", "20", "30", "40", "50")
    assert int(gaps.source.labels.max()) == 5


def test_a_table_of_numbers_runs_with_the_mlp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = npz(tmp_path, inputs=ROWS, labels=SIX)
    runs = str(tmp_path / "runs")
    assert run("--benchmark", place, "--runs", runs, "--backbone", "convnet") == 2
    assert "use mlp" in capsys.readouterr().err
    assert not Path(runs).exists()
    assert run("--benchmark", place, "--runs", runs, "--tasks", "2") == 0
    (spec,) = Path(runs).glob("*/spec.toml")
    assert 'backbone = "mlp"' in spec.read_text()
    assert len(list(Path(runs).glob("arrays-*/result.json"))) == 1


def test_string_labels_and_other_columns_of_a_table(tmp_path: Path) -> None:
    pictures = [png(noise_picture(row)) for row in range(20)]
    sort = ["oak", "elm"] * 10
    write_parquet(tmp_path / "set" / "all.parquet", pictures, list(range(20)), sort=sort)
    found = load_benchmark(RunSpec(benchmark=f"folder:{tmp_path / 'set'}", label_column="sort"))
    assert found.source.class_names == ("elm", "oak")
    with pytest.raises(UserError, match="did you mean 'sort'"):
        load_benchmark(RunSpec(benchmark=f"folder:{tmp_path / 'set'}", label_column="sorts"))


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return noise_picture(index), int(SIX[index])


def test_any_torch_dataset(tmp_path: Path) -> None:
    stream = metasp.split(Pairs(), tasks=3, name="noise")
    assert [task.classes for task in stream.tasks] == [(0, 1), (2, 3), (4, 5)]
    assert stream.source.shape == (3, 8, 8)
    batch = stream.tasks[0].train.take(torch.arange(5))
    for picture, number in zip(batch.inputs, batch.ids):
        assert np.array_equal(picture.permute(1, 2, 0).numpy(), noise_picture(int(number)))
    spec = RunSpec(epochs=1, threads=1, device="cpu", label_noise=0.5, seed=3)
    experiment = prepare(spec, tmp_path, benchmark=stream)
    assert experiment.spec.benchmark == "python:noise"
    assert experiment.spec.tasks == 3
    assert len(experiment.benchmark.flipped["id"]) == 24
    for _ in experiment.events():
        pass
    assert prepare(spec, tmp_path, benchmark=stream).finished
    with pytest.raises(UserError, match="came from a Python program"):
        prepare(experiment.directory.spec(), tmp_path)


def test_tensors_domains_and_mistakes_of_a_dataset() -> None:
    rows = TensorDataset(torch.from_numpy(ROWS).float(), torch.from_numpy(SIX))
    # Every class appears in each of the two halves.
    stream = metasp.split(rows, domains=["early"] * 30 + ["late"] * 30, label_noise=0.1)
    assert [task.classes for task in stream.tasks] == [tuple(range(6))] * 2
    assert int(stream.tasks[0].train.ids.max()) < 30 <= int(stream.tasks[1].train.ids.min())
    with pytest.raises(UserError, match="did you mean 'image_size'"):
        metasp.split(rows, imagesize=3)
    with pytest.raises(UserError, match="not a pair"):
        metasp.split(TensorDataset(torch.zeros(4, 2)))


@pytest.mark.parametrize("late", [{"image_size": 8}, {"colour": "rgb"}, {"label_column": "kind"}])
def test_what_comes_too_late_for_a_split_stream_is_refused(tmp_path: Path, late: Any) -> None:
    pictures = TensorDataset(torch.rand(40, 1, 6, 6), torch.arange(40) % 4)
    plain = metasp.split(pictures, tasks=2)
    with pytest.raises(UserError, match=f"^{next(iter(late))} cannot change"):
        prepare(RunSpec(memory=8, **late), tmp_path, benchmark=plain)
    if "label_column" not in late:  # given in time, it may be said again
        stream = metasp.split(pictures, tasks=2, **late)
        shape = stream.source.inputs.shape[1:]
        assert shape == ((1, 8, 8) if "image_size" in late else (3, 6, 6))
        again = prepare(RunSpec(memory=8, **late), tmp_path, benchmark=stream)
        assert again.benchmark.source.inputs.shape[1:] == shape

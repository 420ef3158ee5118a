"""Data with two labels: the one to learn, and the true one for scoring and tests alone."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from metasp.data import Benchmark, load_benchmark
from metasp.errors import UserError
from metasp.experiment import prepare
from metasp.methods import METHODS
from metasp.spec import RunSpec
from tests.data.factories import noise_picture, png, write_parquet
from tests.helpers import finish
from tests.same_bits import stored_in

NAMES = ["ant", "bee", "cow", "dog"]
TRUE = [row % 4 for row in range(40)]
GIVEN = [(label + 1) % 4 if row % 5 == 0 else label for row, label in enumerate(TRUE)]
WRONG = {row: (GIVEN[row], TRUE[row]) for row in range(0, 40, 5)}
TEST = [row % 4 for row in range(8)]


def check(found: Benchmark, names: Sequence[str] = NAMES) -> None:
    """Training sees the given labels, the score knows the wrong ones, tests have the true ones."""
    assert found.source.class_names == tuple(names)
    seen = {}
    for task in found.tasks:
        assert set(task.train.labels.tolist()) == set(task.classes)
        seen |= dict(zip(task.train.ids.tolist(), task.train.labels.tolist()))
    assert seen == dict(enumerate(GIVEN))
    table = found.flipped
    listed = {i: (y, t) for i, y, t in zip(table["id"], table["label"], table["true_label"])}
    assert listed == WRONG
    assert sum(len(task.test) for task in found.tasks) == len(TEST)
    for task in found.tasks:  # pictures of the test data come after the 40 others
        assert task.test.labels.tolist() == [TEST[row % 8] for row in task.test.rows.tolist()]


def arrays(at: Path, **more: Any) -> str:
    rows = np.random.default_rng(3).normal(size=(48, 5))
    np.savez(
        at / "two.npz", inputs=rows[:40], test_inputs=rows[40:], class_names=NAMES, **more
    )  # fmt: skip
    return f"arrays:{at / 'two.npz'}"


def spec(benchmark: str, **settings: Any) -> RunSpec:
    """The columns are asked for unless told otherwise."""
    columns = {"label_column": "human_label", "true_label_column": "label"}
    return RunSpec(benchmark=benchmark, tasks=2, **{**columns, **settings})


@pytest.mark.parametrize("test_has", ["both", "the true one"])
@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_parquet(tmp_path: Path, test_has: str, kind: str) -> None:
    def said(labels: Sequence[int]) -> list[Any]:
        return [NAMES[label] for label in labels] if kind == "words" else list(labels)

    more = {"human_label": said([3 - label for label in TEST])} if test_has == "both" else {}
    names = NAMES if kind == "numbers" else None
    for split, true, columns in (
        ("train", TRUE, {"human_label": said(GIVEN)}),
        ("test", TEST, more),
    ):
        pictures = [png(noise_picture(row)) for row in range(len(true))]
        file = tmp_path / "set" / f"{split}.parquet"
        write_parquet(file, pictures, said(true), names, **columns)
    check(load_benchmark(spec(f"folder:{tmp_path / 'set'}")))
    check(load_benchmark(spec(f"folder:{tmp_path / 'set'}")))  # the decoded copy knows them too
    for wrong, words in (
        ({"true_label_column": "labels"}, "did you mean 'label'"),
        ({"label_column": "label"}, "is both the label and the true label"),
    ):
        with pytest.raises(UserError, match=words):
            load_benchmark(spec(f"folder:{tmp_path / 'set'}", **wrong))


def test_train_data_never_falls_back_to_the_truth(tmp_path: Path) -> None:
    pictures = [png(noise_picture(row)) for row in range(40)]
    file = tmp_path / "set" / "train.parquet"
    write_parquet(file, pictures, TRUE, NAMES, human_label=GIVEN)
    table = pq.read_table(file)
    empty = pa.array([None] * 40, pa.int64())
    pq.write_table(
        table.set_column(table.column_names.index("human_label"), "human_label", empty), file
    )
    with pytest.raises(UserError, match="row 0 has no label"):
        load_benchmark(spec(f"folder:{tmp_path / 'set'}"))


@pytest.mark.parametrize("true", ["labels", "label", "y_train"])
def test_arrays(tmp_path: Path, true: str) -> None:
    of_test = {"labels": "test_labels", "label": "test_label", "y_train": "y_test"}[true]
    place = arrays(tmp_path, **{true: TRUE, of_test: TEST}, human=GIVEN)
    if true == "label":
        with pytest.raises(UserError, match="needs `inputs` and `labels`"):
            load_benchmark(RunSpec(benchmark=place))
    check(load_benchmark(spec(place, label_column="human", true_label_column=true)))
    with pytest.raises(UserError, match="did you mean 'human'"):
        load_benchmark(spec(place, label_column="humans", true_label_column=true))
    with pytest.raises(UserError, match="both the label and the true label"):
        load_benchmark(spec(place, label_column=true, true_label_column=true))


def test_held_out_rows_are_tested_by_their_true_label(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(size=(40, 5))
    np.savez(tmp_path / "one.npz", inputs=rows, labels=TRUE, human=GIVEN)
    found = load_benchmark(
        spec(f"arrays:{tmp_path / 'one.npz'}", label_column="human", true_label_column="labels")
    )
    for task in found.tasks:
        assert task.test.labels.tolist() == [TRUE[row] for row in task.test.rows.tolist()]
        assert task.train.labels.tolist() == [GIVEN[row] for row in task.train.ids.tolist()]
    kept = {int(i) for task in found.tasks for i in task.train.ids}
    assert set(found.flipped["id"]) == kept & set(WRONG)


def listed_folder(folder: Path, rows: Sequence[Sequence[str]]) -> str:
    """Pictures that a metadata.csv names: file_name, human_label, label."""
    for number, (file, *_) in enumerate(rows):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(noise_picture(number)))
    with open(folder / "metadata.csv", "w", newline="") as file:
        csv.writer(file).writerows([("file_name", "human_label", "label"), *rows])
    return f"folder:{folder}"


def test_a_table_beside_a_folder_of_pictures(tmp_path: Path) -> None:
    train = [(f"train/{row:02}.png", NAMES[GIVEN[row]], NAMES[TRUE[row]]) for row in range(40)]
    test = [(f"test/{row}.png", "", NAMES[TEST[row]]) for row in range(8)]
    place = listed_folder(tmp_path / "flat", [*test, *train])
    found = load_benchmark(spec(place))
    check(found)
    first = found.tasks[0].train.take(torch.tensor([0]))
    picture = noise_picture(8 + int(first.ids))  # after the eight of the test data
    assert np.array_equal(first.inputs[0].permute(1, 2, 0).numpy(), picture)
    # In folders of classes, the folder is the label.
    in_folders = [(f"{NAMES[GIVEN[row]]}/{row:02}.png", "", NAMES[TRUE[row]]) for row in range(40)]
    found = load_benchmark(spec(listed_folder(tmp_path / "deep", in_folders), label_column=None))
    for i, y in zip(*(found.source.train.ids.tolist(), found.source.labels.tolist())):
        assert y == GIVEN[i]
    assert found.source.true_labels.tolist() == [TRUE[i] for i in found.source.train.ids.tolist()]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("a.png", "", "ant")], "has no label: give it one"),
        ([("a.png", "ant", "")], "has no label: give it one"),
        ([("a.png", "ant", "ant"), ("a.png", "bee", "bee")], "names a picture twice"),
    ],
)
def test_bad_tables_of_a_folder(tmp_path: Path, rows: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_benchmark(spec(listed_folder(tmp_path / "set" / "inner", rows)))


def test_a_folder_without_its_table(tmp_path: Path) -> None:
    place = listed_folder(tmp_path / "set", [("a.png", "ant", "bee")])
    (tmp_path / "set" / "metadata.csv").unlink()
    with pytest.raises(UserError, match=r"has no metadata.csv for --label-column"):
        load_benchmark(spec(place))


def labels_file(at: Path, rows: Sequence[tuple[Any, Any]], ids: str = "id") -> Path:
    at.write_text("\n".join([f"{ids},label", *(f"{i},{y}" for i, y in rows)]) + "\n")
    return at


@pytest.mark.parametrize("form", ["numbers.csv", "names.csv", "parquet", "only the wrong ones"])
def test_labels_from_a_file(tmp_path: Path, form: str) -> None:
    place = arrays(tmp_path, labels=TRUE, test_labels=TEST)
    settings: dict[str, Any] = {"label_column": None, "true_label_column": None}
    path = tmp_path / "other.csv"
    if form == "parquet":
        path = tmp_path / "other.parquet"
        table = {"row": list(range(40)), "label": TRUE, "human_label": GIVEN}
        pq.write_table(pa.table(table), path)
        settings["label_column"] = "human_label"
    elif form == "only the wrong ones":
        labels_file(path, [(row, wrong) for row, (wrong, _) in WRONG.items()])
    else:
        names = form == "names.csv"
        labels_file(path, [(row, NAMES[y] if names else y) for row, y in enumerate(GIVEN)], "row")
    check(load_benchmark(spec(place, labels=str(path), **settings)))
    here = spec(place, labels=path.name, **settings)
    found = load_benchmark(here, tmp_path)  # sought in the folder of data too
    check(found)
    assert found.source.digest != load_benchmark(RunSpec(benchmark=place)).source.digest


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(99, 1)], "id 99 of .* is not one of the 40 train examples"),
        ([(1, 1), (1, 2)], "id 1 is in .* with two labels"),
        ([(1, 4)], "has label '4', which is not a class"),
        ([(1, "cat")], "has label 'cat', which is not a class"),
        ([("x", 1)], "has the id 'x': ids are whole numbers"),
        ([(row, 0) for row in range(40)], "class 'bee' of two has no train example"),
        ([(1, "1,2")], "more values in a row than names"),
    ],
)
def test_bad_files_of_labels(tmp_path: Path, rows: Any, words: str) -> None:
    place = arrays(tmp_path, labels=TRUE, test_labels=TEST)
    path = labels_file(tmp_path / "other.csv", rows)
    with pytest.raises(UserError, match=words):
        load_benchmark(RunSpec(benchmark=place, labels=str(path)))


def test_noise_on_top_of_wrong_labels_is_scored_by_the_truth(tmp_path: Path) -> None:
    place = arrays(tmp_path, labels=TRUE, test_labels=TEST, human=GIVEN)
    found = load_benchmark(
        spec(place, label_column="human", true_label_column="labels", label_noise=0.5)
    )
    wrong = {
        int(i)
        for task in found.tasks
        for i, y in zip(task.train.ids, task.train.labels)
        if int(y) != TRUE[int(i)]
    }
    assert set(found.flipped["id"]) == wrong
    assert found.flipped["true_label"] == [TRUE[i] for i in found.flipped["id"]]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "verified-only"])
def test_true_labels_reach_nothing_but_the_score(tmp_path: Path, method: str) -> None:
    """Shuffled true labels of the train data: the same bits of everything that is learned."""
    short = {"gdumb": {"memory_epochs": 2}, "hal": {"anchor_steps": 2}}
    shuffled = np.random.default_rng(5).permutation(TRUE)
    stored = []
    for number, true in enumerate((TRUE, shuffled)):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = arrays(folder, labels=true, test_labels=TEST, human=GIVEN)
        wanted = spec(
            place, label_column="human", true_label_column="labels", method=method, epochs=2,
            memory=8, backbone="mlp", width=8, batch_size=8, memory_batch=8, threads=1,
            device="cpu", settings=short.get(method, {}),
        )  # fmt: skip
        stored.append(stored_in(finish(prepare(wanted, folder)).path))
    assert {name for name in stored[0] if stored[0][name] != stored[1][name]} == {
        "noise.parquet task", "noise.parquet id", "noise.parquet label", "noise.parquet true_label",
    }  # fmt: skip
    assert set(stored[0]) == set(stored[1])
    assert any(name.startswith("model") for name in stored[0])

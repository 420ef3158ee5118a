"""Parquet tables of numbers, and Datasets of several inputs, as streams of tasks."""

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import metasp
from metasp.cli.explore import examples_of
from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.reports.explorer import Texts
from metasp.spec import RunSpec
from metasp.store import open_run
from tests.data.test_several_inputs import SETTINGS, Halves, write

DIGITS = load_digits()
UPPER = (DIGITS.data[:, :32] / 16).astype(np.float32)
LOWER = DIGITS.data[:, 32:].astype(np.int64)


def columns() -> dict[str, list]:
    return {
        "upper": UPPER.tolist(),
        "lower": LOWER.tolist(),
        "label": [str(label) for label in DIGITS.target],
        "text": [f"row {row}" for row in range(1797)],
    }


def stored(place: Path, **splits: pa.Table) -> str:
    folder = place / "set"
    folder.mkdir(parents=True)
    for split, table in splits.items():
        pq.write_table(table, folder / f"{split}-00000.parquet")
    return f"folder:{folder}"


def test_a_table_is_learned_as_the_arrays_of_an_npz_file_are(tmp_path):
    """The oracle is the same numbers in the other kind of file: the same accuracies to the bit."""
    table = stored(tmp_path, train=pa.table(columns()))
    results = [
        metasp.run(name, model=Halves, runs=tmp_path / "runs", **SETTINGS)
        for name in (table, write(tmp_path))
    ]
    assert results[0]["class_il"] == results[1]["class_il"]
    spec = open_run(Path(results[0]["run"])).spec()
    material, _ = examples_of(spec, None)
    assert isinstance(material, Texts)
    assert len(material.words) == 400
    assert all(text == f"row {row}" for row, text in material.words.items())


def test_a_table_of_the_library_with_test_data_and_a_column_to_split_by(tmp_path):
    datasets = pytest.importorskip("datasets")
    names = [f"number {n}" for n in range(10)]
    kinds = {"features": [datasets.Value("float64")], "half": datasets.Value("int64")}
    kinds["kind"] = datasets.ClassLabel(names=names)
    columns = {"features": DIGITS.data[:300].tolist(), "kind": DIGITS.target[:300].tolist()}
    columns["half"] = [row % 2 for row in range(300)]
    whole = datasets.Dataset.from_dict(columns, datasets.Features(kinds))
    for split, rows in (("train", range(200)), ("test", range(200, 300))):
        whole.select(rows).to_parquet(tmp_path / f"{split}.parquet")
    name = f"folder:{tmp_path}"
    spec = RunSpec(benchmark=name, split_by="column:half")
    found = load_benchmark(spec)
    assert found.source.class_names == tuple(names)
    assert torch.equal(found.source.inputs, torch.tensor(DIGITS.data[:300]).float())  # one column
    assert torch.equal(found.source.test_labels, torch.tensor(DIGITS.target[200:300]))
    assert found.tasks[0].train.ids.tolist() == list(range(0, 200, 2))


class Nest(nn.Module):
    """Two inputs, of which one is a dictionary."""

    def __init__(self):
        super().__init__()
        self.halves = Halves()

    def forward(self, picture, rest):
        return self.halves(picture["upper"], rest)


def test_a_nest_of_inputs(tmp_path):
    """A struct in a table, and dots in the names of an .npz file, lead into a dictionary."""
    picture = [{"upper": row} for row in UPPER.tolist()]
    inputs = [{"picture": p, "rest": r} for p, r in zip(picture, LOWER.tolist())]
    table = pa.table({"inputs": inputs, "label": DIGITS.target, "width": [8] * 1797})
    arrays = {"inputs.picture.upper": UPPER, "inputs.rest": LOWER, "labels": DIGITS.target}
    np.savez(tmp_path / "nest.npz", **arrays)
    names = (stored(tmp_path, train=table), f"arrays:{tmp_path / 'nest.npz'}")
    nested, arranged = (
        metasp.run(name, model=Nest, runs=tmp_path / "runs", **SETTINGS)["class_il"]
        for name in names
    )
    assert nested == arranged
    np.savez(tmp_path / "nest.npz", **arrays, **{"inputs.picture": UPPER})
    with pytest.raises(UserError, match=r"inputs.picture.upper lies within another"):
        metasp.run(names[1], model=Nest, runs=tmp_path / "runs", **SETTINGS)


class Rows(torch.utils.data.Dataset):
    """The digits in halves, in one of the forms that people give them."""

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return 200

    def __getitem__(self, index):
        upper, lower = torch.tensor(UPPER[index]), torch.tensor(LOWER[index])
        label = int(DIGITS.target[index])
        return {
            "dictionary": {"upper": upper, "lower": lower, "labels": label},
            "lists": {"upper": upper.tolist(), "lower": lower.tolist(), "label": label},
            "pair": ({"upper": upper, "lower": lower}, label),
            "tuple": ((upper, lower), label),
        }[self.form]


@pytest.mark.parametrize("form", ["dictionary", "lists", "pair", "tuple"])
def test_a_dataset_of_several_inputs(tmp_path, form):
    stream = metasp.split(Rows(form), tasks=2)
    inputs = stream.source.inputs
    upper, lower = inputs if form == "tuple" else (inputs["upper"], inputs["lower"])
    assert torch.equal(upper, torch.tensor(UPPER[:200]))
    assert torch.equal(lower, torch.tensor(LOWER[:200]))
    result = metasp.run(stream, model=Halves, method="er", epochs=1, threads=1, runs=tmp_path)
    assert result["task_il"]["A_inf"] > 0.2


BAD = {
    "ragged": ({"upper": [[1.0], [1.0, 2.0]] * 4}, "holds lists of different lengths"),
    "empty": ({"upper": [1.0, None] * 4}, "column 'upper' has empty cells"),
    "empty list": ({"upper": [[1.0], None] * 4}, "holds lists of different lengths|empty cells"),
    "no label": ({"label": None, "kind": ["a", "b"] * 4}, "not clear which of the columns"),
    "dates": ({"upper": [date(2026, 1, 1)] * 8}, "no columns of pictures, numbers or texts"),
    "no such label": ({}, "unknown column 'lable': did you mean 'label'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_table_gets_one_sentence(tmp_path, kind):
    changes, words = BAD[kind]
    table = {"upper": [[1.0, 2.0]] * 8, "label": [0, 1] * 4, **changes}
    name = stored(tmp_path, train=pa.table({k: v for k, v in table.items() if v is not None}))
    label = "lable" if kind == "no such label" else None
    with pytest.raises(UserError, match=words):
        load_benchmark(RunSpec(benchmark=name, label_column=label))

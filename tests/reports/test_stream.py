"""How dirty a stream was found to be: by class and in memory."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from metasp.cli import main
from metasp.label_scores import score_examples
from tests.helpers import finish


def judged(right, labels, task=0):
    """A table as a method that judges labels stores it: the chance that each is right."""
    count = len(right)
    rows = {"id": list(range(count)), "label": list(labels), "count": [1] * count}
    scores = [float(2 * chance - 1) for chance in right]
    return {task: {**rows, "score": scores}}


def test_shares_of_classes_add_up_the_chances():
    right = np.array([0.9, 0.8, 0.1, 1.0, 0.0, 0.5])
    found = score_examples(judged(right, [0, 0, 0, 1, 1, 2]))
    assert [(s.label, s.examples) for s in found.shares("score")] == [(0, 3), (1, 2), (2, 1)]
    assert [s.expected for s in found.shares("score")] == pytest.approx([1.2, 1.0, 0.5])
    assert found.expected("score") == round(2.7)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from metasp.experiment import prepare
    from metasp.spec import RunSpec
    from tests.conftest import TINY

    spec = RunSpec(**{**TINY, "method": "metasp-robust", "epochs": 3, "trusted": 2,
                      "label_noise": 0.4})  # fmt: skip
    return finish(prepare(spec, tmp_path_factory.mktemp("stream"))).path


def told(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return captured.out


def truth_of(run):
    """Which ids are wrong, and what the memory ended with, straight from the files."""
    wrong = set(pq.read_table(run / "noise.parquet")["id"].to_pylist())
    memory = pq.read_table(max((run / "memory").glob("*.parquet")))["id"].to_pylist()
    tables = [pq.read_table(path).to_pydict() for path in sorted((run / "scores").iterdir())]
    return wrong, memory, tables


def test_suspects_tell_each_class_and_the_memory(run, capsys):
    wrong, memory, tables = truth_of(run)
    found = json.loads(told(capsys, "suspects", run, "--json"))
    *classes, whole = found["classes"]
    for row in classes:
        chances, bad = [], []
        for table in tables:
            mine = [n for n, label in enumerate(table["label"]) if label == row["label"]]
            chances += [table["wrong"][n] for n in mine]
            bad += [table["id"][n] in wrong for n in mine]
        assert row["examples"] == len(chances)
        assert row["wrong"] == pytest.approx(np.mean(chances))
        assert row["low"] is None, "no network judged what it did not train on"
        assert row["truly_wrong"] == pytest.approx(np.mean(bad))
    assert whole["class"] == "all"
    assert whole["examples"] == sum(row["examples"] for row in classes)
    assert found["memory"]["examples"] == len(memory)
    assert found["memory"]["wrong"] == sum(each in wrong for each in memory)
    text = told(capsys, "suspects", run)
    assert "how many labels look wrong, by odds" in text
    assert f"the memory holds {len(memory)} examples" in text


def test_the_report_tells_the_stream_of_each_row(run, capsys):
    wrong, memory, tables = truth_of(run)
    text = told(capsys, "report", run, "--table", "stream", "--json")
    (row,) = json.loads(text)["tables"][0]["rows"]
    ids = [each for table in tables for each in table["id"]]
    chances = [each for table in tables for each in table["wrong"]]
    assert row["looks_wrong"] == pytest.approx(100 * np.mean(chances), abs=1e-4)
    assert row["truly_wrong"] == pytest.approx(
        100 * np.mean([each in wrong for each in ids]), abs=1e-4
    )
    assert row["memory_wrong"] == pytest.approx(
        100 * np.mean([m in wrong for m in memory]), abs=1e-4
    )
    assert "wrong in memory" in told(capsys, "report", run, "--table", "stream")


def test_the_figure_shows_what_the_steps_say_of_doubt(run, tmp_path, capsys):
    told(capsys, "figures", run, "--only", "doubt", "--out", tmp_path)
    (file,) = tmp_path.glob("doubt-*.csv")
    lines = list(csv.DictReader(file.open()))
    steps = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    by_epoch = {}
    for step in steps:
        if "doubted" in step:
            by_epoch.setdefault((step["task"] + 1, step["epoch"] + 1), []).append(step["doubted"])
    drawn = [line for line in lines if line["label"].startswith("metasp-robust")]
    assert {(int(d["task"]), int(d["epoch"])): float(d["share"]) for d in drawn} == pytest.approx(
        {epoch: 100 * np.mean(values) for epoch, values in by_epoch.items()}, abs=1e-3
    )
    wrong, _, tables = truth_of(run)
    first = next(line for line in lines if line["label"] == "labels that are wrong")
    truth = np.mean([each in wrong for each in tables[0]["id"]])
    assert float(first["share"]) == pytest.approx(100 * truth, abs=1e-3)


def test_runs_that_doubt_nothing_have_no_such_figure(tiny, tmp_path, capsys):
    plain = finish(tiny()).path
    with pytest.raises(SystemExit):
        main(["figures", str(plain), "--only", "doubt", "--out", str(tmp_path / "out")])
    assert "a method that judges labels" in capsys.readouterr().err

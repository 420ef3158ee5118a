"""metasp why: rows, what is stored, and how far the answer is to be trusted."""

import csv
import io
import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from metasp.cli import main
from metasp.errors import UserError
from metasp.experiment import prepare
from metasp.spec import RunSpec
from metasp.store import open_run
from metasp.whole_run.answer import why
from metasp.whole_run.retraining import lds_of
from tests.helpers import finish

SMOOTH = {"method": "er", "limit_per_class": 10, "tasks": 5, "memory": 20, "batch_size": 16,
          "backbone": "mlp", "width": 16, "threads": 1, "epochs": 2, "lr": 0.01}  # fmt: skip
WILD = {**SMOOTH, "lr": 0.3, "momentum": 0.9}


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    return finish(prepare(RunSpec.from_dict(SMOOTH), tmp_path_factory.mktemp("runs")))


def call(capsys, *arguments):
    """Run a command that must succeed; what it prints."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_columns_are_means_of_the_tasks_losses(smooth):
    table = why(smooth).rows.to_pydict()
    on_tasks = np.array(table["on_tasks"])
    assert on_tasks.shape == (100, 5)
    for row, task in enumerate(table["task"]):
        stability = table["stability"][row]
        if task == 0:
            assert stability is None
        else:
            assert stability == pytest.approx(on_tasks[row, :task].mean())
        assert table["plasticity"][row] == on_tasks[row, task]
    total = np.array(table["direct"]) + np.array(table["through_memory"])
    np.testing.assert_allclose(table["total"], on_tasks.mean(1), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(table["total"], total, rtol=1e-9, atol=1e-15)


def test_the_command_lists_stores_and_reads_what_it_stored(smooth, capsys, monkeypatch):
    text = call(capsys, "why", smooth.path, "--format", "csv")
    rows = rows_of(text)
    assert [*rows[0]] == ["id", "task", "stability", "plasticity", "total", "direct",
                          "through_memory"]  # fmt: skip
    assert sorted(int(row["id"]) for row in rows) == sorted(why(smooth).rows["id"].to_pylist())
    totals = [float(row["total"]) for row in rows]
    assert totals == sorted(totals, reverse=True)
    monkeypatch.setattr("metasp.whole_run.answer.walk", None)  # what is stored is not made again
    text = call(capsys, "why", smooth.path)
    assert max(map(len, text.splitlines())) <= 80
    assert "most harmful" in text
    answer = json.loads(call(capsys, "why", smooth.path, "--json"))
    assert answer["trusted"]
    assert [row["total"] for row in answer["examples"]] == totals
    both = json.loads(call(capsys, "why", smooth.path, smooth.path, "--json"))
    assert [row["total"] for row in both["examples"]] == totals


def test_the_manifest_covers_the_answer(smooth):
    why(smooth)
    path = smooth.path / "why.parquet"
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-20] + b"x" + content[-19:])
        with pytest.raises(UserError, match=r"why\.parquet is damaged"):
            why(open_run(smooth.path))
    finally:
        path.write_bytes(content)


def test_groups_that_are_left_out_confirm_a_trusted_answer(smooth):
    answer = why(smooth, check=8)
    assert answer.trusted
    assert answer.check.lds > 0.8
    low, high = answer.check.interval
    assert low <= answer.check.lds <= high


def test_a_chaotic_run_is_not_trusted(tmp_path, capsys):
    run = finish(prepare(RunSpec.from_dict(WILD), tmp_path))
    text = call(capsys, "why", run.path)
    assert "DO NOT BELIEVE SINGLE SCORES" in text
    assert "learning rate" in text


def test_other_queries(smooth, tmp_path):
    ids = why(smooth).rows["id"].to_pylist()[::7]
    file = tmp_path / "ids.csv"
    file.write_text("id\n" + "\n".join(map(str, ids)))
    assert why(smooth, query=str(file)).query.startswith("ids ")
    assert why(smooth, task_il=True).query == "test, task-IL"
    stored = {*smooth.table("why.parquet")["query"].to_pylist()}
    assert len(stored) == 3
    with pytest.raises(UserError, match="holds no examples out"):
        why(smooth, query="validation")
    file.write_text("id\n99999999\n")
    with pytest.raises(UserError, match="no examples of"):
        why(smooth, query=str(file))


def test_the_score_is_the_mean_rank_correlation():
    generator = np.random.default_rng(0)
    predicted = generator.normal(size=(3, 30))
    measured = predicted + generator.normal(size=(3, 30))
    lds, (low, high) = lds_of(predicted, measured)
    pairs = zip(predicted, measured)
    assert lds == pytest.approx(np.mean([spearmanr(a, b).statistic for a, b in pairs]))
    assert low < lds < high

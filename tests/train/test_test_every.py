"""Testing after every N-th task: fewer rows of the same matrix, and the same training."""

import csv
import itertools

import pyarrow.parquet as pq
import pytest

import metasp
from metasp.cli import main
from metasp.experiment import Interrupted, prepare
from metasp.metrics import SCENARIOS
from metasp.spec import RunSpec

SETTINGS = {"method": "er", "epochs": 1, "limit_per_class": 20, "threads": 1, "memory": 20}
TESTED = (2, 4)  # of five tasks, from 0, with test_every=3 (the last is always one)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run, tested after every task and after every third."""
    folder = tmp_path_factory.mktemp("runs")
    return [metasp.run(runs=folder, test_every=n, **SETTINGS) for n in (1, 3)]


def test_the_tested_rows_are_those_of_the_run_that_tests_always(runs):
    whole, some = runs
    for scenario in SCENARIOS:
        for t, row in enumerate(some[scenario]["matrix"]):
            tested = whole[scenario]["matrix"][t] if t in TESTED else [None] * 5
            assert row == tested
        assert some[scenario]["before"] == whole[scenario]["before"]
        assert some[scenario]["A_inf"] == whole[scenario]["A_inf"]
    held = [pq.read_table(f"{run['run']}/memory/task-004.parquet") for run in runs]
    assert held[0]["id"].equals(held[1]["id"])


def test_a_run_stopped_between_two_tests_ends_the_same(runs, tmp_path):
    steps = itertools.count()
    spec = RunSpec(benchmark="split-digits", test_every=3, **SETTINGS)
    begun = prepare(spec, tmp_path, stop=lambda: next(steps) == 8)  # in the fourth task
    with pytest.raises(Interrupted):
        list(begun.events())
    assert begun.trainer.position.task == 3
    ended = metasp.run(runs=tmp_path, test_every=3, **SETTINGS)
    assert all(ended[scenario] == runs[1][scenario] for scenario in SCENARIOS)


def said(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_reports_figures_and_pages_show_it(runs, tmp_path, capsys):
    run = runs[1]["run"]
    lines = said(capsys, "report", run, "--table", "matrix", "--format", "csv").splitlines()
    assert {line.split(",")[3] for line in lines[1:]} == {"3", "5"}
    shown = said(capsys, "report", run, "--table", "matrix")
    assert "after task 3" in shown
    assert "after task 4" not in shown
    assert "test_every" in said(capsys, "report", run).replace("test every", "test_every")
    for name in ("accuracy", "matrix"):
        said(capsys, "figures", run, "--out", tmp_path, "--only", name)
        (file,) = tmp_path.glob(f"{name}-*.csv")
        with file.open() as opened:
            assert {line["after_task"] for line in csv.DictReader(opened)} == {"3", "5"}
    said(capsys, "explore", run, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000

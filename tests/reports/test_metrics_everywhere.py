"""A new metric is one entry: it works on every run that was ever stored."""

import json

import pyarrow.parquet as pq
import pytest

from metasp.callbacks import scores_of
from metasp.cli import main
from metasp.cli.show import score_table
from metasp.metrics import METRICS, SCENARIOS, Metric
from metasp.store import RunDir
from tests.helpers import ROOT
from tests.reports.run_factories import make_run

FASHION = ROOT / "results" / "fashion.parquet"


def forgetting(matrix, before):
    """From the best accuracy a task ever had to the last: Chaudhry et al. 2018."""
    past = range(len(matrix) - 1)
    drops = [max(row[k] for row in matrix[k:-1]) - matrix[-1][k] for k in past]
    return sum(drops) / len(drops) if drops else None


@pytest.fixture
def added(monkeypatch):
    entry = Metric("F", r"$F_{\max}$", forgetting, "forgotten", "how much was lost", change=True)
    monkeypatch.setitem(METRICS, "forgetting", entry)


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 0
    return capsys.readouterr()


def test_one_entry_reports_on_runs_stored_before_it(added, capsys):
    shown = said(capsys, "report", FASHION, "--format", "json")
    assert shown.err == ""
    told = json.loads(shown.out)
    assert told["damaged"] == []
    rows = [row for table in told["tables"] for row in table["rows"]]
    (entry,) = [
        row
        for row in rows
        if (row["label"], row["scenario"], row["metric"]) == ("joint", "class-IL", "forgetting")
    ]
    runs = pq.read_table(FASHION, columns=["method", "class_il.matrix"]).to_pylist()
    values = [
        100 * forgetting(run["class_il.matrix"], []) for run in runs if run["method"] == "joint"
    ]
    assert len(values) == entry["seeds"] > 1
    assert entry["mean"] == pytest.approx(sum(values) / len(values))
    assert r"$F_{\max}$" in said(capsys, "report", FASHION, "--format", "latex").out


def test_one_entry_is_shown_and_tracked(added, tmp_path):
    result = RunDir(make_run(tmp_path, method="er")).outcome()
    assert [str(column.header) for column in score_table(result).columns][-1] == "F"
    assert {f"{scenario}/forgetting" for scenario in SCENARIOS} <= set(scores_of(result))


def test_the_page_on_reports_says_what_each_metric_is():
    page = (ROOT / "docs" / "reports.md").read_text()
    for metric in METRICS.values():
        assert f"**{metric.name}** {metric.help}" in " ".join(page.split())

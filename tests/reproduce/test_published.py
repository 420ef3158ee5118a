"""The published figures stand beside our own rows where these are what was published."""

import json
from pathlib import Path

import pytest
from reproduce.__main__ import main
from reproduce.published import published_stream, published_tables
from reproduce.rehearsal_table import rehearsal_tables
from reproduce.time_table import time_tables

from metasp.reports.groups import group
from metasp.reports.notes import Comparison
from metasp.reports.runs import gather
from tests.reports.run_factories import ablated_selections, make_run

ROOT = Path(__file__).parents[2]


def beside_published(folder):
    return published_tables(group(gather([folder]).records), Comparison())


def report(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return captured.out


def test_published_figures_stand_beside_ours_but_not_beside_a_control(tmp_path):
    stream = {"benchmark": "split-cifar10", "tasks": 5}
    common = {**stream, "memory": 500}
    make_run(tmp_path, 0.5, method="er", **common)
    make_run(tmp_path, 0.5, method="er", rehearse_last=2, **common)
    own = {"method": "metasp-rehsel", "selection": "rehsel", "settings": {"influence_last": 2}}
    make_run(tmp_path, 0.5, **own, **common)
    make_run(tmp_path, 0.5, method="joint", **stream, memory=0, selection=None)
    table = beside_published(tmp_path)[0]
    by_label = {d["label"]: d for d in table.data if d["metric"] == "A_inf"}
    assert by_label["metasp-rehsel"]["published"] == 50.10
    assert by_label["joint"]["published"] == 91.79
    assert by_label["er (rehearse last 2)"]["published"] is None
    ours = by_label["er"]
    assert ours["difference"] == pytest.approx(ours["mean"] - ours["published"])
    header = [name for name in table.header if "published" not in name]
    assert tuple(header) == ("method", "seeds", "A_1", "A_∞", "A_m", "BWT")


@pytest.mark.parametrize(("name", "wanted"), [("cifar10-whole", True), ("cifar10-noise", False)])
def test_the_streams_of_the_paper_are_known_by_what_real_runs_have_stored(name, wanted):
    groups = group(gather([ROOT / "results" / f"{name}.parquet"]).records)
    streams = {published_stream(row) for one in groups for row in one.rows}
    assert streams == {"Split CIFAR-10" if wanted else ""}


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": 2},
        {"tasks": 5, "label_noise": 0.3},
        {"tasks": 5, "classes_per_task": (4, 2, 2, 1, 1)},
    ],
)
def test_published_figures_do_not_stand_beside_another_stream(tmp_path, changes):
    stream = {"benchmark": "split-cifar10", "memory": 500}
    make_run(tmp_path, 0.5, method="er", **stream, **changes)
    make_run(tmp_path, 0.5, method="metasp-rehsel", **stream, **changes)
    (scores, *_) = beside_published(tmp_path)
    assert {entry["published"] for entry in scores.data} == {None}
    (kept, *_) = rehearsal_tables(group(gather([tmp_path]).records))
    assert {entry["published"] for entry in kept.data} == {None}
    assert any("no published figures" in note for note in kept.notes)


def test_times_are_set_beside_one_row_of_er_and_the_published_say_of_what(tmp_path):
    make_run(tmp_path, 0.5, method="er", lr=0.1)
    make_run(tmp_path, 0.25, method="metasp")
    (table,) = time_tables(group(gather([tmp_path]).records))
    assert [entry["total_ratio"] for entry in table.data] == [1.0, 0.5]
    assert any("ResNet-18 of width 64" in note for note in table.notes)
    make_run(tmp_path, 0.5, method="er", lr=0.3)
    (table,) = time_tables(group(gather([tmp_path]).records))
    assert {entry["total_ratio"] for entry in table.data} == {None}
    assert "no ratios: 2 rows of er here." in table.notes


def test_the_published_ablation_is_shown_beside_its_own_memory_only(tmp_path):
    stream = {"benchmark": "split-cifar10", "tasks": 5}
    for memory in (300, 500):
        make_run(tmp_path, 0.5, method="metasp-rehsel", **stream, memory=memory)
    tables = rehearsal_tables(group(gather([tmp_path]).records))
    shown = {table.data[0]["memory"]: "published" in " ".join(table.header) for table in tables}
    assert shown == {300: False, 500: True}


def test_the_rehearsal_and_time_tables_hold_the_stored_numbers(tmp_path, capsys):
    runs = ablated_selections(tmp_path)
    rows = json.loads(report(capsys, runs, "--table", "rehearsal", "--format", "json"))["tables"][
        0
    ]["rows"]
    assert [r["label"] for r in rows if r["metric"] == "A_1"] == [
        "random",
        "rehsel-without-cluster",
        "rehsel: metasp (selection rehsel)",
        "rehsel: metasp-rehsel (rehearse last 2)",
    ]
    rows = json.loads(report(capsys, runs, "--table", "time", "--format", "json"))["tables"][0][
        "rows"
    ]
    by_label = {row["label"]: row for row in rows}
    er, ours = by_label["er"], by_label["metasp-rehsel (rehearse last 2)"]
    assert (er["total_s"], er["total_ratio"]) == pytest.approx((3.0, 1.0))
    assert (ours["total_ratio"], ours["step_ratio"]) == pytest.approx((2.0, 2.0))


def test_the_influence_table_is_the_published_one_with_ours_above(tmp_path, capsys):
    rows = json.loads(report(capsys, "--table", "influence", "--format", "json"))["tables"][0][
        "rows"
    ]
    assert {row["method"]: row["agree"] for row in rows} == {
        "Larsen": 856,
        "Luketina": 846,
        "Neumann": 924,
        "MetaSP": 965,
    }
    counts = {"true_positive": 5, "true_negative": 3, "false_positive": 1, "false_negative": 1}
    file = tmp_path / "check.json"
    file.write_text(json.dumps({"methods": [{"method": "metasp", "examples": 10, **counts}]}))
    text = report(capsys, "--table", "influence", "--check", file, "--format", "json")
    first = json.loads(text)["tables"][0]["rows"][0]
    assert (first["where"], first["agree"]) == ("here", 8)


def test_a_check_that_is_not_there(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", "--table", "influence", "--check", "none.json"])
    assert ended.value.code == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_sweep_of_the_paper_is_run_by_its_short_name(capsys, tmp_path):
    for name in ("statistics-small", "paper-statistics-small"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--dry-run", "--runs", str(tmp_path)])
        assert ended.value.code == 0
        assert "0 of 3 runs done" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["statistics-smal"])
    assert ended.value.code == 2
    assert "did you mean 'statistics-small'" in capsys.readouterr().err

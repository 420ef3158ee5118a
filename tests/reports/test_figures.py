"""Figures hold exactly the stored numbers, and say which sweep makes what they lack."""

import csv
import json
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats

from metasp.cli import main
from metasp.reports.figures import FIGURES, pareto_front
from metasp.reports.figures import draw as draw_figure
from metasp.reports.groups import group
from metasp.reports.runs import gather
from metasp.store.run_tables import INFLUENCE
from tests.helpers import list_anew
from tests.reports.run_factories import make_run, varied_settings

TASKS, NEW, MEMORY = 3, 40, 15


def made_influence(run, seed=0):
    """Influences made in a test: random numbers, more of them below zero than above."""
    random = np.random.default_rng(seed)
    rows = [(t, "new") for t in range(TASKS) for _ in range(NEW)]
    rows += [(t, "memory") for t in range(1, TASKS) for _ in range(MEMORY)]
    n = len(rows)
    columns = {
        "task": [t for t, _ in rows],
        "id": list(range(n)),
        "label": [0] * n,
        "source": [s for _, s in rows],
        "count": [1] * n,
        "kept": [False] * n,
        "predicted": [0] * n,
    }
    values = {name: random.normal(-0.5, 1, n) for name in INFLUENCE.names if name not in columns}
    table = pa.table({**columns, **values}, schema=INFLUENCE)
    pq.write_table(table, run / "influence.parquet")
    list_anew(run)
    return columns, values


@pytest.fixture
def runs(tmp_path):
    return varied_settings(tmp_path / "runs")


def draw(runs, out, capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["figures", str(runs), "--out", str(out), *arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return captured


def read(file):
    return list(csv.DictReader(file.open()))


@pytest.mark.slow
def test_every_figure_is_drawn_with_its_data(runs, tmp_path, capsys):
    er = next(runs.glob("*-er-*"))
    made_influence(er)
    step = {"event": "StepTaken", "task": 0, "epoch": 1, "doubted": 0.25}
    (er / "events.jsonl").write_text(json.dumps(step) + "\n")
    out = tmp_path / "out"
    draw(runs, out, capsys, "--against", "er")
    for name in FIGURES:
        drawn = sorted(out.glob(f"{name}-*.png"))
        assert drawn, name
        for png in drawn:
            assert png.read_bytes().startswith(b"\x89PNG")
            assert ElementTree.parse(png.with_suffix(".svg")).getroot().tag.endswith("svg")
            assert read(png.with_suffix(".csv"))


def test_the_data_beside_the_accuracy_figure_is_the_mean_over_seeds(runs, tmp_path, capsys):
    from metasp.reports.runs import gather

    draw(runs, tmp_path / "out", capsys, "--only", "accuracy")
    rows = read(tmp_path / "out" / "accuracy-split-digits-m200.csv")
    records = [r for r in gather([runs]).records if r.spec["method"] == "er"]
    for t in range(3):
        truth = np.mean([np.mean(r.result["class_il"]["matrix"][t][: t + 1]) for r in records])
        (ours,) = [
            float(row["mean"])
            for row in rows
            if (row["scenario"], row["label"], row["after_task"]) == ("class-IL", "er", str(t + 1))
        ]
        assert ours == pytest.approx(100 * truth, rel=1e-5)


def test_differences_are_seed_by_seed_with_the_interval_of_a_paired_test(tmp_path, capsys):
    scores = {"er": [0.40, 0.52, 0.47], "metasp": [0.55, 0.58, 0.66], "gss": [0.41, 0.60, 0.39]}
    for method, values in scores.items():
        for seed, value in enumerate(values):
            make_run(tmp_path / "runs", value, method=method, seed=seed)
    make_run(tmp_path / "runs", 0.9, method="gss", seed=7)  # of a seed that er does not have
    draw(tmp_path / "runs", tmp_path / "out", capsys, "--only", "differences", "--against", "er")
    rows = read(tmp_path / "out" / "differences-split-digits-m200-er.csv")
    assert {row["label"] for row in rows} == {"metasp", "gss"}
    kept = {}
    for record in gather([tmp_path / "runs"]).records:
        for scenario in ("class_il", "task_il"):
            found = kept.setdefault((record.spec["method"], scenario), {})
            found[record.seed] = record.score(scenario, "A_inf")
    for row in rows:
        scenario = {"class-IL": "class_il", "task-IL": "task_il"}[row["scenario"]]
        mine, er = (
            [kept[name, scenario][seed] for seed in range(3)] for name in (row["label"], "er")
        )
        truth = stats.ttest_rel(mine, er).confidence_interval()
        assert float(row["mean"]) == pytest.approx(np.mean(mine) - np.mean(er), rel=1e-5)
        assert (float(row["low"]), float(row["high"])) == pytest.approx(
            (truth.low, truth.high), rel=1e-5
        )
        assert row["seeds"] == "3"


def test_differences_of_single_seeds_have_no_interval_and_no_reference_no_figure(tmp_path, capsys):
    for method in ("er", "metasp"):
        make_run(tmp_path / "runs", 0.5, method=method, seed=1)
    told = draw(tmp_path / "runs", tmp_path / "out", capsys, "--only", "differences")
    assert "differences: nothing to draw" in told.err
    draw(tmp_path / "runs", tmp_path / "out", capsys, "--only", "differences", "--against", "er")
    (row, _) = read(tmp_path / "out" / "differences-split-digits-m200-er.csv")
    assert (row["label"], row["low"], row["high"], row["seeds"]) == ("metasp", "", "", "1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "erx"], "did you mean 'er'?"),
        (["--only", "front", "--against", "er"], "add --only differences"),
    ],
)
def test_against_what_is_not_there_is_refused(tmp_path, capsys, arguments, words):
    make_run(tmp_path / "runs", 0.5, method="er", seed=1)
    with pytest.raises(SystemExit) as ended:
        main(["figures", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_influence_counts_are_the_counts_of_signs(runs, tmp_path, capsys):
    er = next(runs.glob("*-er-*"))
    columns, values = made_influence(er)
    draw(runs, tmp_path / "out", capsys, "--only", "influence-counts")
    rows = read(tmp_path / "out" / "influence-counts-split-digits-m200-er.csv")
    assert len(rows) == TASKS * 2 * 3
    for row in rows:
        measure = {"S": "stability", "P": "plasticity", "SP": "fused"}[row["measure"]]
        mine = [
            value
            for task, source, value in zip(columns["task"], columns["source"], values[measure])
            if (task + 1, source) == (int(row["task"]), row["source"])
        ]
        assert float(row["helps"]) == sum(value < 0 for value in mine)
        assert float(row["hurts"]) == sum(value > 0 for value in mine)


def test_the_histogram_has_five_groups_of_equal_width_that_hold_everything(runs, tmp_path, capsys):
    made_influence(next(runs.glob("*-er-*")))
    draw(runs, tmp_path / "out", capsys, "--only", "influence-histogram")
    rows = read(tmp_path / "out" / "influence-histogram-split-digits-m200-er.csv")
    for source, size in (("new", TASKS * NEW), ("memory", (TASKS - 1) * MEMORY)):
        bins = [r for r in rows if (r["source"], r["measure"]) == (source, "SP")]
        widths = [float(r["to"]) - float(r["from"]) for r in bins]
        assert widths == pytest.approx([widths[0]] * 5, rel=1e-4)
        assert sum(float(r["examples"]) for r in bins) == size


def test_the_legend_of_many_methods_is_whole_and_clear_of_the_title(tmp_path):
    for lr in range(24):
        make_run(tmp_path, 0.5, method="er", lr=0.01 * (lr + 1), selection="task-balanced")
    (drawing,) = draw_figure(FIGURES["front"], group(gather([tmp_path]).records))
    FigureCanvasAgg(drawing.figure).draw()
    legend = drawing.figure.legends[0].get_window_extent()
    assert len(drawing.figure.legends[0].get_texts()) >= 24
    assert drawing.figure.bbox.contains(legend.x0, legend.y0)
    assert drawing.figure.bbox.contains(legend.x1, legend.y1)
    title = next(t for t in drawing.figure.texts if "joint" in t.get_text())
    assert not legend.overlaps(title.get_window_extent())


def test_a_damaged_influence_table_is_named_and_left_out(runs, tmp_path, capsys):
    one, two = runs.glob("*-er-*")
    for run in (one, two):
        made_influence(run)
    (one / "influence.parquet").write_bytes(b"PAR1 cut short")
    chosen = ("--only", "influence-counts", "--only", "influence-histogram", "--only", "front")
    told = draw(runs, tmp_path / "out", capsys, *chosen)
    assert told.err.count("influence.parquet is damaged") == 1
    assert all(f"{name}:" in told.out for name in chosen[1::2])
    rows = read(tmp_path / "out" / "influence-counts-split-digits-m200-er.csv")
    assert {row["runs"] for row in rows} == {"1"}


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8))
def test_the_front_holds_exactly_the_points_that_none_dominates(points):
    front = {points[index] for index in pareto_front(points)}
    for x, y in points:
        dominated = any((a > x and b >= y) or (a >= x and b > y) for a, b in points)
        assert ((x, y) in front) != dominated

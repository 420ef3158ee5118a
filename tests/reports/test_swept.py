"""A field on an axis: memory, a setting, the streams of a benchmark."""

import csv
import io
import json

import numpy as np
import pytest
from scipy.stats import ttest_rel

from metasp.cli import main
from metasp.reports.groups import group
from metasp.reports.notes import Comparison
from metasp.reports.runs import gather
from metasp.reports.scores import difference_tables, score_tables
from tests.reports.run_factories import make_run

NOISE = {
    "clean": {},
    "symmetric noise 0.4": {"label_noise": 0.4},
    "one-sided noise 0.6": {"label_noise": 0.6, "label_noise_kind": "one-sided"},
    "one-sided noise 0.6, imbalance 0.3": {
        "label_noise": 0.6,
        "label_noise_kind": "one-sided",
        "imbalance": 0.3,
    },
    "junk noise 0.4": {"label_noise": 0.4, "label_noise_kind": "junk"},
}
ROWS = {
    "er": {"method": "er"},
    "er (10 verified)": {"method": "er", "trusted": 10},
    "loss-filter (10 verified, by class, told the share)": {
        "method": "loss-filter",
        "trusted": 10,
        "settings": {"told": True, "per_class": True},
    },
    "metasp-robust": {"method": "metasp-robust"},
    "metasp-robust (10 verified)": {"method": "metasp-robust", "trusted": 10},
    "metasp-robust (10 verified, shuffled)": {
        "method": "metasp-robust",
        "trusted": 10,
        "settings": {"shuffle_influence": True},
    },
}


@pytest.fixture(scope="module")
def dirty(tmp_path_factory):
    """Six rows on five streams, three seeds each."""
    folder = tmp_path_factory.mktemp("dirty")
    for place, noise in enumerate(NOISE.values()):
        for number, row in enumerate(ROWS.values()):
            for seed in (1, 2, 3):
                make_run(folder, 0.8 - place / 20 + number / 100, seed=seed, **noise, **row)
    return folder


def tables_of(folder, field, **how):
    groups, how = group(gather([folder]).records, field), Comparison(**how)
    return score_tables(groups, how), difference_tables(groups, how)


def test_streams_are_columns_and_rows_have_readable_names(dirty):
    tables, _ = tables_of(dirty, "stream", metrics=("A_inf",))
    assert [table.title for table in tables] == [
        "split-digits, memory 200: A_∞ by stream, class-IL, %",
        "split-digits, memory 200: A_∞ by stream, task-IL, %",
    ]
    for table in tables:
        assert table.header[:2] == ("method", "clean")
        assert set(table.header[1:]) == set(NOISE)
        assert {row[0].text for row in table.rows} == set(ROWS)
        assert not any(cell.text == "–" for row in table.rows for cell in row)


def test_every_number_is_of_its_own_stream_and_row(dirty):
    (table, _), _ = tables_of(dirty, "stream", metrics=("A_inf",))
    stored = {}
    for path in dirty.glob("*/result.json"):
        result = json.loads(path.read_text())
        spec = result["spec"]
        key = (spec["label_noise"], spec.get("label_noise_kind"), spec.get("imbalance"),
               repr(spec["method"]), spec.get("trusted"))  # fmt: skip
        stored.setdefault(key, []).append(100 * result["class_il"]["A_inf"])
    means = sorted(np.mean(values) for values in stored.values())
    assert sorted(entry["mean"] for entry in table.data) == pytest.approx(means)
    (odd,) = [values for key, values in stored.items()
              if key[:5] == (0.6, "one-sided", 0.3, repr({"name": "er"}), 10)]  # fmt: skip
    (entry,) = [entry for entry in table.data if entry["label"] == "er (10 verified)"
                and entry["value"] == "one-sided noise 0.6, imbalance 0.3"]  # fmt: skip
    assert entry["mean"] == pytest.approx(np.mean(odd))


def test_the_correction_is_over_the_whole_table(dirty):
    """Five streams and five rows beside the reference: 25 tests, corrected as one family."""
    against = "metasp-robust, 10 verified"
    (table, _), (differences, _) = tables_of(dirty, "stream", against=against, metrics=("A_inf",))
    tested = [entry for entry in table.data if entry["p"] is not None]
    assert len(tested) == 25
    smallest = min(tested, key=lambda entry: entry["p"])
    assert smallest["p_corrected"] == pytest.approx(min(1.0, 25 * smallest["p"]))
    found = group(gather([dirty]).records, "stream")
    lines = {line.label: line for line in found[0].lines}
    scores = [
        list(lines[name].at[0].scores("class_il", "A_inf").values())
        for name in ("metasp-robust (10 verified)", "er")
    ]
    (entry,) = [e for e in tested if (e["label"], e["value"]) == ("er", "clean")]
    assert entry["p"] == pytest.approx(ttest_rel(*scores).pvalue)
    assert "row minus metasp-robust (10 verified)" in differences.title
    assert len(differences.rows) == 5
    assert any("caution: all comparisons rest on 3 seeds" in note for note in table.cautions)


def test_memory_on_the_axis_and_what_keeps_none_everywhere(tmp_path):
    for memory in (500, 50, 100):
        make_run(tmp_path, 0.4 + memory / 1000, method="er", memory=memory)
        make_run(tmp_path, 0.3 + memory / 1000, method="metasp", memory=memory, rehearse_last=None)
    make_run(tmp_path, 0.2, method="finetune", memory=0, selection=None)
    make_run(tmp_path, 0.5, method="gem", memory=100)
    (table, *_), _ = tables_of(tmp_path, "memory", metrics=("A_1",))
    assert table.header == ("method", "50", "100", "500")
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert list(cells) == ["finetune", "er", "gem", "metasp"]
    assert len(set(cells["finetune"])) == 1
    assert [text == "–" for text in cells["gem"]] == [True, False, True]
    assert cells["er"] == sorted(cells["er"])


def test_the_figure_shows_what_the_table_says(tmp_path, capsys):
    for memory in (50, 100):
        for seed in (1, 2):
            make_run(tmp_path / "runs", 0.4 + memory / 1000, memory=memory, method="er", seed=seed)
    for arguments in (
        ["figures", str(tmp_path / "runs"), "--by", "memory", "--out", str(tmp_path / "out")],
        ["report", str(tmp_path / "runs"), "--by", "memory", "--metric", "A_inf", "--json"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        said = capsys.readouterr().out
    truth = [row for table in json.loads(said)["tables"] for row in table["rows"]]
    (file,) = (tmp_path / "out").glob("by-memory-*.csv")
    drawn = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [float(line["mean"]) for line in drawn] == [row["mean"] for row in truth]
    assert [line["value"] for line in drawn] == ["50", "100", "50", "100"]
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".png", ".svg", ".csv"}

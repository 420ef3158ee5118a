"""What may be used of a runs folder, and what is said about the rest."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metasp.errors import UserError
from metasp.metrics import METRICS, SCENARIOS
from metasp.reports.runs import export, gather
from tests.helpers import list_anew
from tests.reports.run_factories import make_run


def test_damaged_runs_are_skipped_named_and_counted(tmp_path):
    sound = make_run(tmp_path, seed=1)
    cut = make_run(tmp_path, seed=2)
    (cut / "result.json").write_bytes((cut / "result.json").read_bytes()[:100])
    altered = make_run(tmp_path, seed=3)
    (altered / "result.json").write_text((sound / "result.json").read_text() + " ")
    broken = []
    for seed, (part, value) in enumerate((("seconds", None), ("class_il", {"matrix": []})), 20):
        broken.append(make_run(tmp_path, seed=seed))
        text = json.loads((broken[-1] / "result.json").read_text())
        (broken[-1] / "result.json").write_text(json.dumps({**text, part: value}))
        list_anew(broken[-1])  # else its digest tells
    unfinished = make_run(tmp_path, seed=7)
    (unfinished / "result.json").unlink()
    gathered = gather([tmp_path])
    assert [record.source for record in gathered.records] == [sound]
    assert gathered.unfinished == [str(unfinished)]
    assert len(gathered.damaged) == 4
    for run in (cut, altered, *broken):
        (line,) = [line for line in gathered.damaged if line.startswith(str(run))]
        assert "damaged" in line


def test_two_results_of_one_digest_are_refused_and_named(tmp_path):
    one = make_run(tmp_path / "a", level=0.5, seed=1)
    two = make_run(tmp_path / "b", level=0.6, seed=1)
    assert one.name == two.name
    with pytest.raises(UserError) as caught:
        gather([tmp_path / "a", tmp_path / "b"])
    assert str(one) in str(caught.value)
    assert str(two) in str(caught.value)


def test_a_folder_without_runs_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="metasp run"):
        gather([tmp_path])
    with pytest.raises(UserError, match="not a folder"):
        gather([tmp_path / "none"])


def test_a_table_of_runs_reports_as_their_directories_do(tmp_path):
    """To the same records, and beside them as the same runs."""
    runs = tmp_path / "runs"
    make_run(runs, seed=1, method="derpp", influence="robust", trusted=3, settings={"alpha": 0.7})
    make_run(runs, seed=2, method="finetune", selection=None, memory=0, classes_per_task=(2, 1))
    make_run(runs, seed=3, method="metasp")
    stored = gather([runs]).records
    table = tmp_path / "sweep.parquet"
    export(stored, table)
    for one, other in zip(stored, gather([table]).records, strict=True):
        assert (one.name, one.spec, one.defaults) == (other.name, other.spec, other.defaults)
        for part in ("seconds", "environment"):
            assert one.result.get(part) == other.result.get(part)
        for scenario in SCENARIOS:
            for metric in METRICS:
                assert one.score(scenario, metric) == other.score(scenario, metric)
    names = pq.read_schema(table).names
    assert {"run", "method.alpha", "influence.weigh_from", "class_il.matrix"} <= {*names}
    assert len(gather([table, runs]).records) == 3
    pq.write_table(pa.table({"id": [1]}), tmp_path / "other.parquet")
    with pytest.raises(UserError, match="not a table of runs"):
        gather([tmp_path / "other.parquet"])


def test_a_row_that_contradicts_itself_is_left_out_and_named(tmp_path):
    export(gather([make_run(tmp_path, seed=seed).parent for seed in (1, 2)]).records,
           tmp_path / "runs.parquet")  # fmt: skip
    rows = pq.read_table(tmp_path / "runs.parquet").to_pylist()
    rows[1]["seconds.total"] = float("nan")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "runs.parquet")
    gathered = gather([tmp_path / "runs.parquet"])
    assert [record.name for record in gathered.records] == [rows[0]["run"]]
    assert rows[1]["run"] in gathered.damaged[0]

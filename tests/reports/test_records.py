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

GARBLED = [
    (("class_il", "matrix"), []),
    (("class_il", "A_inf"), float("nan")),
    (("seconds", "per_step"), [1.0]),
    (("seconds",), None),
    (("seconds", "total"), float("nan")),
    (("environment",), None),
]


def test_damaged_runs_are_skipped_named_and_counted(tmp_path):
    sound = make_run(tmp_path, seed=1)
    cut = make_run(tmp_path, seed=2)
    (cut / "result.json").write_bytes((cut / "result.json").read_bytes()[:100])
    altered = make_run(tmp_path, seed=3)
    text = json.loads((altered / "result.json").read_text())
    text["class_il"]["A_inf"] += 0.1
    (altered / "result.json").write_text(json.dumps(text))
    other_spec = make_run(tmp_path, seed=4)
    text = json.loads((other_spec / "result.json").read_text())
    text["spec"]["lr"] = 0.5
    (other_spec / "result.json").write_text(json.dumps(text))
    lacking = make_run(tmp_path, seed=6)
    text = json.loads((lacking / "result.json").read_text())
    del text["task_il"]["before"]
    (lacking / "result.json").write_text(json.dumps(text))
    broken = {}
    for seed, (part, value) in enumerate(GARBLED, 20):
        broken[part] = make_run(tmp_path, seed=seed)
        text = json.loads((broken[part] / "result.json").read_text())
        where = text
        for key in part[:-1]:
            where = where[key]
        where[part[-1]] = value
        (broken[part] / "result.json").write_text(json.dumps(text))
    unfinished = make_run(tmp_path, seed=7)
    (unfinished / "result.json").unlink()
    altered_later = make_run(tmp_path, seed=8)
    (altered_later / "result.json").write_text((sound / "result.json").read_text() + " ")
    for run in (altered, other_spec, lacking, *broken.values()):  # else its digest tells
        list_anew(run)
    found = gather([tmp_path])
    assert [record.source for record in found.records] == [sound]
    assert found.unfinished == [str(unfinished)]
    for run, words in (
        (cut, "damaged"),
        (altered, "does not follow from its matrix"),
        (other_spec, "digest"),
        (lacking, "malformed"),
        (altered_later, "its content is not what the run stored"),
        *(
            (run, {"A_inf": "does not follow", "total": "contain nan"}.get(part[-1], "malformed"))
            for part, run in broken.items()
        ),
    ):
        (said,) = [line for line in found.damaged if line.startswith(str(run))]
        assert words in said
    assert len(found.damaged) == 5 + len(broken)


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

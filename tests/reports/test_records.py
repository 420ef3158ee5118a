"""What may be used of a runs folder, and what is said about the rest."""

import json
import shutil

import pytest

from metasp.errors import UserError
from metasp.reports.records import gather
from tests.reports.run_factories import make_run

GARBLED = [
    (("class_il", "matrix"), []),
    (("class_il", "A_inf"), float("nan")),
    (("seconds", "per_step"), [1.0]),
    (("seconds",), None),
    (("seconds", "total"), float("nan")),
    (("environment",), None),
    (("forgotten",), None),
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
    nothing = make_run(tmp_path, seed=5)
    (nothing / "result.json").write_text("[]")
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
    found = gather([tmp_path])
    assert [record.path for record in found.records] == [sound]
    assert found.unfinished == [str(unfinished)]
    for run, words in (
        (cut, "damaged"),
        (altered, "does not follow from its matrix"),
        (other_spec, "digest"),
        (nothing, "not an object"),
        (lacking, "malformed"),
        *(
            (run, {"A_inf": "does not follow", "total": "contain nan"}.get(part[-1], "malformed"))
            for part, run in broken.items()
        ),
    ):
        (said,) = [line for line in found.damaged if line.startswith(str(run))]
        assert words in said
    assert len(found.damaged) == 5 + len(broken)


def test_copies_of_a_run_count_once(tmp_path):
    run = make_run(tmp_path / "a", seed=1)
    shutil.copytree(run, tmp_path / "b" / run.name)
    assert len(gather([tmp_path / "a", tmp_path / "b", run]).records) == 1


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

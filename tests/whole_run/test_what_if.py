"""metasp what-if: the same bits as a run made so from the start."""

import json

import pytest

from metasp.cli import main
from metasp.errors import UserError
from metasp.experiment import Interrupted, prepare
from metasp.spec import RunSpec
from metasp.store import open_run
from metasp.whole_run.counterfactual import compare, prepare_without
from tests.helpers import assert_same_run, finish

SMALL = {"limit_per_class": 6, "tasks": 5, "memory": 20, "batch_size": 8, "memory_batch": 8,
         "backbone": "mlp", "width": 8, "threads": 1, "epochs": 2, "lr": 0.01}  # fmt: skip
CASES = [
    {"method": "er", "momentum": 0.9},
    {"method": "derpp", "backbone": "convnet", "optimizer": "adam", "lr": 1e-3},
    {"method": "metasp-rehsel", "width": 4},
    {"method": "er", "validation": 0.3, "patience": 1, "epochs": 4, "lr": 0.3},
    {"method": "gdumb", "settings": {"memory_epochs": 2}},
]


def original(folder, **settings):
    spec = RunSpec.from_dict({**SMALL, **settings})
    return finish(prepare(spec, folder, keep_checkpoints="task"))


@pytest.mark.parametrize("way", ["weight", "never"])
@pytest.mark.parametrize("settings", CASES, ids=lambda case: f"{case['method']}-{len(case)}")
def test_the_bits_are_those_of_a_run_from_the_start(tmp_path, way, settings):
    run = original(tmp_path / "one", **settings)
    table = run.memory_tables()[3]
    ids = [i for i, task in zip(table["id"], table["task"]) if task >= 2][:3]
    made = prepare_without(run, ids, way, None)
    assert made.start >= 2
    finish(made.experiment)
    again = finish(prepare(made.experiment.spec, tmp_path / "two", keep_checkpoints="last"))
    assert_same_run(made.experiment.directory, again)
    found = compare(made, None)
    assert found["model_before"] != found["model_after"]


def test_a_run_with_weights_goes_on_to_the_same_bits(tmp_path):
    run = original(tmp_path / "one", **CASES[3])
    ids = run.scores()[1]["id"][:2]
    made = prepare_without(run, ids, "weight", None)
    spec = made.experiment.spec
    stopped = prepare(spec, tmp_path / "two", stop=iter([False] * 21 + [True] * 9).__next__)
    with pytest.raises(Interrupted):
        finish(stopped)
    assert_same_run(finish(prepare(spec, tmp_path / "two")), finish(made.experiment))


def test_small_changes_are_as_predicted(tmp_path, capsys):
    run = original(tmp_path, method="er", lr=0.002)
    file = tmp_path / "ids.csv"
    ids = run.scores()[0]["id"][:1]
    file.write_text(f"id\n{ids[0]}\n")
    for flags in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["what-if", str(run.path), "--without", str(file), *flags])
        assert ended.value.code == 0
    *_, text = capsys.readouterr().out.strip().splitlines()
    found = json.loads(text)
    assert found["without"] == ids
    for task, change in found["measured"]["tasks"].items():
        assert found["predicted"]["tasks"][task] == pytest.approx(change, rel=0.2, abs=1e-4)
    report = json.loads(
        (open_run(run.path.parent / found["run"]).path / "what-if.json").read_text()
    )
    assert {**report, "moment": ""} == {**found, "moment": ""}


def test_what_cannot_be_left_out_is_refused(tmp_path):
    run = original(tmp_path, method="er", tasks=2, epochs=1)
    with pytest.raises(UserError, match="no training examples with id 999999"):
        prepare_without(run, [999999], "never", None)

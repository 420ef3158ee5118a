"""A stored spec says what was done."""

import pytest

from metasp.cli.options import spec_from
from metasp.experiment import prepare
from metasp.methods import METHODS
from metasp.methods.weighting import validation_sets
from metasp.spec import RunSpec
from metasp.train.from_spec import complete
from tests.helpers import finish

SMALL = {"method": "metasp", "epochs": 3, "memory": 30, "limit_per_class": 20, "threads": 1}


def epochs_of(run, task):
    """The number of epochs of each kind that a task had, by the log."""
    steps = [e for e in run.events() if e["event"] == "StepTaken" and e["task"] == task]
    kinds = {e["kind"] for e in steps}
    return {kind: len({e["epoch"] for e in steps if e["kind"] == kind}) for kind in kinds}


def test_what_follows_from_other_settings_is_stored_as_it_was_done(tmp_path, monkeypatch):
    seen = set()

    def watched(*given):
        sets = validation_sets(*given)
        seen.add(tuple(part.size for part in sets))
        return sets

    monkeypatch.setattr("metasp.methods.weighting.validation_sets", watched)
    run = finish(prepare(RunSpec(**SMALL), tmp_path))
    stored = RunSpec.from_toml(run.path / "spec.toml")
    assert stored.settings["influence_last"] == epochs_of(run, 1)["influence"] == 1
    sizes = stored.settings["validation_old"], stored.settings["validation_new"]
    assert seen == {sizes} == {(3, 3)}
    assert "rehearse_last" not in (run.path / "spec.toml").read_text()
    er = finish(prepare(RunSpec(**{**SMALL, "method": "er", "rehearse_last": 2}), tmp_path))
    assert er.spec().rehearse_last == epochs_of(er, 1)["rehearse"] == 2


@pytest.mark.parametrize("name", METHODS)
def test_completing_twice_changes_nothing(name, tiny):
    run = tiny(method=name)
    assert complete(run.spec, run.benchmark) == run.spec
    follows = METHODS[name].kind.schedules()
    assert run.spec.rehearse_last == (run.spec.epochs if follows else None)


def test_a_changed_flag_changes_what_follows_from_it(tmp_path, tiny):
    """Of a stored spec: what was given stays as it was."""
    file = tmp_path / "spec.toml"
    file.write_text(tiny(method="metasp", memory=50, settings={"every": 2}).spec.to_toml())
    same = spec_from(file, {})
    assert same.settings["every"] == 2
    assert complete(same, tiny(memory=50).benchmark) == RunSpec.from_toml(file)
    more = spec_from(file, {"memory": 200, "epochs": 30})
    done = complete(more, tiny(memory=50).benchmark)
    assert done.settings["validation_old"] == 20
    assert done.settings["influence_last"] == 3
    file.write_text(
        tiny(method="metasp", memory=50, settings={"validation_old": 7.0}).spec.to_toml()
    )
    assert spec_from(file, {"memory": 200}).settings["validation_old"] == 7.0

"""A model of one's own in a run: part of the spec by its kind, seeded by it, resumed exactly."""

from pathlib import Path

import pytest
import torch
from torch import nn

import metasp
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.experiment import Interrupted, prepare
from metasp.spec import RunSpec
from metasp.store import open_run
from metasp.store.checkpoints import newest

SETTINGS = {"tasks": 2, "epochs": 2, "limit_per_class": 20, "memory": 20, "threads": 1}


class Net(nn.Module):
    """Draws from the global stream in each pass, as dropout does."""

    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x))


class Other(Net):
    pass


def run(place, make=Net, **settings):
    return metasp.run(runs=place, model=make, method="er", **{**SETTINGS, **settings})


def weights(path):
    found = newest(Path(path))
    return {k: v.tobytes() for k, v in found.arrays.items() if k.startswith(("model/", "memory/"))}


def test_a_run_of_ones_own_model(tmp_path):
    state = torch.get_rng_state()
    first = run(tmp_path / "a")
    torch.randn(7)  # whatever else the caller draws
    second = run(tmp_path / "b", lambda: Net())
    assert first["spec"]["model_name"].endswith("test_own_model.Net")
    assert len(first["spec"]["model_digest"]) == 16
    assert first["spec"]["backbone"] == "own"
    assert first["class_il"] == second["class_il"]
    assert weights(first["run"]) == weights(second["run"])
    torch.set_rng_state(state)
    assert run(tmp_path / "a")["run"] == first["run"]  # read, not made again
    wider = run(tmp_path / "a", lambda: Net(13))
    assert wider["run"] != first["run"]
    assert wider["spec"]["model_digest"] != first["spec"]["model_digest"]


def test_the_callers_streams_do_not_move(tmp_path):
    before = torch.get_rng_state()
    run(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    whole = run(tmp_path / "a")
    spec = RunSpec(method="er", **SETTINGS)
    taken = []
    stopped = prepare(spec, tmp_path / "b", model=Net, stop=lambda: len(taken) == 5)
    steps = (taken.append(e) for e in stopped.events() if isinstance(e, StepTaken))
    with pytest.raises(Interrupted):
        list(steps)
    torch.manual_seed(99)
    again = run(tmp_path / "b")
    assert weights(again["run"]) == weights(whole["run"])
    assert again["class_il"] == whole["class_il"]


def test_another_model_is_refused(tmp_path):
    stored = dict(run(tmp_path)["spec"])
    for make in (Other, lambda: Net(13)):
        with pytest.raises(UserError, match=r"made with the model .*Net .*give the same model"):
            metasp.run(runs=tmp_path, model=make, **stored)
    with pytest.raises(UserError, match="model of its own"):
        metasp.run(runs=tmp_path, **stored)
    with pytest.raises(UserError, match="model and backbone are both given"):
        run(tmp_path, backbone="mlp")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Net(), "must be a function"),
        (lambda: 3, "model returned a int"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), r"\(2, 3\) for 2 .*of the 10"),
        (lambda: nn.Linear(5, 10), "cannot take the examples of split-digits"),
        (lambda: Net().requires_grad_(False), "nothing to learn"),
    ],
)
def test_models_that_cannot_learn(tmp_path, make, words):
    with pytest.raises(UserError, match=words):
        run(tmp_path, make)


def test_influence_on_ones_own_model(tmp_path):
    settings = {**SETTINGS, "limit_per_class": 10}
    result = metasp.run(runs=tmp_path, model=Net, method="metasp", **settings)
    assert open_run(Path(result["run"])).influence()["id"]

"""Labels that are not classes: any loss, any metric."""

import pytest
import torch
from torch import nn

from metasp.errors import UserError
from metasp.learner import ContinualLearner
from metasp.methods import METHODS
from tests.learner.factories import (
    KNOWN,
    everything,
    net,
    quick,
    regression,
    squares,
)


def test_regression_with_a_loss_and_a_metric_of_its_own(tmp_path):
    def worst(outputs, targets):
        return (outputs - targets).abs().amax(1)

    errors = {}
    for method in ("finetune", "metasp-rehsel"):
        learner = quick(
            net(2, inputs=3), method, loss_fn=squares, metric=worst, epochs=30, lr=0.02, memory=40
        )
        for shift in (0.0, 2.0):
            learner.learn(regression(shift), progress=False)
        assert learner.predict(regression(0.0)[0]).shape == (96, 2)
        errors[method] = learner.score(regression(0.0))
        said = learner.outputs(regression(0.0)[0])
        assert errors[method] == pytest.approx(float(worst(said, regression(0.0)[1]).mean()))
    assert errors["metasp-rehsel"] < errors["finetune"]
    label = learner.influence().column("label").to_pylist()[0]
    assert label == pytest.approx(regression(0.0)[1][0].tolist())
    learner.save(tmp_path / "file")
    with pytest.raises(UserError, match="pass loss_fn= again"):
        ContinualLearner.load(tmp_path / "file", net(2, inputs=3))
    again = ContinualLearner.load(
        tmp_path / "file", net(2, inputs=3), loss_fn=squares, metric=worst
    )
    for one in (learner, again):
        one.learn(regression(1.0), progress=False)
    assert everything(again) == everything(learner)


@pytest.mark.parametrize("method", [m for m in KNOWN if "classes" not in METHODS[m].kind.needs])
def test_every_method_that_can_learns_a_regression(method):
    selection = None if method in ("finetune", "gss") else "reservoir"
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
    learner = quick(
        model, method, loss_fn=lambda out, y: (out - y).square(), lr=0.05, selection=selection
    )
    for shift in (0.0, 2.0):
        inputs, targets = regression(shift)
        learner.learn((inputs, targets[:, 0].numpy()), progress=False)
    assert learner.score((inputs, targets[:, 0])) < float(targets[:, 0].square().mean())


@pytest.mark.parametrize("seed", [134, 223, 488])
def test_losses_far_above_one_do_not_make_a_step_long(seed):
    """From these starting weights the influences almost cancel 1 − I*: what is left to divide by
    made steps hundreds of times too long."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
    learner = quick(
        model,
        "metasp-only-s",
        loss_fn=lambda out, y: (out - y).square(),
        lr=0.05,
        selection="reservoir",
    )
    for shift in (0.0, 2.0):
        inputs, targets = regression(shift)
        learner.learn((inputs, targets[:, 0]), progress=False)
    assert learner.score((inputs, targets[:, 0])) < 0.6 * float(targets[:, 0].square().mean())


def test_what_needs_classes_says_so():
    for method, words in (("gem", "pass selection='reservoir'"), ("hal", "needs classes")):
        with pytest.raises(UserError, match=words):
            quick(net(2, inputs=3), method, loss_fn=squares).learn(regression(0.0))
    with pytest.raises(UserError, match="pass loss_fn="):
        quick(net(2, inputs=3)).learn(regression(0.0))

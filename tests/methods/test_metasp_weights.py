"""How MetaSP makes weights of influences, and what it does where these cannot be used."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from metasp.influence import Influence
from metasp.methods.weighting import (
    InfluenceWeights,
    as_written,
    released,
)
from tests.methods.factories import digits, train
from tests.methods.test_metasp import net, objective_of, small_learner


def influence(s, p):
    return Influence(torch.tensor(s), torch.tensor(p), "", 2.0, 0.5)


@pytest.mark.parametrize("rule", ["released", "as-written"])
@pytest.mark.parametrize("bad", [[torch.nan, 0.0, 0.0, 0.0], [50.0, 1.0, 50.0, 60.0]])
def test_weights_that_cannot_be_used_fall_back_and_are_counted(monkeypatch, rule, bad):
    """Among them: harm so large that the total is below zero, so that dividing by it would turn
    every sign."""
    model = net()
    learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = learner.current.take(torch.arange(4))
    twin = net()
    F.cross_entropy(twin(batch.inputs), batch.labels).backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()

    def measured(self, learner, objective, goals):
        return learner.losses(batch), replace(influence(bad, bad), old_loss=1e3)

    monkeypatch.setattr(InfluenceWeights, "measure", measured)
    step = learner.update(batch, InfluenceWeights(rule=rule, gamma=1.0))
    assert step.numbers["fallback"] == 1
    for got, want in zip(model.parameters(), twin.parameters()):
        assert torch.allclose(got, want, rtol=1e-12)


def test_weights_that_cancel_are_not_divided_by_what_is_left():
    """Of 1 − I* = (0.5, 0.5, −0.2) a step of 1.2/0.8; of (0.8, 0.8, −0.8) it would be of 3."""
    found = influence([0.5, 0.5, 1.2], [0.0, 0.0, 0.0])
    near = replace(found, old_loss=float(found.stability.norm()))
    assert torch.allclose(released(near, 1.0).weights, torch.tensor([0.5, 0.5, -0.2]) / 0.8)
    found = influence([0.2, 0.2, 1.8], [0.0, 0.0, 0.0])
    far = replace(found, old_loss=float(found.stability.norm()))
    assert torch.equal(released(far, 1.0).weights, torch.zeros(3))


def test_strength_scales_the_influence_and_leaves_harmful_examples_out():
    found = influence([0.3, -0.4, 0.0], [0.0, 0.0, 0.0])  # of norm 1/2, and the old loss is 2
    assert torch.allclose(released(found, 1.0, 0.5).weights, torch.tensor([0.4, 1.8, 1.0]) / 3.2)
    assert torch.allclose(released(found, 1.0, 2.0).weights, torch.tensor([0.0, 4.2, 1.0]) / 5.2)
    assert torch.allclose(as_written(found, 1.0, 2.0).weights, torch.tensor([0.0, 17 / 15, 1 / 3]))
    assert torch.allclose(released(found, 1.0, 0.0).weights, torch.full((3,), 1 / 3))


def test_running_weights_come_from_the_mean_of_all_measurements_so_far(monkeypatch):
    model = net()
    learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = learner.current.take(torch.arange(3))
    measured = [influence([0.3, -0.4, 0.0], [0.1] * 3), influence([0.1, 0.2, 0.5], [0.3] * 3)]
    todo = iter(measured)
    monkeypatch.setattr(InfluenceWeights, "measure", lambda *_: (learner.losses(batch), next(todo)))
    weigh, objective = InfluenceWeights(running=True, gamma=0.5), objective_of(learner, batch)
    first, second = (weigh(learner, objective).weights for _ in range(2))
    assert torch.allclose(first, released(measured[0], 0.5).weights)
    mean = influence([0.2, -0.1, 0.25], [0.2] * 3)
    assert torch.allclose(second, released(mean, 0.5).weights)
    assert not torch.allclose(second, released(measured[1], 0.5).weights, atol=1e-3)


def test_shuffled_weights_are_the_same_weights_elsewhere():
    def weights(shuffle):
        model = net()
        learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
        batch = learner.current.take(torch.arange(20))
        return InfluenceWeights(shuffle=shuffle)(learner, objective_of(learner, batch)).weights

    ordered, shuffled = weights(False), weights(True)
    assert not torch.equal(ordered, shuffled)
    assert torch.equal(ordered.sort().values, shuffled.sort().values)


def test_weighing_tells_the_outputs_of_the_batch():
    trainer = digits("metasp", limit_per_class=6)
    train(trainer, 8)
    learner = trainer.learner
    learner.model.eval()  # so that another pass says the same
    learner.current, learner.task = trainer.tasks[1].train, 1
    batch = learner.prepare(trainer.tasks[1].train.take(torch.arange(5)))
    objective = objective_of(learner, batch)
    weighed = InfluenceWeights(validation_old=3, validation_new=4)(learner, objective)
    torch.testing.assert_close(objective.outputs, learner.outputs(batch.inputs))
    torch.testing.assert_close(weighed.losses, learner.losses(batch))

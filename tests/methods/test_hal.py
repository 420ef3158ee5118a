"""HAL: anchors that would be forgotten, and predictions on them that are held."""

import copy
from dataclasses import replace

import pytest
import torch

from tests.methods.factories import changed, digits, everything, train, weights

ROWS, WEIGHT = torch.arange(8), 0.05


def with_anchors(**changes):
    trainer = digits("hal", momentum=changes.pop("momentum", 0.0), **changes)
    train(trainer, 14)
    assert trainer.position.task == 2
    return trainer


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("side", ["trial", "now"])
def test_a_step_is_the_trial_step_undone_and_the_anchors_added(momentum, side):
    settings = {"anchor_steps": 2, "anchor_weight": WEIGHT, "drift_at": side}
    trainer = with_anchors(momentum=momentum, settings=settings, lr=0.01)
    twin = copy.deepcopy(trainer)
    new = trainer.tasks[2].train.take(torch.arange(8))
    trainer.method.step(new, None)

    learner, anchors = twin.learner, twin.method.anchors
    model, optimizer = learner.model, learner.optimizer
    assert anchors.shape[0] == 4
    batch = learner.with_replay(new)
    optimizer.zero_grad()
    learner.loss_fn(model(batch.inputs), batch.labels).mean().backward()
    tried, trial_optimizer = copy.deepcopy((model, optimizer))
    for mine, theirs in zip(tried.parameters(), model.parameters()):
        mine.grad = theirs.grad.clone()
    trial_optimizer.step()
    trial, now = tried(anchors), model(anchors)
    moving, fixed = (trial, now) if side == "trial" else (now, trial)
    loss = WEIGHT * ((moving - fixed.detach()) ** 2).sum(1).mean()
    net = tried if side == "trial" else model
    parts = torch.autograd.grad(loss, list(net.parameters()))
    own = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert torch.cat([part.flatten() for part in parts]).norm() < own  # nothing is shortened
    for parameter, part in zip(model.parameters(), parts):
        parameter.grad += part
    optimizer.step()
    torch.testing.assert_close(weights(trainer), weights(twin), atol=1e-6, rtol=1e-5)


def test_predictions_on_anchors_are_tied():
    """A step with a heavier weight moves them less; differentiated at the other side, more."""

    def moved(weight, side="trial"):
        settings = {"anchor_steps": 2, "anchor_weight": weight, "drift_at": side}
        trainer = with_anchors(settings={"anchor_steps": 2}, lr=0.01)
        trainer.method.settings = type(trainer.method.settings)(**settings)
        model, anchors = trainer.learner.model, trainer.method.anchors
        start = copy.deepcopy(model)
        trainer.method.step(trainer.tasks[2].train.take(ROWS), None)
        with torch.no_grad():
            return float((copy.deepcopy(model)(anchors) - start(anchors)).norm())

    free, light, heavy = moved(0.0), moved(0.3), moved(2.0)
    assert heavy < light < free
    assert heavy < 0.9 * free
    assert moved(2.0, "now") > free


def test_the_pull_of_anchors_is_never_longer_than_the_gradient():
    trainer = with_anchors(settings={"anchor_steps": 2, "anchor_weight": 1e6}, lr=0.01)
    twin = copy.deepcopy(trainer)
    twin.method.anchors = None
    start = weights(trainer)
    for each in (trainer, twin):
        each.method.step(trainer.tasks[2].train.take(ROWS), None)
    pull = weights(trainer) - weights(twin)
    assert float(pull.norm()) == pytest.approx(float((weights(twin) - start).norm()), rel=1e-3)


def test_the_slope_of_an_anchor_is_its_formula():
    """∇x of ℓ(forgetful) − ℓ(now) − γ‖feature − mean feature‖², by plain autograd on copies."""
    trainer = with_anchors(settings={"feature_weight": 0.7, "anchor_steps": 1}, backbone="mlp")
    method, learner = trainer.method, trainer.learner
    starts, forgetful = method.starts(trainer.tasks[1]), method.forgetful()
    now, later = copy.deepcopy(learner.model), copy.deepcopy(learner.model)
    later.load_state_dict(forgetful, strict=False)
    x = starts.inputs.clone().requires_grad_()
    worth = learner.loss_fn(later(x), starts.labels) - learner.loss_fn(now(x), starts.labels)
    worth = worth - 0.7 * (now.features(x) - method.mean_feature).square().sum(1)
    (wanted,) = torch.autograd.grad(worth.sum(), x)
    torch.testing.assert_close(method.slope(starts, forgetful), wanted, atol=1e-6, rtol=1e-4)


def test_the_forgetful_copy_is_an_epoch_of_sgd_on_the_memory_and_leaves_no_trace():
    trainer = digits("hal", backbone="mlp", momentum=0.9, memory=10, memory_batch=4)
    train(trainer, 8)
    learner = trainer.learner
    state = learner.streams["anchors"].get_state()
    before = everything(trainer)
    found = trainer.method.forgetful()
    assert changed(before, everything(trainer)) in ([], ["streams/anchors"])

    learner.streams["anchors"].set_state(state)
    order = learner.memory.draw(len(learner.memory), learner.streams["anchors"])
    model = copy.deepcopy(learner.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=learner.optimizer.param_groups[0]["lr"],
                                momentum=0.9)  # fmt: skip
    for slots in order.split(4):
        held = learner.memory.read(slots)
        optimizer.zero_grad()
        learner.loss_fn(model(learner.transform(held.inputs)), held.labels).mean().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), atol=1e-6, rtol=1e-5)


def test_the_mean_feature_follows_the_new_examples_of_the_task():
    trainer = digits("hal", backbone="mlp", settings={"feature_memory": 0.25, "anchor_steps": 0})
    train(trainer, 8)
    method, model = trainer.method, trainer.learner.model
    method.begin_task(trainer.tasks[1])
    expected = None
    for start in (0, 8, 16):
        new = trainer.tasks[1].train.take(torch.arange(start, start + 8))
        mean = model.features(trainer.learner.transform(new.inputs)).mean(0).detach()
        expected = mean if expected is None else 0.25 * expected + 0.75 * mean
        method.step(new, None)
    torch.testing.assert_close(method.mean_feature, expected)


def test_a_task_whose_every_label_is_of_another_one_leaves_no_anchor():
    trainer = with_anchors()
    before = trainer.method.anchors.clone()
    trainer.method.end_task(replace(trainer.tasks[2], classes=(10_000,)))
    assert torch.equal(trainer.method.anchors, before)
    trainer.method.end_task(trainer.tasks[2])
    assert len(trainer.method.anchors) > len(before)


def test_a_forgotten_example_takes_its_anchor_along_and_no_other():
    method = with_anchors(settings={"anchor_steps": 2}).method
    anchors, ids, kept = method.anchors, method.anchors_ids, [0, 2, 3]
    assert len(ids) == 4
    method.forget(torch.tensor([int(ids[1]), 10_000]))
    assert torch.equal(method.anchors_ids, ids[kept])
    assert torch.equal(method.anchors, anchors[kept])

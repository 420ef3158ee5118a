"""The model, its gradients and the random state are bit for bit what they were."""

import random

import numpy as np
import pytest
import torch

from metasp.errors import UserError
from metasp.influence import (
    sp_influence,
    virtual_parameters,
    with_parameters,
)
from metasp.influence.functional import kept_random_state
from tests.influence.test_core import LOSS, SHAPES, problem


def snapshot(model):
    """All that may not change."""
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "needs": [p.requires_grad for p in model.parameters()],
        "objects": [id(p) for p in (*model.parameters(), *model.buffers())],
        "hooks": [len(m._forward_hooks) for m in model.modules()],
        "random": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [np.asarray(part).tolist() for part in np.random.get_state()],
    }


def same(a, b):
    """Equality down to the bits."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


def dressed(kind):
    """A model with gradients, a hook and one module in eval mode."""
    model, batch, old, new = problem(kind, torch.float32)
    LOSS(model(batch[0]), batch[1]).mean().backward()
    next(model.children()).register_forward_hook(lambda m, i, o: None)
    list(model.modules())[-1].eval()
    return model, batch, old, new


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("steps", [1, 2])
def test_nothing_moves(kind, steps):
    model, batch, old, new = dressed(kind)
    before = snapshot(model)
    sp_influence(model, LOSS, batch, old, new, lr=0.1, steps=steps)
    virtual_parameters(model, LOSS, batch, 0.1, steps=steps)
    assert same(before, snapshot(model))


@pytest.mark.parametrize("kind", ["convnet", "dropout", "custom", "overwriting"])
@pytest.mark.parametrize("at", range(1, 8))
def test_nothing_moves_when_the_loss_fails_half_way(kind, at):
    model, batch, old, new = dressed(kind)
    calls = []

    def failing(outputs, targets):
        calls.append(1)
        if len(calls) == at:
            raise ZeroDivisionError
        torch.rand(3), random.random(), np.random.rand()
        return LOSS(outputs, targets)

    before = snapshot(model)
    try:
        sp_influence(model, failing, batch, old, new, lr=0.1, steps=2)
    except ZeroDivisionError:
        assert len(calls) == at
    assert same(before, snapshot(model))


def test_the_stream_of_a_gpu_is_put_back_too(monkeypatch):
    streams, gpu = {"cuda:1": torch.tensor([7])}, torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: streams[str(device)])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: streams.update({str(device): state})
    )
    with kept_random_state(gpu):
        streams["cuda:1"] = torch.tensor([8])
    assert streams["cuda:1"].tolist() == [7]


def test_evaluating_elsewhere_leaves_the_statistics():
    model, batch, _, _ = problem("convnet")
    before = snapshot(model)
    with with_parameters(model, {}):
        model(batch[0])
    assert same(before, snapshot(model))


def test_virtual_parameters_of_no_step_are_refused():
    """They would be the model's own, to be written into by mistake."""
    model, batch, _, _ = problem("mlp")
    with pytest.raises(UserError, match="at least 1"):
        virtual_parameters(model, LOSS, batch, 0.1, steps=0)


def mistakes():
    """Each wrong call and a word its message must hold."""
    model, (x, y), old, new = problem("mlp")
    yield "empty batch", ((x[:0], y[:0]), old, new, {}), "batch is empty"
    yield "empty goal", ((x, y), (x[:0], y[:0]), new, {}), "old goal is empty"
    yield "lengths", ((x, y[:2]), old, new, {}), "one target per input"
    yield "not a pair", (x, old, new, {}), "pair"
    yield "device", ((x, y), (old[0].to("meta"), old[1]), new, {}), "one device"
    yield "scope", ((x, y), old, new, {"scope": "tail"}), "no trainable parameter"
    yield "steps", ((x, y), old, new, {"steps": 0}), "at least 1"
    yield "lr", ((x, y), old, new, {"lr": float("nan")}), "finite learning rate"
    yield "gamma", ((x, y), old, new, {"gamma": 2.0}), "between 0 and 1"
    lbfgs = torch.optim.LBFGS(model.parameters())
    yield "lbfgs", ((x, y), old, new, {"optimizer": lbfgs}), "cannot follow LBFGS"


@pytest.mark.parametrize(("call", "word"), [pytest.param(c, w, id=i) for i, c, w in mistakes()])
def test_a_mistake_gets_one_sentence(call, word):
    model = problem("mlp")[0]
    batch, old, new, options = call
    with pytest.raises(UserError, match=word) as caught:
        sp_influence(model, LOSS, batch, old, new, **{"lr": 0.1, **options})
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_a_loss_per_batch_is_refused():
    model, batch, old, new = problem("mlp")
    with pytest.raises(UserError, match='reduction="none"'):
        sp_influence(model, torch.nn.CrossEntropyLoss(), batch, old, new, lr=0.1)


def test_one_example_is_too_few_for_batch_normalisation():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3))
    one, two = ((torch.rand(n, 2), torch.zeros(n, dtype=torch.long)) for n in (1, 2))
    with pytest.raises(UserError, match=r"^batch normalisation needs two examples or more"):
        sp_influence(model, LOSS, one, two, two, lr=0.1)


def test_no_step_size_is_refused():
    model, batch, old, new = problem("mlp")
    with pytest.raises(UserError, match="give lr"):
        sp_influence(model, LOSS, batch, old, new)
    with pytest.raises(TypeError, match="optimiser"):
        sp_influence(model, LOSS, batch, old, new, lr=0.1, optimiser=None)


def test_a_number_that_is_not_finite_is_traced_to_its_example():
    model, (x, y), old, new = problem("mlp")
    x = x.clone()
    x[3] = float("nan")
    with pytest.raises(UserError, match=r"example 3 of the batch.*'body.weight'"):
        sp_influence(model, LOSS, (x, y), old, new, lr=0.1)
    bad = (old[0].clone(), old[1])
    bad[0][2] = float("inf")
    with pytest.raises(UserError, match=r"example 2 of the old goal.*'body.weight'"):
        sp_influence(model, LOSS, (x.nan_to_num(), y), bad, new, lr=0.1)


def test_an_infinite_slope_is_traced_to_its_batch():
    model, batch, old, new = problem("mlp")

    def steep(outputs, targets):  # finite losses, infinite gradient where the argument is zero
        rows = torch.arange(len(outputs)) != (4 if len(outputs) == 7 else 1)
        return (outputs[:, 0] ** 2 * rows).sqrt()

    with pytest.raises(UserError, match="the batch gives a number"):
        sp_influence(model, steep, batch, old, new, lr=0.1)

    def steep_goal(outputs, targets):
        return steep(outputs, targets) if len(outputs) == 5 else LOSS(outputs, targets)

    with pytest.raises(UserError, match="the old goal gives a number"):
        sp_influence(model, steep_goal, batch, old, new, lr=0.1)

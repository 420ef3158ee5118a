"""The pseudo step is the step that the user's optimizer would take, and its derivative is exact."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from metasp.errors import UserError
from metasp.influence import example_influence, record, sp_influence, virtual_parameters
from metasp.influence.pseudo_step import make_plan
from metasp.influence.updates import ELEMENTWISE, clipped
from tests.influence.test_core import LOSS, close, problem
from tests.oracles import influence_through_weights, torch_step

O = torch.optim  # noqa: E741
OPTIMIZERS = {
    "sgd": lambda p: O.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd maximize": lambda p: O.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, maximize=True),
    "adam": lambda p: O.Adam(p, 0.02),
    "adam decay": lambda p: O.Adam(p, 0.02, betas=(0.8, 0.95), weight_decay=0.05, maximize=True),
    "amsgrad": lambda p: O.Adam(p, 0.02, amsgrad=True, weight_decay=0.05),
    "adamw": lambda p: O.AdamW(p, 0.02, weight_decay=0.1),
    "adamw amsgrad": lambda p: O.AdamW(p, 0.02, weight_decay=0.1, amsgrad=True, foreach=True),
    "nadam": lambda p: O.NAdam(p, 0.02, weight_decay=0.05),
    "nadam decoupled": lambda p: O.NAdam(p, 0.02, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda p: O.RAdam(p, 0.02, weight_decay=0.05),
    "adamax": lambda p: O.Adamax(p, 0.02, weight_decay=0.05),
    "rmsprop": lambda p: O.RMSprop(p, 0.02, weight_decay=0.05),
    "rmsprop centered": lambda p: O.RMSprop(p, 0.02, centered=True, momentum=0.8),
    "adagrad": lambda p: O.Adagrad(p, 0.05, lr_decay=0.1, initial_accumulator_value=0.01),
    "adadelta": lambda p: O.Adadelta(p, 0.5, weight_decay=0.05),
    "asgd": lambda p: O.ASGD(p, 0.1, weight_decay=0.05),
}


@pytest.fixture(autouse=True)
def float64():
    """Torch's differentiable steps count steps in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def warmed(optimizer, model, batch, steps=7):
    """The optimizer with a state of its own, after some steps on noisy targets."""
    for i in range(steps):
        optimizer.zero_grad()
        LOSS(model(batch[0]), (batch[1] + i) % 4).mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_equals_the_gradient_through_the_optimizer(kind, steps):
    model, batch, old, new = problem("convnet")
    optimizer = warmed(OPTIMIZERS[kind](model.parameters()), model, new)
    found = example_influence(model, LOSS, batch, old, steps=steps, optimizer=optimizer)
    step = torch_step(optimizer, model)
    wanted = influence_through_weights(model, LOSS, batch, old, step, steps)
    assert wanted.abs().max() > 1e-6
    assert close(found, wanted, 1e-8)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_before_the_first_step(kind, steps):
    """A large eps, for the first step of Adam is else the sign of the gradient, whose derivative
    is lost in rounding."""
    model, batch, old, _ = problem("mlp")
    optimizer = OPTIMIZERS[kind](model.parameters())
    for group in optimizer.param_groups:
        group["eps"] = 1e-2
    before = copy.deepcopy(optimizer.state_dict())
    found = example_influence(model, LOSS, batch, old, steps=steps, optimizer=optimizer)
    assert str(optimizer.state_dict()) == str(before)
    if kind.startswith("sgd"):  # whose differentiable step is cut off at the first gradient
        for p in model.parameters():
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    step = torch_step(optimizer, model)
    wanted = influence_through_weights(model, LOSS, batch, old, step, steps)
    assert close(found, wanted, 1e-8)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("kind", [O.Adam, O.AdamW, O.NAdam, O.RMSprop, O.Adagrad])
def test_groups_tied_weights_and_frozen_ones(kind, steps):
    model, batch, old, new = problem("tied")
    model.head.bias.requires_grad_(False)
    optimizer = kind(
        [
            {"params": [model.first.weight, model.first.bias], "lr": 0.01, "weight_decay": 0.1},
            {"params": [model.head.weight, model.head.bias], "lr": 0.03, "eps": 1e-3},
        ]
    )  # and second.bias is in none
    warmed(optimizer, model, new, 3)
    names = {"first.weight", "first.bias", "head.weight"}
    found = example_influence(model, LOSS, batch, old, steps=steps, optimizer=optimizer)
    step = torch_step(optimizer, model)
    wanted = influence_through_weights(model, LOSS, batch, old, step, steps, names)
    assert close(found, wanted, 1e-8)
    recorded = record(model, LOSS, batch)
    r = sp_influence(
        model, LOSS, batch, old, new, steps=steps, optimizer=optimizer, recorded=recorded
    )
    assert close(r.stability, wanted, 1e-8)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_virtual_parameters_are_where_it_goes(kind):
    model, batch, _, new = problem("convnet")
    optimizer = warmed(OPTIMIZERS[kind](model.parameters()), model, new)
    state = copy.deepcopy(optimizer.state_dict())
    found = virtual_parameters(model, LOSS, batch, optimizer, steps=3)
    assert str(state) == str(optimizer.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        LOSS(model(batch[0]), batch[1]).mean().backward()
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_cold_plan_is_that_of_a_new_optimizer(kind):
    model, _, _, new = problem("mlp")
    grads = {k: torch.ones_like(p) for k, p in model.named_parameters()}
    used = warmed(OPTIMIZERS[kind](model.parameters()), model, new)
    plans = [make_plan(model, one) for one in (used, OPTIMIZERS[kind](model.parameters()))]
    cold, fresh = (
        p.step(p.params, grads, p.update.state).theta for p in (plans[0].cold(), plans[1])
    )
    assert all(torch.equal(cold[name], fresh[name]) for name in grads)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradients_that_are_always_zero_do_no_harm(kind, steps):
    """Weights on an input that is always zero have no gradient and no history: the influence is
    that of the network without them."""
    model, batch, old, new = problem("mlp")
    batch, old, new = ((x * (torch.arange(6) < 5), y) for x, y in (batch, old, new))
    small = copy.deepcopy(model)
    small.body = nn.Linear(5, 8)
    small.body.load_state_dict({**model.body.state_dict(), "weight": model.body.weight[:, :5]})
    few = [(x[:, :5], y) for x, y in (batch, old, new)]
    for started in (False, True):
        own, other = (OPTIMIZERS[kind](m.parameters()) for m in (model, small))
        for group in (*own.param_groups, *other.param_groups):
            group["eps"] = 1e-2
        if started:
            warmed(own, model, new)
            warmed(other, small, few[2])
        found = example_influence(model, LOSS, batch, old, steps=steps, optimizer=own)
        wanted = example_influence(small, LOSS, few[0], few[1], steps=steps, optimizer=other)
        assert close(found, wanted, 1e-8)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("limit", [0.05, 100.0])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_clipped_gradients(kind, limit, steps):
    model, batch, old, new = problem("mlp")
    optimizer = warmed(OPTIMIZERS[kind](model.parameters()), model, new)
    inner = torch_step(optimizer, model)

    def step(theta, grads, state):
        norm = torch.cat([g.flatten() for g in grads.values()]).norm()
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        return inner(theta, {k: g * scale for k, g in grads.items()}, state)

    found = example_influence(
        model, LOSS, batch, old, steps=steps, optimizer=optimizer, clip_norm=limit
    )
    assert close(found, influence_through_weights(model, LOSS, batch, old, step, steps), 1e-8)


def test_another_learning_rate():
    model, batch, old, new = problem("mlp")
    optimizer = warmed(O.AdamW(model.parameters(), 0.02), model, new)
    found = example_influence(model, LOSS, batch, old, lr=0.05, optimizer=optimizer)
    optimizer.param_groups[0]["lr"] = 0.05
    wanted = example_influence(model, LOSS, batch, old, optimizer=optimizer)
    assert torch.equal(found, wanted)


def test_settings_as_tensors_and_schedulers():
    """A rate that is a tensor and a scheduler's wrapper are no part of the step; a hook may be."""
    model, batch, old, new = problem("mlp")
    plain = warmed(O.Adam(model.parameters(), 0.02), model, new)
    wanted = example_influence(model, LOSS, batch, old, steps=2, optimizer=plain)
    dressed = O.Adam(model.parameters(), torch.tensor(0.02))
    dressed.load_state_dict(plain.state_dict())
    ExponentialLR(dressed, 0.5)
    found = example_influence(model, LOSS, batch, old, steps=2, optimizer=dressed)
    assert close(found, wanted, 1e-12)
    dressed.register_step_pre_hook(lambda *_: None)
    with pytest.raises(UserError, match="hooks around its step"):
        example_influence(model, LOSS, batch, old, steps=2, optimizer=dressed)


class Normalised(O.Adam):
    """A step of one's own."""

    def step(self, closure=None):
        return super().step(closure)


class Renamed(O.AdamW):
    """Adds nothing."""


def test_what_is_not_elementwise_is_refused():
    model, batch, old, new = problem("mlp")
    params = list(model.parameters())
    refused = [O.LBFGS(params), O.Rprop(params), O.SparseAdam(params), O.Adafactor(params)]
    refused += [O.Muon([model.body.weight]), Normalised(params)]
    for optimizer in refused:
        with pytest.raises(UserError, match=f"cannot follow {type(optimizer).__name__}") as caught:
            sp_influence(model, LOSS, batch, old, new, optimizer=optimizer)
        assert "AdamW" in str(caught.value)
    sp_influence(model, LOSS, batch, old, new, optimizer=Renamed(params))
    with pytest.raises(UserError, match="clip_norm is 0"):
        sp_influence(model, LOSS, batch, old, new, lr=0.1, clip_norm=0)


def test_every_optimizer_that_is_accepted_is_tested():
    p = [nn.Parameter(torch.zeros(1))]
    assert {type(make(p)) for make in OPTIMIZERS.values()} == set(ELEMENTWISE)


def test_a_gradient_of_just_the_length_is_not_clipped():
    """Nor is what goes back through it: the shortening begins above."""
    grads, ahead = {"a": torch.tensor([1.0]).double()}, {"a": torch.tensor([[3.0]]).double()}
    norm = grads["a"].norm()
    for limit, factor in ((norm + 1e-6, 1.0), (2.0, 1.0), (0.5, 0.0)):
        found, back = clipped(grads, limit)
        assert float(found["a"]) == pytest.approx(min(1.0, float(limit)), abs=1e-5)
        assert float(back(ahead)["a"]) == pytest.approx(3 * factor, abs=1e-5)

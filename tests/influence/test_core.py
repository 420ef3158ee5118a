"""The influence equals the gradient through the example weights, on every kind of model."""

import copy
from collections import OrderedDict
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from metasp.errors import UserError
from metasp.influence import example_influence, record, sp_influence, virtual_parameters
from metasp.influence.jvp_rules import RULES
from tests.influence import nets
from tests.oracles import influence_through_weights, sgd

LOSS = partial(F.cross_entropy, reduction="none")
SHAPES = {
    "mlp": (nets.MLP, (6,)),
    "convnet": (nets.ConvNet, (3, 8, 8)),
    "tracking": (nets.Tracking, (3, 8, 8)),
    "resnet18": (nets.ResNet18, (3, 8, 8)),
    "transformer": (nets.Transformer, (5, 6)),
    "encoder": (nets.Encoder, (5, 8)),
    "dropout": (nets.Dropping, (6,)),
    "tied": (nets.Tied, (6,)),
    "custom": (nets.Custom, (6,)),
    "overwriting": (nets.Overwriting, (6,)),
}
PATHS = {
    "mlp": "tape",
    "convnet": "tape",
    "tracking": "tape",
    "resnet18": "tape",
    "transformer": "tape",
    "encoder": "tape",
    "dropout": "tape",
    "tied": "tape",
    "custom": "double-backward",
    "overwriting": "double-backward",
}


def problem(kind, dtype=torch.float64, n=7, goal=5):
    """A model and three batches, the same each time."""
    make, shape = SHAPES[kind]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = make().to(dtype)
        with torch.no_grad():  # trained-looking scales and shifts, so that their terms matter
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))

        def draw(size):
            return torch.randn(size, *shape, dtype=dtype), torch.randint(4, (size,))

        return model, draw(n), draw(goal), draw(goal + 1)


def close(found, wanted, tolerance):
    return (found - wanted).abs().max() <= tolerance * wanted.abs().max()


def test_a_scope_is_a_prefix_of_names_and_no_other_part():
    model = nn.Sequential(OrderedDict(ahead=nn.Linear(6, 5), head=nn.Linear(5, 4)))
    batch = (torch.randn(3, 6), torch.tensor([0, 1, 2]))
    moved = virtual_parameters(model, LOSS, batch, 0.1, scope="head")
    assert set(moved) == {"head.weight", "head.bias"}
    assert set(virtual_parameters(model, LOSS, batch, 0.1, scope="ahead.b")) == {"ahead.bias"}
    with pytest.raises(UserError, match="no trainable parameter is in scope"):
        virtual_parameters(model, LOSS, batch, 0.1, scope="ead")


@pytest.mark.parametrize("kind", SHAPES)
def test_equals_the_gradient_through_the_weights(kind):
    model, batch, old, new = problem(kind)
    torch.manual_seed(5)
    r = sp_influence(model, LOSS, batch, old, new, lr=0.1)
    with sdpa_kernel(SDPBackend.MATH):
        for found, goal in ((r.stability, old), (r.plasticity, new)):
            wanted = influence_through_weights(model, LOSS, batch, goal, sgd(0.1))
            assert wanted.abs().max() > 1e-6
            assert close(found, wanted, 1e-8)
    assert r.path == PATHS[kind]


@pytest.mark.parametrize("func", [F.dropout, F.batch_norm])
def test_a_rule_that_does_not_fit_the_kernel_is_replaced_exactly(func, monkeypatch):
    """Other devices have kernels that our rules decline: the call is repeated, with the same mask
    and without a trace in the running statistics."""
    monkeypatch.setitem(RULES, func, lambda out, *args, **kwargs: None)
    _, batch, old, new = problem("mlp")
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)]
    model = nn.Sequential(*layers).double()
    fresh, random = copy.deepcopy(model), torch.get_rng_state()
    recorded = record(model, LOSS, batch)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    r = sp_influence(model, LOSS, batch, old, new, lr=0.1, recorded=recorded)
    assert r.path == "tape"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for found, goal in ((r.stability, old), (r.plasticity, new)):
        torch.set_rng_state(random)
        assert close(found, influence_through_weights(fresh, LOSS, batch, goal, sgd(0.1)), 1e-8)


@pytest.mark.parametrize("kind", ["mlp", "convnet", "transformer", "dropout", "tied"])
def test_float32(kind):
    model, batch, old, _ = problem(kind, torch.float32)
    found = example_influence(model, LOSS, batch, old, lr=0.1)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = influence_through_weights(model, LOSS, batch, old, sgd(0.1))
    assert close(found, wanted, 1e-3)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("steps", [2, 3, 4, 5])
def test_several_steps(kind, steps):
    model, batch, old, _ = problem(kind)
    found = example_influence(model, LOSS, batch, old, lr=0.2, steps=steps)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = influence_through_weights(model, LOSS, batch, old, sgd(0.2), steps)
    assert close(found, wanted, 1e-8)


SETTINGS = {
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.8, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"weight_decay": 0.05},
    "all": {"momentum": 0.7, "nesterov": True, "weight_decay": 0.02},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_step_of_an_optimizer(settings, warm, steps):
    model, batch, old, new = problem("convnet")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **SETTINGS[settings])
    if warm:
        for _ in range(2):
            optimizer.zero_grad()
            LOSS(model(new[0]), new[1]).mean().backward()
            optimizer.step()
    state = {k: optimizer.state[p].get("momentum_buffer") for k, p in model.named_parameters()}
    buffers = {k: b for k, b in state.items() if b is not None}
    found = example_influence(model, LOSS, batch, old, steps=steps, optimizer=optimizer)
    step = sgd(0.1, buffers=buffers, **SETTINGS[settings])
    assert close(found, influence_through_weights(model, LOSS, batch, old, step, steps), 1e-8)


def test_parameter_groups_each_have_their_step():
    model, batch, old, _ = problem("mlp")
    groups = [
        {"params": model.body.parameters(), "lr": 0.3, "weight_decay": 0.1},
        {"params": [model.head.weight], "lr": 0.05},
    ]
    optimizer = torch.optim.SGD(groups)
    rates = {"body.weight": (0.3, 0.1), "body.bias": (0.3, 0.1), "head.weight": (0.05, 0.0)}

    def step(theta, grads, state):
        return {k: t - rates[k][0] * (grads[k] + rates[k][1] * t) for k, t in theta.items()}, {}

    found = example_influence(model, LOSS, batch, old, steps=3, optimizer=optimizer)
    wanted = influence_through_weights(model, LOSS, batch, old, step, 3, names=set(rates))
    assert close(found, wanted, 1e-8)


@pytest.mark.parametrize("kind", ["mlp", "convnet", "resnet18", "custom"])
@pytest.mark.parametrize("steps", [1, 3])
def test_scope_moves_only_that_part(kind, steps):
    model, batch, old, new = problem(kind)
    names = {k for k, _ in model.named_parameters() if k.startswith("head")}
    wanted = influence_through_weights(model, LOSS, batch, old, sgd(0.1), steps, names)
    by_prefix = example_influence(model, LOSS, batch, old, lr=0.1, steps=steps, scope="head")
    by_test = example_influence(
        model, LOSS, batch, old, lr=0.1, steps=steps, scope=lambda name: name in names
    )
    recorded = record(model, LOSS, batch)
    r = sp_influence(
        model, LOSS, batch, old, new, lr=0.1, steps=steps, scope="head", recorded=recorded
    )
    for k, p in model.named_parameters():
        p.requires_grad_(k in names)
    frozen = example_influence(model, LOSS, batch, old, lr=0.1, steps=steps)
    for found in (by_prefix, by_test, frozen, r.stability):
        assert close(found, wanted, 1e-8)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_recorded_pass_is_the_ordinary_one(kind):
    model, batch, old, new = problem(kind, torch.float32)
    twin = problem(kind, torch.float32)[0]
    torch.manual_seed(8)
    r = sp_influence(model, LOSS, batch, old, new, lr=0.1)
    recorded = record(model, LOSS, batch)
    shared = sp_influence(model, LOSS, batch, old, new, lr=0.1, recorded=recorded)
    (r.fused.detach() * recorded.losses).sum().backward()
    torch.manual_seed(8)
    losses = LOSS(twin(batch[0]), batch[1])
    (r.fused.detach() * losses).sum().backward()
    assert torch.equal(losses, recorded.losses)
    assert torch.equal(shared.stability, r.stability)
    assert torch.equal(shared.plasticity, r.plasticity)
    for (name, a), b in zip(model.named_buffers(), twin.buffers()):
        assert torch.equal(a, b), name
    for (name, p), q in zip(model.named_parameters(), twin.parameters()):
        assert torch.equal(p.grad, q.grad), name


@pytest.mark.parametrize("kind", ["convnet", "resnet18"])
def test_channels_last(kind):
    model, batch, old, new = problem(kind)
    wanted = sp_influence(model, LOSS, batch, old, new, lr=0.1)
    last = [(x.to(memory_format=torch.channels_last), y) for x, y in (batch, old, new)]
    found = sp_influence(model.to(memory_format=torch.channels_last), LOSS, *last, lr=0.1)
    assert found.path == "tape"
    assert close(found.stability, wanted.stability, 1e-8)
    assert close(found.plasticity, wanted.plasticity, 1e-8)


def test_a_fixed_gamma_and_the_losses_of_the_goals():
    model, batch, old, new = problem("mlp")
    r = sp_influence(model, LOSS, batch, old, new, lr=0.1, gamma=1.0)
    assert torch.equal(r.fused, r.stability)
    assert r.gamma == 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    LOSS(model(batch[0]), batch[1]).mean().backward()
    optimizer.step()
    assert r.old_loss == pytest.approx(LOSS(model(old[0]), old[1]).mean().item(), rel=1e-12)
    assert r.new_loss == pytest.approx(LOSS(model(new[0]), new[1]).mean().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 3])
def test_at_a_stationary_point_rounding_is_not_a_mistake_of_the_model(dtype, steps):
    """Soft targets equal to the predictions: all that is left of the gradient is rounding."""
    model, (x, _), (goal, labels), _ = problem("mlp", dtype)
    batch, goal = (x, model(x).softmax(1).detach()), (goal, F.one_hot(labels, 4).to(dtype))
    found = example_influence(model, LOSS, batch, goal, lr=0.1, steps=steps)
    assert found.abs().max() < 10 * torch.finfo(dtype).eps


class Reused(nn.Module):
    """A head used by the goals alone, and a parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.a(x) if len(x) == 7 else self.b(x) + self.a(x)


@pytest.mark.parametrize("steps", [1, 3])
def test_parameters_that_the_batch_does_not_use(steps):
    _, batch, old, _ = problem("mlp")
    with torch.random.fork_rng():
        model = Reused().double()
    found = example_influence(model, LOSS, batch, old, lr=0.1, steps=steps)
    wanted = influence_through_weights(model, LOSS, batch, old, sgd(0.1), steps)
    assert close(found, wanted, 1e-8)

"""One network, written in several ways: the same influence, and the model is left as it was."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from metasp.errors import UserError
from metasp.influence import sp_influence, virtual_parameters
from tests.influence.test_core import LOSS, close
from tests.influence.test_untouched import same, snapshot
from tests.oracles import influence_through_weights, sgd


class Plain(nn.Module):
    """Linear, BatchNorm, the same two again, head."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)

    def block(self, x):
        return torch.tanh(self.norm(self.body(x)))

    def forward(self, x):
        return self.head(self.block(self.block(x)))


class TwoNames(Plain):
    """Its layers are members of a Sequential too."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(self.body, self.norm, nn.Tanh())
        self.twice = nn.ModuleList([self.net] * 2)
        self.last = self.head

    def forward(self, x):
        for part in self.twice:
            x = part(x)
        return self.last(x)


class Checkpointed(Plain):
    """Computes its middle again in the backward pass, to save memory."""

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=False)
        return self.head(x)


class Detached(Plain):
    """Centred by means that no gradient goes through."""

    def block(self, x):
        h = self.body(x)
        return torch.tanh(self.norm(h) - self.away(h))

    def away(self, h):
        return h.detach().square().mean(0)


class WithoutGradient(Detached):
    """The same, in the words of a `no_grad` block."""

    def away(self, h):
        with torch.no_grad():
            return h.square().mean(0)


class Overwriting(WithoutGradient):
    """And it writes into a slice, which breaks the tape: nothing else tells what it detaches from a
    wrong gradient."""

    def block(self, x):
        h = self.body(x) * 1.0
        h[:, 0] = h[:, 0] * 1.0
        return torch.tanh(self.norm(h) - self.away(h))


class Skipping(Plain):
    """Half of a layer's input is added to its output."""

    def block(self, x):
        return torch.tanh(self.norm(self.body(x)) + x * 0.5 - self.body(x) * 2.0)


class SkippingByAlpha(Skipping):
    """The same, in the words of `add` and `sub`."""

    def block(self, x):
        total = torch.add(self.norm(self.body(x)), x, alpha=0.5)
        return torch.tanh(total.sub(self.body(x), alpha=2.0))


PAIRS = {
    "two names": (TwoNames, Plain),
    "checkpointed": (Checkpointed, Plain),
    "alpha": (SkippingByAlpha, Skipping),
    "no_grad": (WithoutGradient, Detached),
}


def problem(kind):
    """The model, its plain twin with the same values, and three batches."""
    torch.manual_seed(0)
    model, twin = (make().double() for make in PAIRS[kind])
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
            own[name].copy_(parameter)
    batches = [(torch.randn(n, 6).double(), torch.arange(n) % 4) for n in (7, 5, 6)]
    return model, twin, batches


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("kind", PAIRS)
def test_the_influence_is_that_of_the_plain_twin_and_nothing_moves(kind, steps):
    model, twin, (batch, old, new) = problem(kind)
    before = snapshot(model)
    found = sp_influence(model, LOSS, batch, old, new, lr=0.5, steps=steps)
    moved = virtual_parameters(model, LOSS, batch, 0.5, steps=steps)
    assert same(before, snapshot(model))
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    for values, goal in ((found.stability, old), (found.plasticity, new)):
        wanted = influence_through_weights(twin, LOSS, batch, goal, sgd(0.5), steps)
        assert close(values, wanted, 1e-8)
    for name, value in virtual_parameters(twin, LOSS, batch, 0.5, steps=steps).items():
        torch.testing.assert_close(moved[name], value)


@pytest.mark.parametrize("steps", [1, 2])
def test_what_is_detached_where_the_tape_breaks_is_refused(steps):
    torch.manual_seed(0)
    batches = [(torch.randn(n, 6).double(), torch.arange(n) % 4) for n in (7, 5, 6)]
    with pytest.raises(UserError, match="not the slope of its loss"):
        sp_influence(Overwriting().double(), LOSS, *batches, lr=0.5, steps=steps)


@pytest.mark.parametrize("dress", ["pruned", "spectral"])
def test_what_a_hook_makes_of_a_parameter_is_left_as_it_was(dress):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    if dress == "pruned":
        prune.l1_unstructured(layer, "weight", 0.5)
    else:
        layer = nn.utils.spectral_norm(layer)
    batches = [(torch.randn(n, 6), torch.arange(n) % 4) for n in (7, 5, 6)]
    before = layer.weight.detach().clone()
    sp_influence(layer, LOSS, *batches, lr=1.0)
    assert torch.equal(layer.weight, before)

"""The influence equals the gradient through the example weights, on every kind of model."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from metasp.influence import example_influence, record, sp_influence
from tests.influence import nets
from tests.oracles import influence_through_weights, sgd

LOSS = partial(F.cross_entropy, reduction="none")
SHAPES = {
    "mlp": (nets.MLP, (6,)),
    "convnet": (nets.ConvNet, (3, 8, 8)),
    "resnet18": (nets.ResNet18, (3, 8, 8)),
    "transformer": (nets.Transformer, (5, 6)),
    "encoder": (nets.Encoder, (5, 8)),
    "dropout": (nets.Dropping, (6,)),
    "tied": (nets.Tied, (6,)),
    "custom": (nets.Custom, (6,)),
    "overwriting": (nets.Overwriting, (6,)),
}
PATHS = {
    "mlp": "dot",
    "convnet": "tape",
    "resnet18": "tape",
    "transformer": "dot",
    "encoder": "tape",
    "dropout": "dot",
    "tied": "dot",
    "custom": "double-backward",
    "overwriting": "forward-mode",
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


@pytest.mark.parametrize("kind", ["mlp", "convnet", "transformer", "dropout", "tied"])
def test_float32(kind):
    model, batch, old, _ = problem(kind, torch.float32)
    found = example_influence(model, LOSS, batch, old, lr=0.1)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = influence_through_weights(model, LOSS, batch, old, sgd(0.1))
    assert close(found, wanted, 1e-3)

"""A network that is written in another way is trained to the same numbers by every method."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from metasp import ContinualLearner
from tests.learner.factories import SHORT, pair

# Methods with passes of their own beside that of `update`, and one without.
OWN_PASSES = ("er", "agem", "gem", "gss", "mir", "hal", "gmed", "icarl", "cls-er", "metasp-rehsel")


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 4)

    def hidden(self, x):
        return torch.tanh(self.body(x))

    def forward(self, x):
        return self.head(self.hidden(x))


class TwoNames(Plain):
    """Its layers are members of a Sequential too."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(self.body, nn.Tanh(), self.head)

    def forward(self, x):
        return self.net(x)


class Checkpointed(Plain):
    """Computes its hidden layer again in the backward pass."""

    def hidden(self, x):
        return checkpoint(super().hidden, x, use_reentrant=False)


def trained(make, method):
    """The model after two tasks."""
    torch.manual_seed(0)
    settings = SHORT.get(method, {})
    learner = ContinualLearner(make(), method, memory=20, epochs=2, settings=settings)
    for task in range(2):
        learner.learn(pair(task, 60), progress=False)
    return learner.model


@pytest.mark.parametrize("make", [TwoNames, Checkpointed])
@pytest.mark.parametrize("method", OWN_PASSES)
def test_the_same_network_written_otherwise_learns_the_same(method, make):
    named = dict(trained(make, method).named_parameters())
    for name, parameter in trained(Plain, method).named_parameters():
        assert isinstance(named[name], nn.Parameter)
        torch.testing.assert_close(named[name], parameter, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("selection", ["reservoir", "ring", "greedy", "task-balanced"])
def test_what_is_learned_again_is_held_once(selection):
    learner = ContinualLearner(Plain(), "er", memory=30, epochs=1, selection=selection)
    inputs, labels = pair(0, 20)
    for _ in range(2):
        learner.learn((inputs, labels), ids=torch.arange(20), progress=False)
    held = learner.memory.table().column("id").to_pylist()
    assert held
    assert len(held) == len(set(held))

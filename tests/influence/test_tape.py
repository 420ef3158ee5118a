"""The tape by itself: tangents of what was recorded, or a reason why there are none."""

import weakref

import torch
import torch.nn.functional as F
from torch.func import functional_call, jvp

from metasp.influence.fallback import tensors_in
from metasp.influence.tape import Recorder

N = 5


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


class Net(torch.nn.Module):
    """A linear layer, an operation without a rule, and a parameter that no loss needs."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4).double()
        self.scale, self.unused = (torch.nn.Parameter(normal(4)) for _ in range(2))

    def forward(self, x):
        return torch.tanh(self.layer(x)) * self.scale


def recorded(change=lambda out: out):
    net, x, y = Net(), normal(N, 3), torch.arange(N) % 4
    with Recorder(x.device) as recorder:
        losses = F.cross_entropy(change(net(x)), y, reduction="none")
    return net, x, y, losses, recorder.finish(losses)


def tangents_by_jvp(net, x, y, moves):
    params = {name: p.detach() for name, p in net.named_parameters()}

    def losses(params):
        return F.cross_entropy(functional_call(net, params, (x,)), y, reduction="none")

    return jvp(losses, (params,), (moves,))[1]


def test_pushed_tangents_are_those_of_forward_mode():
    net, x, y, _, tape = recorded()
    assert tape.usable()
    moves = [{name: normal(*p.shape) for name, p in net.named_parameters()} for _ in range(2)]
    by_leaf = {id(p): torch.stack([each[name] for each in moves])
               for name, p in net.named_parameters()}  # fmt: skip
    seeds = tape.seeds(by_leaf)
    assert len(seeds) == 3  # the unused parameter is not on the tape
    wanted = torch.stack([tangents_by_jvp(net, x, y, each) for each in moves])
    torch.testing.assert_close(tape.push(seeds, (2, N)), wanted)


def test_a_saved_value_that_changes_later_breaks_it():
    net, *_, tape = recorded()
    assert tape.usable()
    with torch.no_grad():
        net.layer.weight.add_(1.0)
    assert not tape.usable()


def test_no_value_is_kept_that_nobody_needs():
    """A ReLU is linearised by its result: what enters it may go."""
    layer, x = torch.nn.Linear(3, 4).double(), normal(N, 3)
    with Recorder(x.device) as recorder:
        entering = layer(x)
        gone = weakref.ref(entering)
        losses = F.relu(entering).sum(1)
        del entering
    tape = recorder.finish(losses)
    assert tape.usable()
    assert gone() is None


def test_tensors_in_any_nest_are_listed_in_order():
    a, b, c, d = (torch.tensor(float(i)) for i in range(4))
    named = torch.max(torch.eye(2), 1)  # a named tuple
    tree = ([a, (b, 5)], {"x": c, "y": [d, None]}, "text", named)
    assert [t is u for t, u in zip(tensors_in(tree), (a, b, c, d, *named))] == [True] * 6

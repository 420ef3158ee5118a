"""The tape by itself: tangents of what was recorded, or a reason why there are none."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, jvp

from metasp.influence.fallback import again, tensors_in
from metasp.influence.jvp_rules import Unsupported
from metasp.influence.second_order import Layout
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


def test_what_does_not_reach_the_losses_has_no_tangent():
    net, x, y = Net(), normal(N, 3), torch.arange(N) % 4
    with Recorder(x.device) as recorder:
        torch.sin(net.unused)
        losses = F.cross_entropy(net(x), y, reduction="none")
    tape = recorder.finish(losses)
    seeds = tape.seeds({id(net.unused): normal(2, 4)})
    assert len(seeds) == 1
    assert torch.equal(tape.push(seeds, (2, N)), torch.zeros(2, N).double())


def overwritten(out):
    out = out * 1.0
    out[:, 0] = out[:, 1] * 2.0
    return out


def changed_by_another_name(out):
    out = out * 1.0
    out.detach().mul_(2.0)
    return out * 1.0


@pytest.mark.parametrize("change", [overwritten, changed_by_another_name])
def test_what_the_tape_cannot_follow_breaks_it(change):
    tape = recorded(change)[-1]
    assert not tape.usable()


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


def test_autocast_breaks_it():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        recorder = Recorder(torch.device("cpu"))
    assert recorder.tape.broken


def linearised(function, *tensors):
    return again(function, (tensors, {}), list(tensors), function(*tensors), None)


def test_any_operation_is_run_again_on_dual_numbers():
    a, b = normal(3, 4).requires_grad_(), normal(4).requires_grad_()
    linear = linearised(torch.atan2, a, b.expand(3, 4))
    moves = [normal(2, 3, 4), normal(2, 3, 4)]
    (found,) = linear.push(moves, Layout())
    for i in range(2):
        at = (a.detach(), b.detach().expand(3, 4).clone())
        torch.testing.assert_close(found[i], jvp(torch.atan2, at, (moves[0][i], moves[1][i]))[1])
    (found,) = linear.push([None, moves[1]], Layout())
    wanted = jvp(torch.atan2, at, (torch.zeros(3, 4).double(), moves[1][1]))[1]
    torch.testing.assert_close(found[1], wanted)


def test_a_value_that_stands_in_many_places_gets_cells_of_its_own():
    a, b = normal(3, 4).requires_grad_(), normal(1).requires_grad_()
    linear = linearised(torch.atan2, a, b.expand(3, 4))
    (found,) = linear.push([None, torch.ones(1, 3, 4).double()], Layout())
    wanted = -a / (a.square() + b.square())  # of the angle, by its second argument
    torch.testing.assert_close(found[0], wanted.detach())


def test_results_that_need_no_gradient_have_no_tangent():
    x = normal(3, 4).requires_grad_()
    linear = again(torch.max, ((x, 1), {}), [x], torch.max(x, 1), None)
    (found,) = linear.push([torch.ones(1, 3, 4).double()], Layout())
    assert found.tolist() == [[1.0, 1.0, 1.0]]


def test_an_operation_without_forward_mode_is_refused():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    linear = linearised(Doubled.apply, normal(3).requires_grad_())
    with pytest.raises(Unsupported):
        linear.push([normal(1, 3)], Layout())


def test_tensors_in_any_nest_are_listed_in_order():
    a, b, c, d = (torch.tensor(float(i)) for i in range(4))
    named = torch.max(torch.eye(2), 1)  # a named tuple
    tree = ([a, (b, 5)], {"x": c, "y": [d, None]}, "text", named)
    assert [t is u for t, u in zip(tensors_in(tree), (a, b, c, d, *named))] == [True] * 6

"""Each linearised operation against forward-mode differentiation, argument by argument."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jvp, vjp

from metasp.influence.jvp_rules import RULES
from metasp.influence.second_order import Layout


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def norm(x, weight, bias, training):
    """batch_norm with running statistics of its own, so that calls do not move one another."""
    return F.batch_norm(x, torch.linspace(-1, 1, 3).double(), torch.linspace(1, 2, 3).double(),
                        weight, bias, training, 0.1, 0.3)  # fmt: skip


CONV = {
    F.conv1d: ((2, 4, 7), (6, 4, 3), (6, 2, 3)),
    F.conv2d: ((2, 4, 6, 5), (6, 4, 3, 2), (6, 2, 3, 2)),
    F.conv3d: ((2, 4, 4, 5, 3), (6, 4, 2, 2, 2), (6, 2, 2, 2, 2)),
}
CASES = {
    **{
        f"{op.__name__} {how}": (op, tuple(normal(*shape) for shape in shapes), how)
        for op, (x, whole, grouped) in CONV.items()
        for how, shapes in (
            ({}, [x, whole]),
            ({"stride": 2, "padding": 1, "dilation": 2}, [x, whole, (6,)]),
            ({"groups": 2, "padding": 1}, [x, grouped, (6,)]),
        )
    },
    "linear": (F.linear, (normal(5, 4), normal(3, 4)), {}),
    "linear with bias": (F.linear, (normal(5, 4), normal(3, 4), normal(3)), {}),
    "linear of sequences": (F.linear, (normal(5, 2, 4), normal(3, 4), normal(3)), {}),
    "relu": (F.relu, (normal(5, 3, 2, 2),), {}),
    "torch.relu": (torch.relu, (normal(5, 3),), {}),
    "add": (torch.add, (normal(5, 3), normal(5, 3)), {}),
    "add with alpha": (torch.add, (normal(5, 3), normal(5, 3)), {"alpha": 0.5}),
    "sub": (torch.sub, (normal(5, 3), normal(5, 3)), {}),
    "sub with alpha": (torch.sub, (normal(2, 3), normal(2, 3)), {"alpha": 3.0}),
    "add a number": (torch.add, (normal(5, 3), 2.0), {}),
    "take from a number": (Tensor.sub, (normal(4), 1.0), {"alpha": 2}),
    "flatten": (torch.flatten, (normal(2, 3, 4),), {"start_dim": 1}),
    "reshape": (torch.reshape, (normal(2, 3, 4), (4, 6)), {}),
    "view": (Tensor.view, (normal(2, 3, 4), 2, -1), {}),
}


def linearised(op, args, kwargs):
    """The rule's answer to a call whose tensors all carry a graph, and those tensors."""
    args = [a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in args]
    return RULES[op](op(*args, **kwargs), *args, **kwargs)


def check(found, function, values, tolerance=1e-10):
    """For two directions at once, and wherever the tangent of an input may be missing."""
    assert found is not None
    assert [t.shape for t in found.inputs] == [v.shape for v in values]
    directions = [normal(2, *value.shape) for value in values]
    for there in itertools.product([True, False], repeat=len(values)):
        if not any(there):
            continue
        tangents = [d if here else None for d, here in zip(directions, there)]
        (result,) = found.push(tangents, Layout())
        for i in range(2):
            moves = tuple(d[i] if here else torch.zeros_like(d[i])
                          for d, here in zip(directions, there))  # fmt: skip
            wanted = jvp(function, tuple(values), moves)[1]
            torch.testing.assert_close(result[i], wanted, atol=tolerance, rtol=tolerance)


def check_second_order(found, function, values, tolerance=1e-9):
    """How the gradients of the inputs move, for two directions at once."""
    delta = normal(*function(*values).shape)
    directions = [normal(2, *value.shape) for value in values]
    bent = normal(2, *delta.shape)
    for there in itertools.product([True, False], repeat=len(values)):
        tangents = [d if here else None for d, here in zip(directions, there)]
        if found.bend is not None:
            moved = found.bend(tangents, [delta], [bent], Layout())
        else:
            moved = found.pull(bent, Layout())
        for i in range(2):
            moves = [d[i] if here else torch.zeros_like(d[i])
                     for d, here in zip(directions, there)]  # fmt: skip
            wanted = jvp(
                lambda delta, *inputs: vjp(function, *inputs)[1](delta),
                (delta, *values),
                (bent[i], *moves),
            )[1]
            assert len(moved) == len(wanted)
            for part, known in zip(moved, wanted):
                torch.testing.assert_close(part[i], known, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_gradients_move_as_by_forward_over_reverse(case):
    op, args, kwargs = CASES[case]
    values = [a for a in args if isinstance(a, Tensor)]
    rest = [a for a in args if not isinstance(a, Tensor)]
    found = linearised(op, args, kwargs)
    check_second_order(found, lambda *tensors: op(*tensors, *rest, **kwargs), values)


def test_a_convolution_whose_input_needs_no_gradient_tells_nothing_of_it():
    x, w = normal(2, 4, 6, 5), normal(6, 4, 3, 2).requires_grad_()
    found = RULES[F.conv2d](F.conv2d(x, w), x, w)
    delta, bent = normal(2, 6, 4, 4), normal(2, 2, 6, 4, 4)
    by_x, by_w = found.bend([None, normal(2, *w.shape)], [delta], [bent], Layout())
    assert by_x is None
    wanted = [torch.autograd.grad(F.conv2d(x, w), w, one)[0] for one in bent]
    torch.testing.assert_close(by_w, torch.stack(wanted))


def test_a_padding_given_by_name_has_no_second_order_of_ours():
    x, w = normal(2, 4, 6, 5).requires_grad_(), normal(6, 4, 3, 3).requires_grad_()
    found = RULES[F.conv2d](F.conv2d(x, w, padding="same"), x, w, padding="same")
    assert found.bend is None


@pytest.mark.parametrize("case", CASES)
def test_the_tangent_is_that_of_forward_mode(case):
    op, args, kwargs = CASES[case]
    found = linearised(op, args, kwargs)
    values = [a for a in args if isinstance(a, Tensor)]
    rest = [a for a in args if not isinstance(a, Tensor)]
    check(found, lambda *tensors: op(*tensors, *rest, **kwargs), values)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("parts", [(), ("weight",), ("weight", "bias")])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 2, 5)])
def test_batch_norm_with_its_moving_statistics(shape, parts, training):
    values = [normal(*shape), *(normal(3) for _ in parts)]

    def call(x, weight=None, bias=None):
        return norm(x, weight, bias, training)

    leaves = [value.clone().requires_grad_() for value in values]
    padded = [*leaves, None, None][:3]
    mean, var = torch.linspace(-1, 1, 3).double(), torch.linspace(1, 2, 3).double()
    found = RULES[F.batch_norm](call(*leaves), padded[0], mean, var, *padded[1:],
                                training, 0.1, 0.3)  # fmt: skip
    check(found, call, values, 1e-9)
    check_second_order(found, call, values, 1e-8)


@pytest.mark.parametrize("shape", [(50,), (4, 3, 5, 2)])
def test_dropout_drops_the_same(shape):
    x = normal(*shape).requires_grad_()
    out = F.dropout(x, 0.3)
    found = RULES[F.dropout](out, x, 0.3)
    direction = normal(2, *shape)
    (result,) = found.push([direction], Layout())
    assert 0 < (out == 0).sum() < out.numel()
    torch.testing.assert_close(result, direction * (out != 0) / 0.7)


def test_what_a_rule_does_not_know_it_declines():
    weight = normal(6, 4, 3).requires_grad_()
    single = normal(4, 7)
    assert RULES[F.conv1d](F.conv1d(single, weight), single, weight) is None
    row = normal(3).requires_grad_()
    assert RULES[torch.add](torch.add(normal(5, 3), row), normal(5, 3), row) is None
    mixed = torch.add(normal(3).requires_grad_(), torch.ones(3))
    assert RULES[torch.add](mixed, normal(3).requires_grad_(), torch.ones(3)) is None
    x = normal(6, 3).requires_grad_()
    assert RULES[F.batch_norm](F.batch_norm(x, None, None, training=True), x, None, None) is None


def test_images_travel_channels_last_and_are_copied_once():
    layout, x = Layout(), torch.randn(2, 3, 4, 5)
    copy = layout.of(x)
    assert torch.equal(copy, x)
    assert copy.is_contiguous(memory_format=torch.channels_last)
    assert layout.of(x) is copy
    assert layout.of(copy) is copy
    x.add_(1)  # another value at the same place
    assert torch.equal(layout.of(x), x)
    for other in (torch.randn(2, 3, 4), normal(2, 3, 4, 5)):
        assert layout.of(other) is other
    kept = torch.randn(2, 3, 4, 5)
    first = layout.of(kept)
    others = [torch.randn(2, 3, 4, 5) for _ in range(2)]
    for other in others:
        layout.of(other)
    assert layout.of(kept) is first  # the last three are kept

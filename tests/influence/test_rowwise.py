"""Operations that keep examples apart: what is claimed is tried by moving one row at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from metasp.influence.rowwise import makes_rows, stays_in_rows

N = 4


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def only_its_row_moves(function, args, kwargs, rows):
    """Whether moving row j of the rows among the arguments moves row j of the result alone."""

    def result(values):
        out = function(*values, **kwargs)
        return out[0] if isinstance(out, tuple) else out

    before = result(args)
    if before.dim() == 0 or before.shape[0] != N:
        return False
    for j in range(N):
        moved = list(args)
        for place in rows:
            value = args[place]
            several = isinstance(value, list)
            fresh = [v.clone() for v in (value if several else [value])]
            for tensor in fresh:
                tensor[j] += normal(*tensor.shape[1:])
            moved[place] = fresh if several else fresh[0]
        others = [i for i in range(N) if i != j]
        if not torch.equal(result(moved)[others], before[others]):
            return False
    return True


X, T, SQUARE, IMAGES = normal(N, 3), normal(N, 2, 3), normal(N, N), normal(N, 2, 5, 5)
V, Y = normal(N), torch.tensor([0, 1, 2, 0])
MEAN, VAR = torch.zeros(3).double(), torch.ones(3).double()

# (function, arguments, options, places of the rows among the arguments)
APART = [
    (F.relu, [X], {}, [0]),
    (torch.tanh, [V], {}, [0]),
    (torch.add, [X, X * 2], {}, [0, 1]),
    (torch.mul, [X, normal(3)], {}, [0]),
    (torch.add, [normal(1, 3), X], {}, [1]),
    (Tensor.div, [X, 2.0], {}, [0]),
    (F.conv1d, [T, normal(5, 2, 2)], {}, [0]),
    (F.conv2d, [IMAGES, normal(3, 2, 2, 2)], {}, [0]),
    (F.conv3d, [normal(N, 2, 3, 3, 3), normal(3, 2, 2, 2, 2)], {}, [0]),
    (F.avg_pool2d, [IMAGES, 2], {}, [0]),
    (F.linear, [X, normal(5, 3)], {}, [0]),
    (F.linear, [T, normal(5, 3), normal(5)], {}, [0]),
    (torch.matmul, [X, normal(3, 5)], {}, [0]),
    (torch.matmul, [T, normal(3, 2)], {}, [0]),
    (torch.bmm, [T, normal(N, 3, 2)], {}, [0, 1]),
    (torch.bmm, [normal(N, 2, 3), normal(N, 3, 2)], {}, [1]),
    (torch.matmul, [normal(1, 2, 3), normal(N, 3, 2)], {}, [1]),
    (F.scaled_dot_product_attention, [T, T + 1, T - 1], {}, [0, 1, 2]),
    (F.layer_norm, [X, (3,)], {}, [0]),
    (F.layer_norm, [T], {"normalized_shape": (2, 3)}, [0]),
    (F.group_norm, [IMAGES, 2], {}, [0]),
    (F.batch_norm, [X, MEAN, VAR], {}, [0]),
    (F.batch_norm, [X, MEAN, VAR, None, None, False], {}, [0]),
    (torch.mean, [X, 1], {}, [0]),
    (torch.sum, [X], {"dim": -1}, [0]),
    (torch.mean, [IMAGES, (2, 3)], {}, [0]),
    (torch.softmax, [X, 1], {}, [0]),
    (F.log_softmax, [X], {"dim": 1}, [0]),
    (torch.cat, [[X, X * 2], 1], {}, [0]),
    (torch.cat, [[X, X * 2]], {"dim": -1}, [0]),
    (Tensor.chunk, [normal(N, 6), 2, 1], {}, [0]),
    (torch.chunk, [normal(N, 6), 2], {"dim": -1}, [0]),
    (torch.transpose, [T, 1, 2], {}, [0]),
    (Tensor.transpose, [T, -1, -2], {}, [0]),
    (torch.permute, [T, (0, 2, 1)], {}, [0]),
    (Tensor.permute, [T, 0, 2, 1], {}, [0]),
    (Tensor.permute, [T, -3, 2, 1], {}, [0]),
    (torch.flatten, [T, 1], {}, [0]),
    (Tensor.view, [T, N, -1], {}, [0]),
    (torch.reshape, [T, (N, 3, 2)], {}, [0]),
    (Tensor.__getitem__, [T, (slice(None), 0)], {}, [0]),
    (Tensor.__getitem__, [T, (slice(None), slice(0, 1))], {}, [0]),
    (Tensor.__getitem__, [T, slice(None)], {}, [0]),
    (F.cross_entropy, [X, Y], {"reduction": "none"}, [0]),
    (F.nll_loss, [X, Y], {"reduction": "none"}, [0]),
]
MIXED = [
    (torch.add, [SQUARE, V], {}, [0, 1]),
    (torch.add, [normal(N, N), V], {}, [1]),
    (F.linear, [V, SQUARE], {}, [0]),
    (F.linear, [normal(N, 3), X], {}, [1]),
    (F.conv2d, [normal(N, 5, 5), normal(N, N, 2, 2)], {}, [0]),
    (torch.matmul, [SQUARE, X], {}, [1]),
    (torch.matmul, [X, normal(N, 3, 5)], {}, [0]),
    (torch.matmul, [V, SQUARE], {}, [0]),
    (torch.matmul, [normal(7, 3), normal(3, 2)], {}, []),
    (F.scaled_dot_product_attention, [X, X + 1, X - 1], {}, [0, 1, 2]),
    (F.layer_norm, [X, (N, 3)], {}, [0]),
    (F.batch_norm, [X, MEAN, VAR, None, None, True], {}, [0]),
    (F.batch_norm, [X, MEAN, VAR], {"training": True}, [0]),
    (torch.mean, [X], {}, [0]),
    (torch.mean, [SQUARE, 0], {}, [0]),
    (torch.sum, [X], {"dim": ()}, [0]),
    (torch.sum, [normal(N, 2, N), (0, 1)], {}, [0]),
    (torch.softmax, [X, 0], {}, [0]),
    (torch.softmax, [X, -2], {}, [0]),
    (torch.cat, [[X, X * 2]], {}, [0]),
    (torch.chunk, [normal(2 * N, 3), 2], {}, []),
    (torch.transpose, [SQUARE, 0, 1], {}, [0]),
    (torch.transpose, [SQUARE, 1, -2], {}, [0]),
    (torch.permute, [SQUARE, (1, 0)], {}, [0]),
    (torch.flatten, [X], {}, [0]),
    (torch.reshape, [SQUARE, (2, 8)], {}, [0]),
    (Tensor.__getitem__, [T, 0], {}, [0]),
    (Tensor.__getitem__, [T, slice(1, 3)], {}, [0]),
    (Tensor.__getitem__, [T, [3, 2, 1, 0]], {}, [0]),
    (F.cross_entropy, [X, Y], {}, [0]),
    (F.cross_entropy, [X, Y], {"reduction": "sum"}, [0]),
    (torch.flip, [X, (0,)], {}, [0]),
]


def answer(function, args, kwargs, rows):
    found = [
        t for place in rows for t in (args[place] if type(args[place]) is list else [args[place]])
    ]

    def is_row(tensor):
        return any(tensor is row for row in found)

    out = function(*args, **kwargs)
    return stays_in_rows(function, (tuple(args), kwargs), out, is_row, N)


@pytest.mark.parametrize("number", range(len(APART)))
def test_what_keeps_examples_apart_is_known(number):
    assert answer(*APART[number]) is True
    assert only_its_row_moves(*APART[number])


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_what_mixes_examples_is_never_called_apart(number):
    assert answer(*MIXED[number]) is False
    assert not MIXED[number][3] or not only_its_row_moves(*MIXED[number])


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (torch.cumsum, [X, 1], {}),
        (torch.transpose, [T], {"dim0": 1, "dim1": 2}),
        (Tensor.__getitem__, [T, (slice(None), [0, 1])], {}),
        (torch.matmul, [X, normal(3)], {}),
    ],
)
def test_what_is_not_listed_is_taken_to_mix(function, args, kwargs):
    assert answer(function, args, kwargs, [0]) is False


def entering(function, *args, **kwargs):
    return makes_rows(function, (args, kwargs), function(*args, **kwargs), N)


def test_data_enters_as_rows():
    weight, words = normal(5, 3).requires_grad_(), torch.arange(N)
    assert entering(F.linear, X, weight)
    assert entering(F.linear, T, weight)
    assert entering(F.linear, input=X, weight=weight)
    assert entering(F.conv1d, T, normal(5, 2, 2))
    assert entering(F.conv2d, IMAGES, normal(3, 2, 2, 2))
    assert entering(F.embedding, words, weight)
    assert entering(F.embedding, words[:, None], weight)


def test_what_else_there_is_does_not():
    weight = normal(5, 3).requires_grad_()
    assert not entering(F.linear, X.clone().requires_grad_(), weight)
    assert not entering(F.linear, normal(7, 3), weight)
    assert not entering(F.linear, normal(3), normal(N, 3))
    assert not entering(F.conv2d, normal(N, 5, 5), normal(N, N, 2, 2))
    assert not entering(torch.matmul, X, normal(3, 5))

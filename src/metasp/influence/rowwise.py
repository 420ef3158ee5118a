"""Which operations keep the examples of a batch apart.

Dimension 0 counts examples. An operation that is not listed here may mix them: the influence is
then taken by tangents, which is exact either way. So a missing line costs time, never truth.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Call = tuple[tuple[Any, ...], dict[str, Any]]
IsRow = Callable[[Tensor], bool]
Test = Callable[[Call, Tensor, IsRow, int], bool]


def _argument(call: Call, place: int, name: str, default: Any = None) -> Any:
    """An argument by place or name."""
    args, kwargs = call
    return args[place] if len(args) > place else kwargs.get(name, default)


def _first(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    """Acts on each entry of dimension 0 of the first argument; the others are no rows."""
    args, kwargs = call
    rest = [t for t in (*args[1:], *kwargs.values()) if isinstance(t, Tensor) and is_row(t)]
    return not rest and out.dim() > 0 and out.shape[0] == n


def _broadcast(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    """Acts on corresponding entries; rows must be aligned on dimension 0 of the result."""
    rows = [t for t in (*call[0], *call[1].values()) if isinstance(t, Tensor) and is_row(t)]
    return out.dim() > 0 and out.shape[0] == n and all(t.dim() == out.dim() for t in rows)


def _images(rank: int) -> Test:
    """Convolution and pooling of a batch: an image without one has no dimension 0 to keep."""

    def test(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
        return _first(call, out, is_row, n) and out.dim() == rank

    return test


def _linear(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    return _first(call, out, is_row, n) and out.dim() >= 2


def _product(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    a, b = call[0]
    if is_row(b):
        return a.dim() == b.dim() >= 3 and out.shape[0] == n and (is_row(a) or a.shape[0] in (1, n))
    return bool(out.dim() >= 2 and out.shape[0] == n and a.dim() >= b.dim())


def _attention(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    tensors = [t for t in (*call[0], *call[1].values()) if isinstance(t, Tensor) and is_row(t)]
    return out.shape[0] == n and all(t.dim() == out.dim() >= 3 for t in tensors)


def _layer_norm(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    shape = _argument(call, 1, "normalized_shape")
    return _first(call, out, is_row, n) and len(shape) < out.dim()


def _batch_norm(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    return _first(call, out, is_row, n) and not _argument(call, 5, "training", False)


def _normal(dims: Any, rank: int) -> set[int]:
    """Dimensions as non-negative numbers; none given means all of them."""
    if dims is None or (isinstance(dims, tuple | list) and not dims):
        return set(range(rank))
    several: Iterable[int] = dims if isinstance(dims, tuple | list) else (dims,)
    return {d % rank for d in several}


def _along(place: int, default: Any = None) -> Test:
    """Works along dimensions that must not be the first (mean, softmax, cat ...)."""

    def test(call: Call, out: Any, is_row: IsRow, n: int) -> bool:
        source = call[0][0]
        parts = source if isinstance(source, tuple | list) else (source,)
        rank = parts[0].dim()
        dims = _argument(call, place, "dim", default)
        if not isinstance(dims, int | tuple | list | None):
            return False
        return 0 not in _normal(dims, rank) and all(t.shape[0] == n for t in parts)

    return test


def _swap(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    a, b = call[0][1:3] if len(call[0]) >= 3 else (0, 0)
    return out.shape[0] == n and 0 not in _normal((a, b), out.dim())


def _permute(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    dims = call[0][1:]
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
    return bool(order) and order[0] in (0, -out.dim())


def _shape(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    return out.dim() > 0 and out.shape[0] == n == call[0][0].shape[0]


def _index(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    key = call[0][1]
    key = key if isinstance(key, tuple) else (key,)
    basic = all(isinstance(k, int | slice | type(Ellipsis)) for k in key)
    return basic and key[0] == slice(None) and out.shape[0] == n


def _loss(call: Call, out: Tensor, is_row: IsRow, n: int) -> bool:
    rows = [t for t in (*call[0][1:], *call[1].values()) if isinstance(t, Tensor) and is_row(t)]
    return not rows and call[1].get("reduction") == "none" and out.shape[0] == n


_ELEMENTWISE = (
    F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_,
    F.gelu, F.silu, F.leaky_relu, F.elu, F.selu, F.softplus, F.hardswish, F.mish, F.relu6,
    F.hardtanh, torch.tanh, Tensor.tanh, torch.sigmoid, Tensor.sigmoid, F.dropout, F.logsigmoid,
    torch.exp, Tensor.exp, Tensor.contiguous, Tensor.clone, Tensor.float, Tensor.double,
)  # fmt: skip
_PAIRED = (
    torch.add, Tensor.add, Tensor.add_, torch.sub, Tensor.sub, Tensor.sub_, torch.mul, Tensor.mul,
    torch.div, Tensor.div, Tensor.__truediv__,
)  # fmt: skip
_POOLED = (F.avg_pool2d, F.adaptive_avg_pool2d, F.max_pool2d, torch.max_pool2d)
_ALONG = (
    torch.mean, Tensor.mean, torch.sum, Tensor.sum, torch.softmax, Tensor.softmax, torch.cat,
    torch.log_softmax, Tensor.log_softmax,
)  # fmt: skip

TESTS: dict[Callable[..., Any], Test] = {
    **dict.fromkeys(_ELEMENTWISE, _first),
    **dict.fromkeys(_PAIRED, _broadcast),
    **dict.fromkeys(_POOLED, _images(4)),
    F.conv1d: _images(3),
    F.conv2d: _images(4),
    F.conv3d: _images(5),
    **dict.fromkeys(_ALONG, _along(1)),
    torch.cat: _along(1, 0),
    F.softmax: _along(1),
    F.log_softmax: _along(1),
    Tensor.chunk: _along(2, 0),
    torch.chunk: _along(2, 0),
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, torch.bmm, Tensor.bmm), _product),
    F.scaled_dot_product_attention: _attention,
    F.layer_norm: _layer_norm,
    F.group_norm: _first,
    F.batch_norm: _batch_norm,
    **dict.fromkeys((torch.transpose, Tensor.transpose), _swap),
    **dict.fromkeys((torch.permute, Tensor.permute), _permute),
    **dict.fromkeys(
        (torch.flatten, Tensor.flatten, Tensor.view, Tensor.reshape, torch.reshape,
         Tensor.unflatten), _shape,
    ),
    Tensor.__getitem__: _index,
    F.cross_entropy: _loss,
    F.nll_loss: _loss,
}  # fmt: skip


def stays_in_rows(func: Callable[..., Any], call: Call, out: Any, is_row: IsRow, n: int) -> bool:
    """Whether row i of the result depends on row i of the rows among the arguments, and no other.

    ``is_row`` says which tensors have one row per example.
    """
    test = TESTS.get(func)
    try:
        return test is not None and test(call, out, is_row, n)
    except (AttributeError, IndexError, TypeError, ValueError):  # an unusual call: assume the worst
        return False


_ENTER = {F.conv1d: 3, F.conv2d: 4, F.conv3d: 5, F.linear: 2, F.embedding: 1}


def makes_rows(func: Callable[..., Any], call: Call, out: Any, n: int) -> bool:
    """Whether constant data (the batch) and parameters give a result with one row per example."""
    if func not in _ENTER:
        return False
    data = _argument(call, 0, "input")
    if not isinstance(data, Tensor) or data.requires_grad:
        return False
    rank_fits = data.dim() >= 2 if func is F.linear else data.dim() == _ENTER[func]
    if func is F.embedding:
        rank_fits = data.dim() >= 1
    return bool(rank_fits and data.shape[0] == n == out.shape[0])

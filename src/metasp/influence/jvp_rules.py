"""Linearised forms of the operations that networks spend their time in.

A rule has the signature of its operation with the result in front, is called right after it, and
gives back which tensors it read and how their tangents (directions, *shape) become the tangent of
the result. It may decline with None; the operation is then simply run again on dual numbers.
Rules keep only the values they need, so that the tape costs little memory beyond autograd's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp.influence.second_order import (
    Bend,
    Convolved,
    Layout,
    Normal,
    Pull,
    Tangents,
    affine,
    bend_convolution,
    bend_linear,
    bend_norm,
    room_like,
)


class Unsupported(Exception):
    """This path cannot take the derivative of an operation; another one must."""


Push = Callable[[Tangents, Layout], Tangents]


@dataclass(frozen=True)
class Linearised:
    """Inputs, the map from their tangents to the results' tangents, and the values it needs.

    ``pull`` or ``bend`` say how its gradients move; see `metasp.influence.second_order`. ``fan`` is
    what a linear layer's weight multiplies, rows of it (n, d)."""

    inputs: tuple[Tensor, ...]
    push: Push
    saved: tuple[Tensor, ...] = ()
    pull: Pull | None = None
    bend: Bend | None = None
    fan: Tensor | None = None


def unstacked(result: Tensor, like: Tensor) -> Tensor:
    """The directions apart again, after an operation on all of them along the batch."""
    return result.view(*like.shape[:2], *result.shape[1:])


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the parts that are there."""
    total: Tensor | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def _by_weight(op: Callable[..., Tensor], x: Tensor, dw: Tensor, how: tuple[Any, ...]) -> Tensor:
    """What tangents of the weight (directions, *shape) make of the input of a convolution, whose
    stride, padding, dilation and groups are `how`."""
    *_, groups = how
    if groups == 1:  # all directions at once, side by side on the output channels
        both = op(x, dw.flatten(0, 1), None, *how)
        sides = both.view(both.shape[0], dw.shape[0], -1, *both.shape[2:])
        return sides.transpose(0, 1)
    return torch.stack([op(x, one, None, *how) for one in dw])


def _convolution(
    op: Callable[..., Tensor],
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Linearised | None:
    """The rule of conv1d, conv2d or conv3d (`op`) on a batch."""
    if input.dim() != weight.dim():
        return None
    how = (stride, padding, dilation, groups)
    x, w = input.detach(), weight.detach()

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        dx, dw, db = (*tangents, None)[:3]
        total: Tensor | None = None
        if dx is not None:
            total = unstacked(op(dx.flatten(0, 1), w, None, *how), dx)
        if dw is not None:
            part = _by_weight(op, layout.of(x), dw, how)
            total = part if total is None else total.add_(part)
        if db is not None:
            part = db.reshape(db.shape[0], 1, -1, *[1] * (w.dim() - 2))
            total = part.expand(-1, *out_shape) if total is None else total + part
        return [total]

    out_shape = tuple(out.shape)
    inputs = (input, weight) if bias is None else (input, weight, bias)
    called = Convolved.of(w.dim() - 2, *how)
    bend = None if called is None else bend_convolution(inputs, called)
    return Linearised(inputs, push, (x, w), bend=bend)


def _linear(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Linearised:
    x, w, out_shape = input.detach(), weight.detach(), tuple(out.shape)

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        dx, dw, db = (*tangents, None)[:3]
        total = F.linear(dx, w) if dx is not None else None
        if dw is not None:
            part = torch.matmul(x.reshape(-1, x.shape[-1]), dw.transpose(1, 2))
            total = _sum((total, part.reshape(dw.shape[0], *out_shape)))
        if db is not None:
            part = db.reshape(db.shape[0], *[1] * (len(out_shape) - 1), -1)
            total = part.expand(-1, *out_shape) if total is None else total + part
        return [total]

    inputs = (input, weight) if bias is None else (input, weight, bias)
    fan = x if x.dim() == 2 else None
    return Linearised(inputs, push, (x, w), bend=bend_linear(inputs), fan=fan)


def _batch_norm(
    out: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Linearised | None:
    """y = weight (x - mean) / std + bias: its tangent is one scale, one shift, one x term.

    In training mode the statistics move with x. Two sums per channel account for that; they are
    the ones the backward kernel forms, because the Jacobian for x is symmetric.
    """
    node = out.grad_fn
    if training and getattr(node, "name", str)() != "NativeBatchNormBackward0":
        return None
    read = (input, weight, bias)
    if training:
        count = input.numel() // input.shape[1]
        mean, inverse = node._saved_result1, node._saved_result2  # type: ignore[union-attr]
        linear = normalised(read, mean, inverse, eps, (count, torch.Tensor.detach))
        return replace(linear, bend=bend_norm(read, Normal(mean, inverse, count)))
    if running_mean is None or running_var is None:
        return None
    mean, inverse = running_mean.clone(), (running_var + eps).rsqrt()
    linear = normalised(read, mean, inverse, eps, None)
    return replace(linear, bend=bend_norm(read, Normal(mean, inverse, None)))


def normalised(
    read: tuple[Tensor, Tensor | None, Tensor | None],
    mean: Tensor,
    inverse: Tensor,
    eps: float,
    over: tuple[int, Callable[[Tensor], Tensor]] | None,
) -> Linearised:
    """The linearised form of batch normalisation of (input, weight, bias) by a mean and 1/std.
    ``over`` says of how many values per channel these are the statistics, and makes sums (2,
    channels) over all of them of those over the rows at hand; None: the statistics are constant."""
    input, weight, bias = read
    x, w = input.detach(), None if weight is None else weight.detach()

    def one(x: Tensor, parts: Sequence[Tensor | None], into: Tensor) -> None:
        dx, dw, db = parts
        scale = inverse if w is None else w * inverse
        slope = torch.zeros_like(inverse) if dw is None else dw
        shift = torch.zeros_like(inverse) if db is None else db
        if dx is not None and over is not None:
            _, dot, total = torch.ops.aten.native_batch_norm_backward(
                dx, x, w, None, None, mean, inverse, True, eps, [False, True, True]
            )
            values, whole = over
            dot, total = whole(torch.stack([dot, total]))
            slope = slope - scale * dot / values
            shift = shift - scale * total / values
        slope = slope * inverse
        affine(dx, scale, x, slope, shift - slope * mean, into)

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        parts = list(tangents)
        dx = parts.pop(0)
        dw = parts.pop(0) if weight_there else None
        db = parts.pop(0) if bias_there else None
        count = next(t.shape[0] for t in tangents if t is not None)
        values = layout.of(x)
        result = room_like(values, count)
        for d in range(count):
            one(values, [None if t is None else t[d] for t in (dx, dw, db)], result[d])
        return [result]

    weight_there, bias_there = weight is not None, bias is not None
    inputs = tuple(t for t in read if t is not None)
    return Linearised(inputs, push, (x,) if w is None else (x, w))


def _relu(out: Tensor, input: Tensor, inplace: bool = False) -> Linearised:
    y = out.detach()

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        (dx,) = tangents
        assert dx is not None
        return [pull(dx, layout)[0]]

    def pull(bent: Tensor, layout: Layout) -> Tangents:
        return [torch.ops.aten.threshold_backward(bent, layout.of(y).unsqueeze(0), 0)]

    return Linearised((input,), push, (y,), pull=pull)


def _dropout(
    out: Tensor, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Linearised | None:
    node = out.grad_fn
    if not training or p == 0.0 or getattr(node, "name", str)() != "MulBackward0":
        return None
    noise = node._saved_other  # type: ignore[union-attr]
    if not isinstance(noise, Tensor) or noise.shape != out.shape:
        return None

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        (dx,) = tangents
        return [None if dx is None else dx * layout.of(noise)]

    def pull(bent: Tensor, layout: Layout) -> Tangents:
        return [bent * layout.of(noise)]

    return Linearised((input,), push, (noise,), pull=pull)


def _add(sign: int) -> Callable[..., Linearised | None]:
    """The rule of ``a + alpha * b`` (or minus), in place or not, with broadcasting."""

    def rule(out: Tensor, input: Any, other: Any, *, alpha: float = 1) -> Linearised | None:
        pair = [(t, f) for t, f in ((input, 1), (other, sign * alpha)) if isinstance(t, Tensor)]
        if any(t.dtype != out.dtype for t, _ in pair):
            return None
        shape, factors = tuple(out.shape), [f for _, f in pair]
        shapes = [tuple(t.shape) for t, _ in pair]
        dims = [len(s) for s in shapes]

        def spread(tangent: Tensor, dim: int) -> Tensor:
            pad = [1] * (len(shape) - dim)
            return tangent.reshape(tangent.shape[0], *pad, *tangent.shape[1:])

        def push(tangents: Tangents, layout: Layout) -> Tangents:
            parts = [
                spread(t if f == 1 else t * f, dim)
                for t, f, dim in zip(tangents, factors, dims)
                if t is not None
            ]
            total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
            return [total.expand(total.shape[0], *shape)]

        def pull(bent: Tensor, layout: Layout) -> Tangents:
            parts = [bent if f == 1 else bent * f for f in factors]
            return [
                part.sum_to_size(len(bent), *[1] * (len(shape) - len(s)), *s).reshape(len(bent), *s)
                for part, s in zip(parts, shapes)
            ]

        return Linearised(tuple(t for t, _ in pair), push, pull=pull)

    return rule


def _flatten(out: Tensor, input: Tensor, *_: Any, **__: Any) -> Linearised:
    shape, before = tuple(out.shape), tuple(input.shape)

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        (dx,) = tangents
        assert dx is not None
        return [dx.reshape(dx.shape[0], *shape)]

    def pull(bent: Tensor, layout: Layout) -> Tangents:
        return [bent.reshape(len(bent), *before)]

    return Linearised((input,), push, pull=pull)


def _per_image(op: Callable[..., Tensor]) -> Callable[..., Linearised | None]:
    """The rule of a linear operation on each image of a batch, such as average pooling."""

    def rule(out: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> Linearised | None:
        if input.dim() != 4:
            return None
        shape = tuple(input.shape)

        def push(tangents: Tangents, layout: Layout) -> Tangents:
            (dx,) = tangents
            assert dx is not None
            return [unstacked(op(dx.flatten(0, 1), *args, **kwargs), dx)]

        def pull(bent: Tensor, layout: Layout) -> Tangents:
            with torch.enable_grad():  # its gradient is the same wherever it is taken
                where = bent.new_zeros(len(bent) * shape[0], *shape[1:]).requires_grad_()
                found = op(where, *args, **kwargs)
            (grad,) = torch.autograd.grad(found, where, bent.flatten(0, 1))
            return [unstacked(layout.of(grad), bent)]

        return Linearised((input,), push, pull=pull)

    return rule


Rule = Callable[..., Linearised | None]

RULES: dict[Callable[..., Any], Rule] = {
    F.conv1d: partial(_convolution, F.conv1d),
    F.conv2d: partial(_convolution, F.conv2d),
    F.conv3d: partial(_convolution, F.conv3d),
    F.linear: _linear,
    F.batch_norm: _batch_norm,
    F.dropout: _dropout,
    F.avg_pool2d: _per_image(F.avg_pool2d),
    F.adaptive_avg_pool2d: _per_image(F.adaptive_avg_pool2d),
    **dict.fromkeys((F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _relu),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.add_), _add(1)),
    **dict.fromkeys((torch.sub, Tensor.sub, Tensor.sub_), _add(-1)),
    **dict.fromkeys(
        (torch.flatten, Tensor.flatten, Tensor.view, Tensor.reshape, torch.reshape), _flatten
    ),
}

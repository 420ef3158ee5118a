"""Linearised forms of the operations that networks spend their time in.

A rule has the signature of its operation with the result in front, is called right after it, and
gives back which tensors it read and how their tangents (directions, *shape) become the tangent of
the result. It may decline with None; the operation is then simply run again on dual numbers.
Rules keep only the values they need, so that the tape costs little memory beyond autograd's own.
"""

from collections.abc import Callable
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
    """Return the rule of conv1d, conv2d or conv3d (`op`) on a batch."""
    if input.dim() != weight.dim():
        return None
    settings = (stride, padding, dilation, groups)
    x, w = input.detach(), weight.detach()

    def by_weight(dw: Tensor, values: Tensor) -> Tensor:
        """Return the tangents that those of the weight make, (directions, n, …)."""
        if groups > 1:
            return torch.stack([op(values, one, None, *settings) for one in dw])
        # All directions at once, side by side on the output channels.
        sides = op(values, dw.flatten(0, 1), None, *settings)
        return sides.view(sides.shape[0], dw.shape[0], -1, *sides.shape[2:]).transpose(0, 1)

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        dx, dw, db = (*tangents, None)[:3]
        total: Tensor | None = None
        if dx is not None:
            moved = op(dx.flatten(0, 1), w, None, *settings)
            total = moved.view(*dx.shape[:2], *moved.shape[1:])
        if dw is not None:
            term = by_weight(dw, layout.of(x))
            total = term if total is None else total.add_(term)
        if db is not None:
            term = db.reshape(db.shape[0], 1, -1, *[1] * (w.dim() - 2))
            total = term.expand(-1, *out_shape) if total is None else total + term
        return [total]

    out_shape = tuple(out.shape)
    inputs = (input, weight) if bias is None else (input, weight, bias)
    called = Convolved.of(w.dim() - 2, *settings)
    bend = None if called is None else bend_convolution(inputs, called)
    return Linearised(inputs, push, (x, w), bend=bend)


def _linear(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Linearised:
    """Return the rule of a linear layer on rows or sequences of them."""
    x, w, out_shape = input.detach(), weight.detach(), tuple(out.shape)

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        dx, dw, db = (*tangents, None)[:3]
        total = F.linear(dx, w) if dx is not None else None
        if dw is not None:
            term = torch.matmul(x.reshape(-1, x.shape[-1]), dw.transpose(1, 2))
            term = term.reshape(dw.shape[0], *out_shape)
            total = term if total is None else total + term
        if db is not None:
            term = db.reshape(db.shape[0], *[1] * (len(out_shape) - 1), -1)
            total = term.expand(-1, *out_shape) if total is None else total + term
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
    """Return the linearised form of batch normalisation of (input, weight, bias) by a mean and
    1/std. ``over`` says of how many values per channel these are the statistics, and makes sums (2,
    channels) over all of them of those over the rows at hand; None: the statistics are constant."""
    x, w = read[0].detach(), None if read[1] is None else read[1].detach()
    scale = inverse if w is None else w * inverse
    zero = torch.zeros_like(inverse)

    def one(
        values: Tensor, dx: Tensor | None, dw: Tensor | None, db: Tensor | None, into: Tensor
    ) -> None:
        """Write the tangent of one direction: scale·dx + slope·x + shift, per channel."""
        slope, shift = zero if dw is None else dw, zero if db is None else db
        if dx is not None and over is not None:
            _, dot, total = torch.ops.aten.native_batch_norm_backward(
                dx, values, w, None, None, mean, inverse, True, eps, [False, True, True]
            )
            count, sum_all = over
            dot, total = sum_all(torch.stack([dot, total]))
            slope = slope - scale * dot / count
            shift = shift - scale * total / count
        slope = slope * inverse
        affine(dx, scale, values, slope, shift - slope * mean, into)

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        remaining = iter(tangents)
        moves = [next(remaining) if present else None for present in has]
        count = next(len(t) for t in moves if t is not None)
        values = layout.of(x)
        result = room_like(values, count)
        for d in range(count):
            dx, dw, db = (None if t is None else t[d] for t in moves)
            one(values, dx, dw, db, result[d])
        return [result]

    has = [tensor is not None for tensor in read]
    inputs = tuple(t for t in read if t is not None)
    return Linearised(inputs, push, (x,) if w is None else (x, w))


def _relu(out: Tensor, input: Tensor, inplace: bool = False) -> Linearised:
    """Return the rule of a ReLU, linearised by its result."""
    y = out.detach()

    def pull(bent: Tensor, layout: Layout) -> Tangents:
        return [torch.ops.aten.threshold_backward(bent, layout.of(y).unsqueeze(0), 0)]

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        return [None if t is None else pull(t, layout)[0] for t in tangents]

    return Linearised((input,), push, (y,), pull=pull)


def _dropout(
    out: Tensor, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Linearised | None:
    """Return the rule of dropout, where its graph holds what it multiplied by."""
    node = out.grad_fn
    noise = getattr(node, "_saved_other", None)
    if getattr(node, "name", str)() != "MulBackward0" or not isinstance(noise, Tensor):
        return None

    def pull(bent: Tensor, layout: Layout) -> Tangents:
        return [bent * layout.of(noise)]

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        return [None if t is None else pull(t, layout)[0] for t in tangents]

    return Linearised((input,), push, (noise,), pull=pull)


def _add(
    sign: int, out: Tensor, input: Tensor, other: Any, *, alpha: float = 1
) -> Linearised | None:
    """Return the rule of ``a + alpha * b`` (or minus), in place or not, of two tensors of one
    shape, or of a tensor and a number."""
    pair = (input, other) if isinstance(other, Tensor) else (input,)
    factors = (1, sign * alpha)
    if any(t.dtype != out.dtype or t.shape != out.shape for t in pair):
        return None

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        terms = [t if f == 1 else t * f for t, f in zip(tangents, factors) if t is not None]
        return [terms[0] if len(terms) == 1 else terms[0] + terms[1]]

    def pull(bent: Tensor, layout: Layout) -> Tangents:
        return [bent if f == 1 else bent * f for _, f in zip(pair, factors)]

    return Linearised(pair, push, pull=pull)


def _flatten(out: Tensor, input: Tensor, *_: Any, **__: Any) -> Linearised:
    """Return the rule of an operation that gives the same numbers another shape."""
    shape, before = out.shape, input.shape
    return Linearised(
        (input,),
        lambda tangents, layout: [t if t is None else t.reshape(len(t), *shape) for t in tangents],
        pull=lambda bent, layout: [bent.reshape(len(bent), *before)],
    )


RULES: dict[Callable[..., Any], Callable[..., Linearised | None]] = {
    F.conv1d: partial(_convolution, F.conv1d),
    F.conv2d: partial(_convolution, F.conv2d),
    F.conv3d: partial(_convolution, F.conv3d),
    F.linear: _linear,
    F.batch_norm: _batch_norm,
    F.dropout: _dropout,
    **dict.fromkeys((F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _relu),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.add_), partial(_add, 1)),
    **dict.fromkeys((torch.sub, Tensor.sub, Tensor.sub_), partial(_add, -1)),
    **dict.fromkeys(
        (torch.flatten, Tensor.flatten, Tensor.view, Tensor.reshape, torch.reshape), _flatten
    ),
}
"""The rule of each operation that has one, called with its result before its arguments."""

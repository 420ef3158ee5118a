"""The second order of the tape: how gradients of an operation move when parameters do.

The gradients of an operation's inputs hang on the gradient of its result and on the inputs. Where
the operation is linear they move with the former alone: a `Pull` takes the tangents of the result's
gradient, (directions, *shape), to those of the inputs' gradients. For others a `Bend` does, given
the tangents of the inputs, the gradients of the results and the tangents of these. Neither says
anything about inputs that need no gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.utils import _ntuple

Tangents = Sequence[Tensor | None]


class Layout:
    """Values in the memory format that tangents travel in.

    On the CPU float32 images travel channels-last, whatever the model uses: convolutions are then
    up to twice as fast, which pays for one copy of each value. The last few copies are kept,
    because the result of a ReLU is the input of the next convolution.
    """

    def __init__(self) -> None:
        self._recent: list[tuple[tuple[int, ...], Tensor]] = []

    def of(self, x: Tensor) -> Tensor:
        """Return ``x``, copied if its memory format is not the one of the tangents."""
        if x.dim() != 4 or x.device.type != "cpu" or x.dtype != torch.float32:
            return x
        if x.is_contiguous(memory_format=torch.channels_last):
            return x
        key = (x.data_ptr(), x._version, *x.shape, *x.stride())
        for recent, copy in self._recent:
            if recent == key:
                return copy
        copy = x.contiguous(memory_format=torch.channels_last)
        self._recent = [*self._recent[-2:], (key, copy)]
        return copy


LAYOUT_BOUND = frozenset((
    Tensor.view, Tensor.view_as, Tensor.as_strided, torch.as_strided, Tensor.stride,
    Tensor.is_contiguous, Tensor.data_ptr, Tensor.numpy, Tensor.untyped_storage,
    F.dropout, F.alpha_dropout, F.rrelu, torch.rand_like, torch.randn_like, torch.bernoulli,
    Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_,
))  # fmt: skip
"""Calls on images whose answer hangs on how these lie in memory, as does the order of what is drawn
for them."""

Pull = Callable[[Tensor, Layout], Tangents]
Bend = Callable[[Tangents, Tangents, Tangents, Layout], Tangents]


def room_like(x: Tensor, count: int) -> Tensor:
    """Return room for ``count`` tensors like x, each in the memory format of x."""
    template = torch.empty_like(x)
    size = (count, *x.shape)
    strides = (template.numel(), *template.stride())
    return torch.empty_strided(size, strides, dtype=x.dtype, device=x.device)


def affine(
    dx: Tensor | None, scale: Tensor, x: Tensor, slope: Tensor, shift: Tensor, into: Tensor
) -> None:
    """into = scale * dx + slope * x + shift, per channel (dimension 1)."""
    view = (1, -1, *[1] * (x.dim() - 2))
    if dx is None:
        torch.mul(x, slope.view(view), out=into)
        into.add_(shift.view(view))
        return
    unit, zero = torch.ones_like(scale), torch.zeros_like(scale)
    y = torch.batch_norm(dx, scale, shift, zero, unit, False, 0.0, 0.0, False)
    torch.addcmul(y, x, slope.view(view), out=into)


class Convolved(NamedTuple):
    """The arguments of a convolution, as its backward kernel takes them."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls, dims: int, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> "Convolved | None":
        """Return None for a padding that is given by name: it may differ from side to side."""
        if isinstance(padding, str):
            return None

        per_axis = _ntuple(dims)  # type: ignore[no-untyped-call]
        return cls(per_axis(stride), per_axis(padding), per_axis(dilation), groups)

    def gradients(
        self, delta: Tensor, x: Tensor, w: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of input, weight and bias, where they are wanted."""
        grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            delta, x, w, [w.shape[0]], self.stride, self.padding, self.dilation, False,
            [0] * len(self.stride), self.groups, list(wanted),
        )  # fmt: skip
        return grads


def bend_convolution(read: Sequence[Tensor], how: Convolved) -> Bend:
    """Return the bend of a convolution. It is bilinear: each gradient moves with that of the
    result, and with the other factor."""
    x, w = (tensor.detach() for tensor in read[:2])
    x_wanted, w_wanted = (tensor.requires_grad for tensor in read[:2])
    biased = len(read) > 2

    def bend(tangents: Tangents, deltas: Tangents, bents: Tangents, layout: Layout) -> Tangents:
        (delta, bent), (dx, dw) = _only(deltas, bents), tangents[:2]
        values, delta = layout.of(x), layout.of(delta)
        by_x: Tensor | None = None
        if x_wanted:  # all directions in one call, whose second argument only says the shape
            like = values.expand(len(bent), *x.shape) if dx is None else dx
            by_x, _, _ = how.gradients(
                bent.flatten(0, 1), like.flatten(0, 1), w, (True, False, False)
            )
            by_x = by_x.view(len(bent), *x.shape)
        by_other = (x_wanted and dw is not None, w_wanted and dx is not None, False)
        weights, biases = [], []
        for d, one in enumerate(bent):
            _, by_w, by_b = how.gradients(one, values, w, (False, w_wanted, biased))
            other_x, other_w = values if dx is None else dx[d], w if dw is None else dw[d]
            more_x, more_w, _ = how.gradients(delta, other_x, other_w, by_other)
            if by_x is not None and by_other[0]:
                by_x[d].add_(more_x)
            weights.append(by_w.add_(more_w) if by_other[1] else by_w)
            biases.append(by_b)
        moved = [by_x, torch.stack(weights) if w_wanted else None]
        return [*moved, torch.stack(biases)] if biased else moved

    return bend


def bend_linear(read: Sequence[Tensor]) -> Bend:
    """Return the bend of a linear layer."""
    x, w = (tensor.detach() for tensor in read[:2])

    def bend(tangents: Tangents, deltas: Tangents, bents: Tangents, layout: Layout) -> Tangents:
        (delta, bent), (dx, dw) = _only(deltas, bents), tangents[:2]
        count, rows = len(bent), x.reshape(-1, x.shape[-1])
        bent, delta = bent.reshape(count, -1, w.shape[0]), delta.reshape(-1, w.shape[0])
        by_x, by_w = bent @ w, bent.transpose(1, 2) @ rows
        if dw is not None:
            by_x = by_x + delta @ dw
        if dx is not None:
            by_w = by_w + delta.T @ dx.reshape(count, *rows.shape)
        return [by_x.reshape(count, *x.shape), by_w, bent.sum(1)][: len(read)]

    return bend


@dataclass(frozen=True)
class Normal:
    """Statistics that normalise: mean and 1/std per channel, and of how many values each they are
    (None: they are constant)."""

    mean: Tensor
    inverse: Tensor
    values: int | None


def bend_norm(read: tuple[Tensor, Tensor | None, Tensor | None], by: Normal) -> Bend:
    """Return the bend of batch normalisation. The gradient for the input is S (δ - m0 - x̂ m1),
    with S = weight / std, x̂ the normalised input, and m0 and m1 the means of δ and of δ x̂, or
    zero where the statistics are constant."""
    x, weight = read[0].detach(), None if read[1] is None else read[1].detach()
    has = [True, *(tensor is not None for tensor in read[1:])]
    c, view = by.inverse, (1, -1, *[1] * (x.dim() - 2))

    def one(
        moves: Tangents, x: Tensor, delta: Tensor, delta_sums: tuple[Tensor, Tensor], bent: Tensor,
        into: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Writes how the input's gradient moves; returns how those of weight and bias do."""
        dx, dw = moves
        scale, zero = c if weight is None else weight * c, torch.zeros_like(c)
        by_weight, by_bias = sums(bent, x, by)
        turned = zero if dw is None else dw * c  # how S moves
        a = b = met = zero
        if dx is not None:
            met, _ = sums(dx, delta, Normal(zero, torch.ones_like(c), None))
        if by.values is None:
            affine(bent, scale, delta, turned, zero, into)
            return by_weight + c * met, by_bias
        n = by.values
        s1, s0 = delta_sums
        if dx is not None:
            b, a = (part / n for part in sums(dx, x, by))
            turned = turned - scale * c * b
        by_weight = by_weight + c * (met - a * s0 - b * s1)
        m0, m1, along = s0 / n, s1 / n, -scale * c * s1 / n
        slope = -c * (turned * m1 + along * b + scale * by_weight / n)
        shift = -turned * m0 - scale * by_bias / n - along * a - slope * by.mean
        affine(bent, scale, delta, turned, shift, into)
        into.addcmul_(x, slope.view(view))
        if dx is not None:
            into.addcmul_(dx, along.view(view))
        return by_weight, by_bias

    def bend(tangents: Tangents, deltas: Tangents, bents: Tangents, layout: Layout) -> Tangents:
        dx, dw = tangents[0], tangents[1] if has[1] else None
        delta, bent = _only(deltas, bents)
        values, delta = layout.of(x), layout.of(delta)
        room, delta_sums = room_like(values, len(bent)), sums(delta, values, by)
        pairs = []
        for d, moved in enumerate(bent):
            moves = [None if t is None else t[d] for t in (dx, dw)]
            pairs.append(one(moves, values, delta, delta_sums, moved, room[d]))
        columns = [room, *(torch.stack(columns) for columns in zip(*pairs))]
        return [part for part, present in zip(columns, has) if present]

    return bend


def _only(deltas: Tangents, bents: Tangents) -> tuple[Tensor, Tensor]:
    """Return the gradient, and its tangents, of the one result of an operation."""
    (delta,), (bent,) = deltas, bents
    assert delta is not None
    assert bent is not None
    return delta, bent


def sums(a: Tensor, b: Tensor, by: Normal) -> tuple[Tensor, Tensor]:
    """Return the sums of a (b - mean) / std and of a, per channel, by the kernel that takes one
    pass."""
    _, dot, total = torch.ops.aten.native_batch_norm_backward(
        a, b, None, None, None, by.mean, by.inverse, True, 0.0, [False, True, True]
    )
    return dot, total

"""The memory format in which tangents travel, and what is written into it."""

import torch
from torch import Tensor


class Layout:
    """Values in the memory format that tangents travel in.

    On the CPU float32 images travel channels-last, whatever the model uses: convolutions are then
    up to twice as fast, which pays for one copy of each value. The last few copies are kept,
    because the result of a ReLU is the input of the next convolution.
    """

    def __init__(self) -> None:
        self._recent: list[tuple[tuple[int, ...], Tensor]] = []

    def of(self, x: Tensor) -> Tensor:
        """``x``, copied if its memory format is not the one of the tangents."""
        if x.dim() != 4 or x.device.type != "cpu" or x.dtype != torch.float32:
            return x
        if x.is_contiguous(memory_format=torch.channels_last):
            return x
        key = (x.data_ptr(), x._version, *x.shape, *x.stride())
        for known, copy in self._recent:
            if known == key:
                return copy
        copy = x.contiguous(memory_format=torch.channels_last)
        self._recent = [*self._recent[-2:], (key, copy)]
        return copy


def room_like(x: Tensor, count: int) -> Tensor:
    """Room for ``count`` tensors like x, each in the memory format of x."""
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

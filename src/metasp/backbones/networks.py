"""The networks, as BACKBONES describes them: each has `features` and a linear `head` over all
classes of the stream. They are initialised from an explicit generator."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metasp.backbones import BACKBONES, default_width
from metasp.errors import UserError


class MLP(nn.Module):
    def __init__(self, shape: Sequence[int], classes: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.ModuleList([nn.Linear(prod(shape), width), nn.Linear(width, width)])
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


class ConvNet(nn.Module):
    def __init__(self, shape: Sequence[int], classes: int, width: int) -> None:
        super().__init__()
        channels = [shape[0], width, 2 * width, 4 * width]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(channels)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in channels[1:])
        self.head = nn.Linear(channels[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            x = F.relu(norm(conv(x)))
            if index < 2:
                x = F.max_pool2d(x, 2)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Sequential()
        if stride != 1 or inner != outer:
            self.shortcut.append(nn.Conv2d(inner, outer, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, shape: Sequence[int], classes: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        blocks: list[nn.Module] = []
        for stage in range(4):
            blocks.append(Block(sizes[stage], sizes[stage + 1], 1 if stage == 0 else 2))
            blocks.append(Block(sizes[stage + 1], sizes[stage + 1], 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(sizes[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(F.relu(self.norm(self.stem(x))))
        return out.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


DRAWN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose initial weights are random
CONSTANT = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)  # and those that are not


def build(
    name: str, shape: Sequence[int], classes: int, width: int | None, generator: torch.Generator
) -> nn.Module:
    """Return a network for inputs of `shape` (without the batch axis), freshly initialised."""
    width = width or default_width(name)
    if name != "mlp" and len(shape) != 3:
        raise UserError(f"backbone {name!r} needs images, and these inputs are rows: use mlp.")
    if name != "mlp" and min(shape[1:]) < 4:
        raise UserError(f"backbone {name!r} needs images of at least 4×4 pixels: use mlp.")
    with torch.device("meta"):  # constructors would draw from the global random state
        model: nn.Module = BACKBONES[name].kind(shape, classes, width)
    try:
        allocate(model)
    except RuntimeError as error:  # torch's word for a system that is out of memory
        count = sum(p.numel() for p in model.parameters())
        raise UserError(
            f"{name} of width {width} has {count:.2g} weights, too many for this machine: give a "
            "smaller --width."
        ) from error
    initialise(model, generator)
    return model


def allocate(model: nn.Module) -> None:
    """Give a model that was built on torch's meta device memory of its own, with nothing in it.
    (`to_empty` does so too, but loads the symbolic shapes of torch's compiler, for .3 s.)"""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
            setattr(module, name, nn.Parameter(empty, parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu"))


def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Initialise as PyTorch does by default, drawing from the generator."""
    for module in model.modules():
        if isinstance(module, DRAWN):
            nn.init.kaiming_uniform_(module.weight, a=sqrt(5), generator=generator)
            if module.bias is not None:
                bound = 1 / sqrt(module.weight[0].numel())
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        elif isinstance(module, CONSTANT):
            module.reset_parameters()

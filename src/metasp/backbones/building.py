"""Networks built and initialised from an explicit generator."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from metasp.backbones import BACKBONES, default_width
from metasp.errors import UserError

DRAWN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose initial weights are random
CONSTANT = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)  # and those that are not


def build(
    name: str, shape: Sequence[int], classes: int, width: int | None, generator: torch.Generator
) -> nn.Module:
    """A network for inputs of `shape` (without the batch axis), freshly initialised."""
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
    """PyTorch's default initialisation, drawn from the given generator."""
    for module in model.modules():
        if isinstance(module, DRAWN):
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
            if module.bias is not None:
                bound = 1 / math.sqrt(module.weight[0].numel())
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        elif isinstance(module, CONSTANT):
            module.reset_parameters()

"""A last layer that grows with the classes; what was learned stays to the bit."""

import math

import torch
from torch import Tensor, nn

from metasp.errors import UserError, unknown

LARGEST = 1_000_000  # outputs: a label beyond is a mistake, not a class


def head_layer(model: nn.Module, name: str) -> nn.Linear:
    """Return the linear layer of that name."""
    linears = [key for key, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if name not in linears:
        if not linears:
            raise UserError("head names a linear layer, and the model has none: leave it out.")
        raise unknown("linear layer", name, linears)
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    for key, parameter in model.named_parameters(remove_duplicate=False):
        if parameter is layer.weight and key != f"{name}.weight":
            raise UserError(
                f"head={name!r} shares its weight with {key!r} and cannot grow alone: give it all "
                "the outputs it will need, and leave head out."
            )
    return layer


def resize_head(
    layer: nn.Linear, size: int, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> None:
    """Give the layer `size` outputs: old ones stay, new ones are drawn as a new layer's would be;
    the optimizer follows, with no momentum for the new."""
    if layer.out_features == size:
        return
    if size > LARGEST:
        raise UserError(
            f"label {size - 1} would make a last layer of {size} outputs: number the classes from "
            "0."
        )
    for key in ("weight", "bias"):
        old = getattr(layer, key)
        if old is None:
            continue
        bound = 1 / math.sqrt(layer.in_features)
        more = torch.empty(max(0, size - len(old)), *old.shape[1:])
        more.uniform_(-bound, bound, generator=generator)
        new = nn.Parameter(extended(old.detach(), more, size), old.requires_grad)
        setattr(layer, key, new)
        replace_in_optimizer(optimizer, old, new, size)
    layer.out_features = size


def replace_in_optimizer(
    optimizer: torch.optim.Optimizer, old: nn.Parameter, new: Tensor, size: int
) -> None:
    """Replace a parameter by its successor in the optimizer."""
    begin = 0.0
    for group in optimizer.param_groups:
        if any(p is old for p in group["params"]):
            begin = group.get("initial_accumulator_value", 0.0)  # of Adagrad
        group["params"] = [new if p is old else p for p in group["params"]]
    state = optimizer.state.pop(old, None)
    if state is None:
        return
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == old.shape:
            more = value.new_full((max(0, size - len(value)), *value.shape[1:]), begin)
            state[name] = extended(value, more, size)
    optimizer.state[new] = state


def extended(rows: Tensor, more: Tensor, size: int) -> Tensor:
    """Return the first `size` of the rows and of `more` after them."""
    return torch.cat([rows, more.to(rows)])[:size].clone()

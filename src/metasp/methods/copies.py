"""Copies of a network: its parameters and buffers by name, kept beside the one that learns."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from metasp.influence.origin import with_tensors
from metasp.methods.context import TrainingContext, evaluating
from metasp.trees import Tree
from metasp.types import State

VALUE = ".value"  # ends the names of stored weights, whatever their own names end in

Copy = dict[str, Tensor]
"""The parameters and buffers of a model, by name."""


def named(model: nn.Module) -> Copy:
    """The model's own."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def copy_of(model: nn.Module) -> Copy:
    return {name: tensor.detach().clone() for name, tensor in named(model).items()}


@torch.no_grad()
def outputs_by(learner: TrainingContext, copy: Copy, inputs: Tree) -> Tensor:
    """What the network would say with these weights, in evaluation mode."""
    with evaluating(learner.model), with_tensors(learner.model, copy):
        return learner.outputs(inputs)


def as_state(name: str, copy: Copy) -> State:
    return {f"{name}.{key}{VALUE}": tensor for key, tensor in copy.items()}


def from_state(name: str, state: Mapping[str, Tensor], model: nn.Module) -> Copy:
    """The copy that was stored under this name; empty where none was."""
    now, start = named(model), f"{name}."
    found = {
        key.removeprefix(start).removesuffix(VALUE): value
        for key, value in state.items()
        if key.startswith(start) and key.endswith(VALUE)
    }
    return {key: laid_out_like(now[key], value) for key, value in found.items()}


def laid_out_like(now: Tensor, stored: Tensor) -> Tensor:
    """A stored tensor where and as the model holds the one of its name: the order in memory
    decides the last bits. A head that has grown since had another size; a file gives single
    numbers an axis."""
    if now.numel() != stored.numel():
        return stored.to(now.device).clone()
    return torch.empty_like(now, requires_grad=False).copy_(stored.reshape(now.shape))

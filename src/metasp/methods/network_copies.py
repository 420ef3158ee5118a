"""Features that enter a network's head, and copies of a network beside the one that learns."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from metasp.influence.functional import with_tensors
from metasp.influence.sharding import all_rows
from metasp.methods.context import TrainingContext, evaluating
from metasp.trees import Tree
from metasp.types import State, as_rows

VALUE = ".value"  # ends the names of stored weights, whatever their own names end in


def head_of(model: nn.Module) -> nn.Module | None:
    """Return the layer that makes outputs of features: the attribute `head`, or else the model's
    last linear layer; None where it has neither."""
    named = getattr(model, "head", None)
    if isinstance(named, nn.Module):
        return named
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else None


@contextmanager
def features_seen(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what enters the model's head in each pass, or its outputs where no head is called,
    as rows (n, d)."""
    seen: list[Tensor] = []

    def before_head(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(all_rows(as_rows(inputs[0])))

    def after_model(_: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
        if not seen:
            seen.append(as_rows(getattr(out, "logits", out)))

    handles = [model.register_forward_hook(after_model)]
    if (head := head_of(model)) is not None:
        handles.append(head.register_forward_pre_hook(before_head))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class NetworkCopy:
    """The parameters and buffers of a learner's network by name, as they once were; none yet at
    first."""

    def __init__(self, learner: TrainingContext) -> None:
        self.learner = learner
        self.tensors: dict[str, Tensor] = {}

    def take(self) -> None:
        """Copy the network as it stands."""
        now = named_tensors(self.learner.model)
        self.tensors = {name: tensor.detach().clone() for name, tensor in now.items()}

    @torch.no_grad()
    def put(self) -> None:
        """Give the network the weights of the copy."""
        for name, tensor in named_tensors(self.learner.model).items():
            tensor.copy_(self.tensors[name])

    def drop(self) -> None:
        """Keep no copy."""
        self.tensors = {}

    @torch.no_grad()
    def outputs(self, inputs: Tree) -> Tensor:
        """Return the outputs that the network would have with these weights, in evaluation mode."""
        model = self.learner.model
        with evaluating(model), with_tensors(model, self.tensors):
            return self.learner.outputs(inputs)

    @torch.no_grad()
    def move(self, decay: float) -> None:
        """Average with the network, keeping `decay` of the copy; what is counted in whole numbers
        is taken over."""
        for key, tensor in named_tensors(self.learner.model).items():
            if tensor.is_floating_point():
                self.tensors[key].mul_(decay).add_(tensor.detach(), alpha=1 - decay)
            else:
                self.tensors[key].copy_(tensor)

    def grow(self) -> None:
        """Take the shape of the network: a head that has grown has its new outputs from there."""
        for key, tensor in named_tensors(self.learner.model).items():
            if self.tensors[key].shape != tensor.shape:
                grown = tensor.detach().clone()
                grown[tuple(slice(size) for size in self.tensors[key].shape)] = self.tensors[key]
                self.tensors[key] = grown

    def state_dict(self) -> State:
        return {f"{name}{VALUE}": tensor for name, tensor in self.tensors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        now = named_tensors(self.learner.model)
        self.tensors = {}
        for key, tensor in state.items():
            name = key.removesuffix(VALUE)
            self.tensors[name] = laid_out_like(now[name], tensor)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def laid_out_like(now: Tensor, stored: Tensor) -> Tensor:
    """Return a stored tensor where and as the model holds the one of its name: the order in memory
    decides the last bits. A head that has grown since had another size; a file gives single
    numbers an axis."""
    if now.numel() != stored.numel():
        return stored.to(now.device).clone()
    return torch.empty_like(now, requires_grad=False).copy_(stored.reshape(now.shape))

"""What every forward pass starts from, so that nothing drifts: buffers and random state."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from metasp.errors import UserError


@dataclass(frozen=True)
class RandomState:
    """The global random streams a forward pass may draw from (torch, Python, numpy)."""

    cpu: Tensor
    device: torch.device
    accelerator: Tensor | None
    python: Any
    numpy: Any

    @classmethod
    def capture(cls, device: torch.device, torch_only: bool = False) -> "RandomState":
        """The state now; ``device`` is where the model lives."""
        accelerator = None
        if device.type == "cuda":
            accelerator = torch.cuda.get_rng_state(device)
        elif device.type == "mps":
            accelerator = torch.mps.get_rng_state()
        if torch_only:
            return cls(torch.get_rng_state(), device, accelerator, None, None)
        others = (random.getstate(), np.random.get_state())
        return cls(torch.get_rng_state(), device, accelerator, *others)

    def restore(self) -> None:
        """Put all streams back."""
        torch.set_rng_state(self.cpu)
        if self.accelerator is not None and self.device.type == "mps":
            torch.mps.set_rng_state(self.accelerator)
        elif self.accelerator is not None:
            torch.cuda.set_rng_state(self.accelerator, self.device)
        if self.python is not None:
            random.setstate(self.python)
            np.random.set_state(self.numpy)


@contextmanager
def kept_random_state(device: torch.device) -> Iterator[RandomState]:
    """Yield the random state and put it back on the way out, also after an exception."""
    state = RandomState.capture(device)
    try:
        yield state
    finally:
        state.restore()


@dataclass(frozen=True)
class Origin:
    """The buffers and the random state that all forward passes of one influence share."""

    buffers: dict[str, Tensor]
    random: RandomState

    @classmethod
    def of(cls, model: nn.Module, device: torch.device) -> "Origin":
        """Copies of the model's buffers and random state as they are now."""
        check_functional(model)
        return cls(copies(dict(model.named_buffers())), RandomState.capture(device))

    @contextmanager
    def at(self, model: nn.Module, params: Mapping[str, Tensor]) -> Iterator[None]:
        """The model with ``params`` in place of its own, from these buffers and random state, until
        the block ends; see `with_tensors`."""
        with with_tensors(model, {**copies(self.buffers), **params}):
            self.random.restore()
            yield


@contextmanager
def with_tensors(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Other tensors in place of the model's parameters and buffers, by name, until the block ends.

    A backward pass belongs inside: checkpointed layers run again in it. (``functional_call`` ends
    with the forward pass, and loses the parameters of a module that has two names.)
    """
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    by = {id(named[name]): value for name, value in values.items()}
    slots: list[tuple[Any, str, Tensor | None]] = []
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            slots += [(held, key, tensor) for key, tensor in held.items() if id(tensor) in by]
    # Hooks of older kinds (pruning, spectral norm) leave what they make of a parameter as a plain
    # attribute.
    made = [(vars(module), key, value) for module in model.modules() if module._forward_pre_hooks
            for key, value in vars(module).items() if isinstance(value, Tensor)]  # fmt: skip
    try:
        for held, key, tensor in slots:
            held[key] = by[id(tensor)]
        yield
    finally:
        for held, key, tensor in [*slots, *made]:
            held[key] = tensor


def check_functional(model: nn.Module) -> None:
    """Raise if the model cannot run at other parameters than its own."""
    wrapped = isinstance(model, nn.DataParallel)
    if wrapped or isinstance(model, torch.jit.ScriptModule):
        unwrapped = "model.module" if wrapped else "the module it was made of"
        raise UserError(
            f"a {'DataParallel' if wrapped else 'scripted'} model cannot take a virtual step: "
            f"pass {unwrapped} instead."
        )


def shortened(model: nn.Module) -> list[Tensor]:
    """The weights of embeddings with a `max_norm`, which every forward pass shortens."""
    return [m.weight for m in model.modules() if getattr(m, "max_norm", None) is not None
            and isinstance(m, nn.Embedding | nn.EmbeddingBag)]  # fmt: skip


@contextmanager
def kept_values(model: nn.Module) -> Iterator[None]:
    """Undo the shortening of embeddings, and what a checkpointed layer that runs again in a
    backward pass writes into its buffers."""
    touched = [*shortened(model), *model.buffers()]
    before = [tensor.detach().clone() for tensor in touched]
    try:
        yield
    finally:
        for tensor, kept in zip(touched, before):
            tensor.data.copy_(kept)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detached copies: what a forward pass writes into them stays there."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@contextmanager
def with_parameters(model: nn.Module, params: Mapping[str, Tensor]) -> Iterator[None]:
    """The model at ``params`` (any subset of its names) until the block ends, in which a backward
    pass belongs; its buffers do not move.

    The random state does move, as in an ordinary forward pass.
    """
    check_functional(model)
    buffers = copies(dict(model.named_buffers()))
    with kept_values(model), with_tensors(model, {**buffers, **params}):
        yield


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Attention by its plain formula: the fused CPU kernel has neither tangent nor second order."""
    with sdpa_kernel(SDPBackend.MATH):
        yield

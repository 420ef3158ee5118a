"""What every forward pass starts from, so that nothing drifts: buffers and random state."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
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
        check_plain(model)
        return cls(copies(dict(model.named_buffers())), RandomState.capture(device))

    def run(self, model: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> Any:
        """The model's outputs with ``params`` in place of its own, leaving no trace in it."""
        self.random.restore()
        return functional_call(model, {**copies(self.buffers), **params}, (inputs,))


def check_plain(model: nn.Module) -> None:
    """Raise if the model cannot run at other parameters than its own."""
    wrapped = isinstance(model, nn.DataParallel)
    if wrapped or isinstance(model, torch.jit.ScriptModule):
        plain = "model.module" if wrapped else "the module it was made of"
        raise UserError(
            f"a {'DataParallel' if wrapped else 'scripted'} model cannot take a virtual step: "
            f"pass {plain} instead."
        )


def shortened(model: nn.Module) -> list[Tensor]:
    """The weights of embeddings with a `max_norm`, which every forward pass shortens."""
    return [m.weight for m in model.modules() if getattr(m, "max_norm", None) is not None
            and isinstance(m, nn.Embedding | nn.EmbeddingBag)]  # fmt: skip


@contextmanager
def kept_norms(model: nn.Module) -> Iterator[None]:
    """Undo the shortening of embeddings."""
    weights = shortened(model)
    before = [weight.detach().clone() for weight in weights]
    try:
        yield
    finally:
        for weight, kept in zip(weights, before):
            weight.data.copy_(kept)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detached copies: what a forward pass writes into them stays there."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def evaluate_at(model: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> Any:
    """The model's outputs at ``params`` (any subset of its names); its buffers do not move.

    The random state does move, as in an ordinary forward pass.
    """
    check_plain(model)
    buffers = copies(dict(model.named_buffers()))
    with kept_norms(model):
        return functional_call(model, {**buffers, **params}, (inputs,))


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Attention by its plain formula: the fused CPU kernel has neither tangent nor second order."""
    with sdpa_kernel(SDPBackend.MATH):
        yield

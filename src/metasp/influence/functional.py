"""Where every forward pass starts: buffers, attributes and random state, so that nothing drifts."""

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from metasp.influence.checks import check_finite, check_losses
from metasp.influence.checks import check_functional as check_functional
from metasp.trees import Tree, call

Outputs = TypeVar("Outputs")
LossOf = Callable[[Outputs, Tensor], Tensor]
"""(outputs of the model, targets) to one loss per example."""
Loss = LossOf[Any]
Pair = tuple[Tree, Tensor]
Named = dict[str, Tensor]


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
        """Return the state now; ``device`` is where the model lives."""
        accelerator = None
        if device.type == "cuda":
            accelerator = torch.cuda.get_rng_state(device)
        elif device.type == "mps":
            accelerator = torch.mps.get_rng_state()
        if torch_only:
            return cls(torch.get_rng_state(), device, accelerator, None, None)
        python, numpy = random.getstate(), np.random.get_state()
        return cls(torch.get_rng_state(), device, accelerator, python, numpy)

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


Attributes = list[tuple[nn.Module, dict[str, Any]]]
_MODULE = frozenset(vars(nn.Module()))  # what every module has, such as its list of hooks
_CONTAINERS = (list, dict, set, deque)


def attributes_of(model: nn.Module) -> Attributes:
    """Return the plain attributes of each module, such as a counter that its forward pass moves."""
    return [(module, dict(vars(module))) for module in model.modules()]


def copied_containers(attributes: Attributes) -> Attributes:
    """Copy the lists, dictionaries and sets among the attributes, which a pass may append to."""
    copied: Attributes = []
    for module, values in attributes:
        fresh = {
            name: copy(value)
            for name, value in values.items()
            if type(value) in _CONTAINERS and name not in _MODULE
        }
        copied.append((module, {**values, **fresh} if fresh else values))
    return copied


def restore_attributes(attributes: Attributes) -> None:
    """Put plain attributes back, and drop those that were not there."""
    for module, values in attributes:
        present = vars(module)
        if present.keys() != values.keys():
            present.clear()
        present.update(values)


@dataclass(frozen=True)
class Origin:
    """The buffers, attributes and random state that all forward passes of one influence share."""

    buffers: dict[str, Tensor]
    attributes: Attributes
    random: RandomState

    @classmethod
    def of(cls, model: nn.Module, device: torch.device) -> "Origin":
        """Copy the model's buffers, attributes and random state as they are now."""
        check_functional(model)
        buffers = copies(dict(model.named_buffers()))
        attributes = copied_containers(attributes_of(model))
        return cls(buffers, attributes, RandomState.capture(device))

    @contextmanager
    def at(self, model: nn.Module) -> Iterator[None]:
        """Let the model start from these buffers, attributes and random state, until the block
        ends; see `with_tensors`."""
        with kept_attributes(model):
            restore_attributes(copied_containers(self.attributes))
            with with_tensors(model, copies(self.buffers)):
                self.random.restore()
                yield


@contextmanager
def kept_attributes(model: nn.Module) -> Iterator[None]:
    """Put the plain attributes of all modules back on the way out."""
    before = attributes_of(model)
    try:
        yield
    finally:
        restore_attributes(before)


@contextmanager
def with_tensors(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Put other tensors in place of the model's parameters and buffers, by name, until the block
    ends.

    A backward pass belongs inside: checkpointed layers run again in it. (``functional_call`` ends
    with the forward pass, and loses the parameters of a module that has two names.)
    """
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    by = {id(named[name]): value for name, value in values.items()}
    slots: list[tuple[Any, str, Tensor | None]] = []
    made: list[tuple[Any, str, Tensor | None]] = []
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            slots += [(tensors, key, tensor) for key, tensor in tensors.items() if id(tensor) in by]
        if module._forward_pre_hooks:
            # Hooks of older kinds (pruning, spectral norm) leave what they make of a parameter as
            # a plain attribute.
            plain = vars(module)
            made += [(plain, k, v) for k, v in plain.items() if isinstance(v, Tensor)]
    try:
        for tensors, key, tensor in slots:
            tensors[key] = by[id(tensor)]
        yield
    finally:
        for tensors, key, tensor in [*slots, *made]:
            tensors[key] = tensor


@contextmanager
def with_values(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Give the model's own parameters other numbers, by name, until the block ends, and make those
    that are not named constants. Yields the named parameters.

    Whatever refers to a parameter sees these numbers: a list of weights, a closure, a scripted
    layer, a penalty in the loss. A backward pass belongs inside.
    """
    params = dict(model.named_parameters())
    before = [(p, p.data, p.requires_grad) for p in params.values()]
    try:
        for name, p in params.items():
            p.requires_grad_(name in values)
            if name in values:
                p.data = values[name].detach()
        yield {name: params[name] for name in values}
    finally:
        for p, data, needed in before:
            p.data = data
            p.requires_grad_(needed)


def shortened(model: nn.Module) -> list[Tensor]:
    """Return the weights of embeddings with a `max_norm`, which every forward pass shortens."""
    return [m.weight for m in model.modules() if getattr(m, "max_norm", None) is not None
            and isinstance(m, nn.Embedding | nn.EmbeddingBag)]  # fmt: skip


def norms(model: nn.Module) -> Tensor:
    """Return the norm of each parameter that is not one which every pass shortens."""
    passing = {id(weight) for weight in shortened(model)}
    values = torch._foreach_norm([p.detach() for p in model.parameters() if id(p) not in passing])
    return torch.stack([value.double() for value in values])


@contextmanager
def kept_values(model: nn.Module) -> Iterator[None]:
    """Undo the shortening of embeddings, and what a checkpointed layer that runs again in a
    backward pass writes into its buffers."""
    touched = [*shortened(model), *model.buffers()]
    before = [tensor.detach().clone() for tensor in touched]
    try:
        yield
    finally:
        for tensor, value in zip(touched, before):
            tensor.data.copy_(value)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return detached copies: what a forward pass writes into them stays there."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@contextmanager
def with_parameters(model: nn.Module, params: Mapping[str, Tensor]) -> Iterator[None]:
    """Put ``params`` (any subset of the model's names) in place until the block ends, in which a
    backward pass belongs; its buffers do not move.

    The random state does move, as in an ordinary forward pass.
    """
    check_functional(model)
    buffers = copies(dict(model.named_buffers()))
    with kept_values(model), kept_attributes(model), with_tensors(model, {**buffers, **params}):
        yield


def uncompiled() -> AbstractContextManager[Any]:
    """Let compiled parts of a model run as they were written: what looks at each operation cannot
    look into them."""
    if "torch._dynamo" not in sys.modules:  # which nobody has loaded who did not compile
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Let gradients of the model be computed, as it was written, whatever is set outside, and leave
    its values and the random state as they were."""
    with (
        kept_random_state(device),
        kept_values(model),
        torch.inference_mode(False),
        torch.enable_grad(),
        uncompiled(),
    ):
        yield


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Attention by its plain formula: the fused CPU kernel has neither tangent nor second order."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def example_losses(model: nn.Module, loss_fn: Loss, batch: Pair, what: str = "batch") -> Tensor:
    """Return the losses of a batch, shape (n,), with a graph."""
    losses = loss_fn(call(model, batch[0]), batch[1])
    check_losses(losses, len(batch[1]), what)
    return losses


@dataclass(frozen=True)
class Problem:
    """The losses of a batch as a function of the parameters: everything else is fixed."""

    model: nn.Module
    loss_fn: Loss
    batch: Pair
    origin: Origin
    what: str = "batch"  # what a sentence about it calls it

    @contextmanager
    def losses(
        self, theta: Mapping[str, Tensor], recorder: AbstractContextManager[Any] | None = None
    ) -> Iterator[tuple[Tensor, Named]]:
        """Yield the losses at ``theta``, shape (n,), and the model's parameters, which have these
        values until the block ends. Those that ``theta`` does not name are constants, so that no
        graph is built below the lowest one that it does. The pass itself runs within
        ``recorder``."""
        with self.origin.at(self.model), with_values(self.model, theta) as params:
            with recorder or nullcontext():
                losses = example_losses(self.model, self.loss_fn, self.batch, self.what)
            yield losses, params

    def mean_loss(self, theta: Mapping[str, Tensor]) -> Tensor:
        """Return the mean of the losses at ``theta``."""
        with torch.no_grad(), self.origin.at(self.model), with_values(self.model, theta):
            return self.loss_fn(call(self.model, self.batch[0]), self.batch[1]).mean()


def gradient(problem: Problem, theta: Named) -> tuple[Tensor, Named]:
    """Return the mean loss and its gradient for each parameter of ``theta``; one that the loss does
    not use has no entry."""
    with problem.losses(theta) as (losses, leaves):
        mean = losses.mean()
        slopes = torch.autograd.grad(mean, list(leaves.values()), allow_unused=True)
    grads = by_name(leaves, slopes)
    check_finite(losses.detach(), grads, problem.what)
    return mean.detach(), grads


def by_name(names: Iterable[str], grads: Iterable[Tensor | None]) -> Named:
    """Return the gradients that there are, by name, with all rows of an embedding's."""
    present = {k: g for k, g in zip(names, grads) if g is not None}
    return {k: g.to_dense() if g.is_sparse else g for k, g in present.items()}


def dense(grad: Tensor) -> Tensor:
    """Return all of the gradient of an embedding, which may hold its rows alone (sparse=True)."""
    return grad.to_dense() if grad.is_sparse else grad

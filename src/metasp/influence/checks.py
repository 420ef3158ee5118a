"""Checks of what goes in and what comes out: right, or refused in one sentence.

Three kinds: mistakes in the arguments; models whose training step is not the derivative of their
loss, found by looking (`check_traps`, `trap_of_call`); and products that do not agree with the
gradient, found by one number per direction (`check_slopes`, `check_symmetric`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from metasp.errors import UserError
from metasp.trees import Tree, named_leaves, with_plain_dicts


def checked_pair(pair: tuple[Tree, Tensor], device: torch.device, what: str) -> tuple[Tree, Tensor]:
    """Return the pair, or raise unless it is (inputs, targets) of one length on the model's device;
    inputs are a tree of tensors."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise UserError(f"the {what} must be a pair (inputs, targets).")
    inputs, targets = with_plain_dicts(pair[0]), pair[1]
    leaves = {f"inputs{path}": leaf for path, leaf in named_leaves(inputs).items()}
    for name, leaf in {**leaves, "targets": targets}.items():
        if not isinstance(leaf, Tensor):
            raise UserError(
                f"{name} of the {what} is a {type(leaf).__name__}: inputs are a tensor, or a tuple "
                "or a dictionary of tensors, and targets are a tensor."
            )
        if leaf.device != device:
            raise UserError(
                f"the {name} of the {what} are on {leaf.device} and the model on {device}: "
                "move them to one device."
            )
    for name, leaf in leaves.items():
        if leaf.dim() == 0 or targets.dim() == 0 or len(leaf) != len(targets):
            raise UserError(
                f"the {what} has {name} of shape {tuple(leaf.shape)} and targets of shape "
                f"{tuple(targets.shape)}: give one target per input."
            )
    if not leaves or len(targets) == 0:
        raise UserError(f"the {what} is empty: give at least one example.")
    return inputs, targets


def check_steps(steps: Any) -> None:
    """Raise unless it is a number of pseudo steps."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        raise UserError(f"steps is {steps!r}: give a whole number of pseudo steps, at least 1.")


def check_losses(losses: Any, n: int, what: str) -> None:
    """Raise unless there is one differentiable number per example."""
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    if shape != (n,):
        raise UserError(
            f"the loss of the {what} has shape {shape} for {n} examples: return one number per "
            'example, for instance F.cross_entropy with reduction="none".'
        )
    if not losses.requires_grad:
        raise UserError(
            f"the loss of the {what} does not depend on any trainable parameter in scope: "
            "check that the model's forward pass keeps its graph."
        )


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether every number is finite (one pass; overflow of the norm counts as not)."""
    if not tensors:
        return True
    norms = torch._foreach_norm(list(tensors.values()))
    return bool(torch.stack([n.double() for n in norms]).isfinite().all())


def check_finite(losses: Tensor, grads: Mapping[str, Tensor], what: str) -> None:
    """Raise if a loss or a gradient is not finite, naming the example and the tensor."""
    if all_finite(grads) and bool(losses.isfinite().all()):
        return
    bad_losses = (~losses.isfinite()).nonzero()
    tensor = next((k for k, g in grads.items() if not bool(g.isfinite().all())), None)
    if tensor is None and not len(bad_losses):
        return  # the norm overflowed, the numbers did not
    culprit = f"example {int(bad_losses[0])} of the {what}" if len(bad_losses) else f"the {what}"
    where = f" in the gradient of {tensor!r}" if tensor is not None else " in its loss"
    raise UserError(
        f"{culprit} gives a number that is not finite{where}: "
        "check its input, or lower the learning rate."
    )


@contextmanager
def enough_values(sentence: str) -> Iterator[None]:
    """Turn torch's complaint about too few examples for BatchNorm into one sentence."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(f"batch normalisation {sentence}") from error


BATCHNORM_NEEDS_TWO = (
    "needs two examples or more in the batch and in each goal: give more of them, larger pictures, "
    "or a network without it."
)
_TRANSLATED = {
    "second time": "the graph of this recorded pass is used up: measure its influence before "
    "backward().",
    "use_reentrant=True": "a re-entrant checkpoint cannot be differentiated for "
    "some of the parameters: checkpoint with use_reentrant=False.",
}


@contextmanager
def translated() -> Iterator[None]:
    """Turn what torch says of a few mistakes into one sentence each."""
    try:
        with enough_values(BATCHNORM_NEEDS_TWO):
            yield
    except RuntimeError as error:
        sentence = next((s for text, s in _TRANSLATED.items() if text in str(error)), None)
        if sentence is None:
            raise
        raise UserError(sentence) from error


def check_functional(model: nn.Module) -> None:
    """Raise if the model cannot run at other parameters than its own."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    kind = type(model).__name__
    if isinstance(model, parallel):
        raise UserError(f"a {kind} model cannot take a virtual step: pass model.module instead.")
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError(
            "a scripted model cannot take a virtual step: pass the module it was made of instead."
        )
    if any(map(is_lazy, model.parameters())):
        raise UserError(
            f"a {kind} has layers without a shape yet: call it on a few examples first."
        )


def check_traps(model: nn.Module, moving: Iterable[str]) -> None:
    """Raise if by its looks the gradient of this model's training is not that of its loss;
    ``moving`` names the parameters in scope."""
    named = dict(model.named_parameters())
    ids = set()
    for name in moving:
        p = named[name]
        ids.add(id(p))
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise UserError(
                f"{name} has a gradient hook, which an influence cannot follow: remove it "
                "(handle.remove()); to clip gradients use clip_norm=, to freeze parameters scope=."
            )
    for module in model.modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise UserError(
                f"a {type(module).__name__} has a backward hook, which an influence cannot follow: "
                "remove it (handle.remove())."
            )
        tokens = isinstance(module, nn.Embedding | nn.EmbeddingBag) and id(module.weight) in ids
        if tokens and module.scale_grad_by_freq:
            raise UserError(_FREQUENCY)


_HOOK = (
    "a hook on a tensor inside the model may change its gradient, which an influence cannot "
    "follow: remove it (handle.remove())."
)
_FREQUENCY = (
    "an embedding scales its gradient by how often a token comes, so that training does not follow "
    "the slope of the loss: use scale_grad_by_freq=False."
)
_ROUNDED = (
    "the model rounds its numbers (fake quantisation), so that its loss has no slope: measure the "
    "influence before, without it."
)
WEIGHT_NORM = (
    "the second derivative of weight_norm that torch computes is wrong, and more than one pseudo "
    "step needs it: use steps=1."
)
REWRITTEN = (
    "the model changes its weights in its own forward pass, outside of what is differentiated: "
    "change them after the optimizer's step instead."
)
TRAPS: dict[Callable[..., Any], str] = {
    Tensor.register_hook: _HOOK,
    torch.fake_quantize_per_tensor_affine: _ROUNDED,
    torch.fake_quantize_per_channel_affine: _ROUNDED,
    torch.fused_moving_avg_obs_fake_quant: _ROUNDED,
    F.embedding: _FREQUENCY,
    F.embedding_bag: _FREQUENCY,
}
"""Calls through which no influence is right; embeddings where they scale by frequency."""
_SCALE_GRAD_BY_FREQ = 5  # its position among the arguments of both


def scales_by_frequency(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call of an embedding scales its gradient by how often a token comes."""
    weight = args[1] if len(args) > 1 else kwargs["weight"]
    positional = args[_SCALE_GRAD_BY_FREQ:]
    scaled = positional[0] if positional else kwargs.get("scale_grad_by_freq", False)
    return bool(scaled and weight.requires_grad)


def inner(s: Tensor, g: Tensor) -> Tensor:
    """Return the inner product of each s (directions, *shape) with g (*shape)."""
    if g.dim() == 4 and not g.is_contiguous():  # channels last: no copy
        s, g = s.movedim(2, -1), g.movedim(1, -1)
    return s.reshape(len(s), -1) @ g.reshape(-1)


class Disagree(Exception):
    """A product is not what the gradient says."""


def check_slopes(
    product: Tensor, directions: Mapping[str, Tensor], grads: Mapping[str, Tensor], loss: Tensor
) -> None:
    """Raise `Disagree` unless the mean over the examples of J s (directions, n) is the slope of the
    mean loss, <gradient, s>, up to rounding; ``loss`` is a typical loss."""
    rows = torch.cat([s.reshape(len(s), -1) for s in directions.values()], 1)
    gradient = torch.cat([grads[k].reshape(-1) for k in directions])
    slopes, means = rows @ gradient, product.mean(1)
    allowed = tolerance(float(loss), loss.dtype) * (product.abs().mean(1) + slopes.abs())
    # Each gradient carries the rounding of the loss: all that is left of it at a stationary point.
    rounding = 50 * torch.finfo(loss.dtype).eps * loss.abs() * rows.norm(dim=1)
    if bool(((means - slopes).abs() > allowed + rounding).any()):
        raise Disagree


def check_symmetric(curved: Mapping[str, Tensor], directions: Mapping[str, Tensor]) -> None:
    """Raise `Disagree` unless <s, H t> = <t, H s> up to rounding, for the two directions s, t."""
    one = torch.stack([inner(h[:1], directions[k][1]) for k, h in curved.items()])
    two = torch.stack([inner(h[1:], directions[k][0]) for k, h in curved.items()])
    gap, size = float((one.sum() - two.sum()).abs()), float(one.abs().sum() + two.abs().sum())
    if gap > 40 * torch.finfo(one.dtype).eps ** 0.5 * size:
        raise Disagree


def tolerance(loss: float, dtype: torch.dtype) -> float:
    """Return the part by which two roundings of a slope may differ. Where all losses are nearly
    zero the gradient is a difference of nearly equal numbers."""
    eps = torch.finfo(dtype).eps
    return float(4 * eps**0.5 + 50 * eps / max(abs(loss), 1e-300))


DISAGREE = (
    "the gradient of this model is not the slope of its loss, for some part of it changes or "
    "rounds gradients: take that part out, for instance hooks, scripted or quantised layers, or "
    "put them into a module that is left out by scope=."
)

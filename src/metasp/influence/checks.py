"""Input checks: one clear sentence for each mistake, and which example or tensor it is."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.trees import Tree, named_leaves, with_plain_dicts


def checked_pair(pair: tuple[Tree, Tensor], device: torch.device, what: str) -> tuple[Tree, Tensor]:
    """The pair as it is, or an error unless it is (inputs, targets) of one length on the model's
    device; inputs are a tree of tensors."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise UserError(f"the {what} must be a pair (inputs, targets).")
    inputs, targets = with_plain_dicts(pair[0]), pair[1]
    if not isinstance(targets, Tensor):
        raise UserError(f"the targets of the {what} are not a tensor: give one target per input.")
    parts = {f"inputs{place}": leaf for place, leaf in named_leaves(inputs).items()}
    for name, part in parts.items():
        if not isinstance(part, Tensor):
            raise UserError(
                f"{name} of the {what} is a {type(part).__name__}: inputs are a tensor, or a tuple "
                "or a dictionary of tensors."
            )
    if not parts:
        raise UserError(f"the {what} has no inputs: give at least one tensor.")
    for name, part in parts.items():
        if part.dim() == 0 or targets.dim() == 0 or len(part) != len(targets):
            raise UserError(
                f"the {what} has {name} of shape {tuple(part.shape)} and targets of shape "
                f"{tuple(targets.shape)}: give one target per input."
            )
    if len(targets) == 0:
        raise UserError(f"the {what} is empty: give at least one example.")
    for name, part in {**parts, "targets": targets}.items():
        if part.device != device:
            raise UserError(
                f"the {name} of the {what} are on {part.device} and the model on {device}: "
                "move them to one device."
            )
    return inputs, targets


def check_steps(steps: Any) -> None:
    """Raise unless it is a number of pseudo steps."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        raise UserError(f"steps is {steps!r}: give a whole number of pseudo steps, at least 1.")


def example_losses(
    loss_fn: Callable[[Any, Tensor], Tensor], outputs: Any, pair: tuple[Tree, Tensor], what: str
) -> Tensor:
    """The losses of ``pair``, one per example, shape (n,), with a graph."""
    losses = loss_fn(outputs, pair[1])
    check_losses(losses, len(pair[1]), what)
    return losses


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
    """Whether every number is finite (one pass; overflow of the norm counts as not)."""
    if not tensors:
        return True
    norms = torch._foreach_norm(list(tensors.values()))
    return bool(torch.stack([n.double() for n in norms]).isfinite().all())


def check_finite(
    losses: Tensor,
    grads: Mapping[str, Tensor],
    what: str,
    culprit: Callable[[], int | None],
) -> None:
    """Raise if a loss or a gradient is not finite, naming the example and the tensor.

    ``culprit()`` looks for the example when the losses themselves do not show it.
    """
    if all_finite(grads) and bool(losses.isfinite().all()):
        return
    bad_losses = (~losses.isfinite()).nonzero()
    tensor = next((k for k, g in grads.items() if not bool(g.isfinite().all())), None)
    if tensor is None and not len(bad_losses):
        return  # the norm overflowed, the numbers did not
    example = int(bad_losses[0]) if len(bad_losses) else culprit()
    who = f"example {example} of the {what}" if example is not None else f"the {what}"
    where = f" in the gradient of {tensor!r}" if tensor is not None else " in its loss"
    raise UserError(
        f"{who} gives a number that is not finite{where}: "
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

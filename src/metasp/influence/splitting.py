"""One model on many processes: each computes its share of the rows of every pass.

All processes call the model with the same whole batch and get the whole outputs. So what is done
with outputs (losses, weights, influence, a choice among examples) is done by all of them alike, and
only the passes through the model are shared. BatchNorm takes its statistics over the rows of all
ranks, forward, backward and in tangents. Other layers must treat examples one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from metasp.errors import UserError
from metasp.influence.origin import with_tensors
from metasp.influence.parallel import Ranks, Share, copied, gathered, taken
from metasp.influence.split_norm import batch_norm

HERE: ContextVar[Share | None] = ContextVar("share", default=None)
"""The share that is being computed, while a pass is under way."""


class OverRanks(TorchFunctionMode):
    """While a pass is under way: what couples or draws for the rows of a batch does so for those
    of all ranks."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func in _DROPPING:
            return self._dropout(func, *args, **kwargs)
        if func is F.scaled_dot_product_attention and kwargs.get("dropout_p"):
            raise UserError(
                "attention with dropout cannot be split over processes: set its dropout to 0, or "
                "use one process."
            )
        return func(*args, **kwargs)

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        statistics = (running_mean, running_var)
        if not training:
            return F.batch_norm(input, *statistics, weight, bias, False, momentum, eps)
        return batch_norm(self.share, input, *statistics, weight, bias, momentum, eps)

    def _dropout(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        share = self.share
        with torch.no_grad():  # what all rows draw in one process
            whole = torch.ones(
                (share.count, *input.shape[1:]), dtype=input.dtype, device=input.device
            )
            noise = func(whole, p, True)[share.own]
        return input * noise


_DROPPING = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


def split_over_ranks(model: nn.Module, ranks: Ranks) -> None:
    """Let the model share every pass of `ranks.size` rows or more with the other ranks. Each must
    call it alike, with the whole batch, and gets the outputs of all rows."""
    kind = type(model)
    body: dict[str, Any] = {"forward": _sharing(kind.forward, ranks)}
    if callable(getattr(kind, "features", None)):
        body["features"] = _sharing(getattr(kind, "features"), ranks)  # noqa: B009
    model.__class__ = type(kind.__name__, (kind,), body)


def _sharing(passing: Callable[..., Any], ranks: Ranks) -> Callable[..., Any]:
    """A method of a model that makes a pass, split over the ranks."""

    def shared(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if HERE.get() is not None:  # a pass within a pass
            return passing(self, *args, **kwargs)
        count = next(len(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        with _plain_statistics(self):
            if count < ranks.size:  # too few to share: each computes all of them
                return passing(self, *args, **kwargs)
            return _pass(self, passing, Share(ranks, count), (args, kwargs))

    return shared


def _pass(model: nn.Module, passing: Callable[..., Any], share: Share, inputs: Any) -> Any:
    """One pass over this rank's rows, and the results of all."""
    named = dict(model.named_parameters()) if torch.is_grad_enabled() else {}
    named = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
    copies = dict(zip(named, copied(share.ranks, [*named.values()]))) if named else {}
    args, kwargs = tree_map(lambda t: taken(share, t) if isinstance(t, Tensor) else t, inputs)
    with with_tensors(model, copies), _under_way(share), OverRanks(share):
        outputs = passing(model, *args, **kwargs)
    size = share.own.stop - share.own.start

    def whole(leaf: Any) -> Any:
        rows = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == size
        return gathered(share, leaf) if rows else leaf

    if not isinstance(outputs, Tensor) and isinstance(getattr(outputs, "logits", None), Tensor):
        return SimpleNamespace(logits=whole(outputs.logits))
    return tree_map(whole, outputs)


def all_rows(own: Tensor) -> Tensor:
    """What a layer inside the model was given or gave, of all rows, where a pass is shared."""
    share = HERE.get()
    return own if share is None else gathered(share, own)


@contextmanager
def _under_way(share: Share) -> Iterator[None]:
    before = HERE.set(share)
    try:
        yield
    finally:
        HERE.reset(before)


@contextmanager
def _plain_statistics(model: nn.Module) -> Iterator[None]:
    """torch's SyncBatchNorm as an ordinary one, whose statistics are then those of all rows: its
    own way runs on GPUs alone, and cannot be differentiated again."""
    synchronised = [
        module
        for module in model.modules()
        if isinstance(module, nn.SyncBatchNorm) and "forward" not in vars(module)
    ]
    for module in synchronised:
        unshared = partial(nn.modules.batchnorm._BatchNorm.forward, module)
        module.forward = unshared  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in synchronised:
            del module.forward

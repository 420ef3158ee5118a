"""What many processes have in common, and each one's share of it.

All processes hold the same model and the same batch, and each computes some of the rows. Four maps
lead from what all have in common to shares of it, and back:

    copied    common -> shares   each uses it for its rows; backward: the sum over the ranks
    summed    shares -> common   the sum over the ranks; backward: a copy
    taken     common -> shares   each takes its rows; backward: all rows again
    gathered  shares -> common   all rows again; backward: each takes its rows

Each is linear, and the backward pass of one is another of them, so derivatives of any order,
forward and backward, are those of one process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from metasp.influence.jvp_rules import RULES, Linearised
from metasp.influence.parallel import Like, Ranks
from metasp.influence.second_order import Layout, Tangents


@dataclass(frozen=True)
class Share:
    """Which of `count` rows are this rank's: a stretch of them, never none."""

    ranks: Ranks
    count: int

    @property
    def bounds(self) -> list[int]:
        """Where the rows of each rank begin, and the end of the last."""
        size = self.ranks.size
        return [self.count * rank // size for rank in range(size + 1)]

    @property
    def own(self) -> slice:
        return slice(*self.bounds[self.ranks.rank : self.ranks.rank + 2])


def applied(kind: type[Function], *arguments: Any) -> Any:
    """The result of a function with derivatives of its own."""
    return kind.apply(*arguments)  # type: ignore[no-untyped-call]


class _Copied(Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.like = ranks, [Like.of(tensor) for tensor in tensors]
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, *applied(_Summed, ctx.ranks, ctx.like, *grads))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        return tuple(None if t is None else t.view_as(t) for t in tangents)


class _Summed(Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, like: Any, *tensors: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.like = ranks, like
        return tuple(ranks.sums(tensors, like))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        there = [grad for grad in grads if grad is not None]
        copies = iter(applied(_Copied, ctx.ranks, *there) if there else ())
        return (None, None, *(None if grad is None else next(copies) for grad in grads))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor | None) -> Any:
        return applied(_Summed, ctx.ranks, ctx.like, *tangents)


class _Taken(Function):
    @staticmethod
    def forward(ctx: Any, share: Share, whole: Tensor, dim: int) -> Tensor:
        ctx.share, ctx.dim = share, dim
        own = share.own
        return whole.narrow(dim, own.start, own.stop - own.start).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, applied(_Gathered, ctx.share, grad, ctx.dim), None

    @staticmethod
    def jvp(ctx: Any, _: None, tangent: Tensor, __: None) -> Any:
        return applied(_Taken, ctx.share, tangent, ctx.dim)


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, share: Share, own: Tensor, dim: int) -> Tensor:
        ctx.share, ctx.dim = share, dim
        return share.ranks.all_rows(own, share.bounds, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, applied(_Taken, ctx.share, grad, ctx.dim), None

    @staticmethod
    def jvp(ctx: Any, _: None, tangent: Tensor, __: None) -> Any:
        return applied(_Gathered, ctx.share, tangent, ctx.dim)


def copied(ranks: Ranks, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same tensors, for use by each rank on its own rows; one all-reduce per backward pass."""
    tensors = tuple(tensors)
    if has_torch_function(tensors):
        found: tuple[Tensor, ...] = handle_torch_function(copied, tensors, ranks, tensors)
        return found
    return tuple(applied(_Copied, ranks, *tensors))


def gathered(share: Share, own: Tensor) -> Tensor:
    """All ranks' rows (n, …) in their order."""
    if has_torch_function((own,)):
        found: Tensor = handle_torch_function(gathered, (own,), share, own)
        return found
    whole: Tensor = applied(_Gathered, share, own, 0)
    return whole


def taken(share: Share, whole: Tensor) -> Tensor:
    """This rank's rows of all."""
    if not whole.requires_grad:
        return whole[share.own]
    own: Tensor = applied(_Taken, share, whole, 0)
    return own


def total(ranks: Ranks, own: Tensor) -> Tensor:
    """The sum over the ranks, for use by each on its own rows."""
    (common,) = applied(_Summed, ranks, [Like.of(own)], own)
    (used,) = applied(_Copied, ranks, common)
    found: Tensor = used
    return found


def _copied_rule(out: Any, ranks: Ranks, tensors: Sequence[Tensor]) -> Linearised:
    return Linearised(tuple(t for t in tensors if t.requires_grad), lambda given, layout: given)


def _gathered_rule(out: Tensor, share: Share, own: Tensor) -> Linearised:
    def push(tangents: Tangents, layout: Layout) -> Tangents:
        (given,) = tangents
        return [None if given is None else share.ranks.all_rows(given, share.bounds, 1)]

    return Linearised((own,), push)


RULES.update({copied: _copied_rule, gathered: _gathered_rule})

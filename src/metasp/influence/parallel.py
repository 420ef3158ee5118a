"""The processes of a torch.distributed group, and each one's share of what they have in common.

Every sum is an all-reduce, whose result has the same bits on every rank.

All processes hold the same model and the same batch, and each computes some of the rows. Four maps
lead from what all have in common to shares of it, and back:

    copied    common -> shares   each uses it for its rows; backward: the sum over the ranks
    summed    shares -> common   the sum over the ranks; backward: a copy
    taken     common -> shares   each takes its rows; backward: all rows again
    gathered  shares -> common   all rows again; backward: each takes its rows

Each is linear, and the backward pass of one is another of them, so derivatives of any order are
those of one process.
"""

import atexit
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from metasp.errors import UserError
from metasp.influence.jvp_rules import RULES, Linearised
from metasp.influence.second_order import Layout, Tangents

AFTER_THE_LAST = 0.2  # seconds: what gloo needs after the last exchange, amply


class Like(NamedTuple):
    """Shape, type and device of a tensor, without its numbers."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> "Like":
        """Return what the tensor looks like."""
        return cls(tensor.shape, tensor.dtype, tensor.device)


class OthersGone(UserError):
    """Another process has ended, or cannot be reached."""


class Ranks:
    """The processes of a torch.distributed group (default: all). Every rank makes the same calls;
    `reduced` counts the all-reduces and `gathered` the gatherings of rows."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise UserError(
                "there is no process group: start with torchrun and call "
                "torch.distributed.init_process_group first."
            )
        wait_at_exit()
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.reduced = self.gathered = 0

    def sums(self, tensors: Sequence[Tensor | None], like: Sequence[Like]) -> list[Tensor | None]:
        """Return the sum of each over all processes, in one all-reduce; None where no process has
        it."""
        empty = [torch.empty(0, dtype=part.dtype, device=part.device) for part in like]
        kind = torch.float32
        for part in empty:
            kind = torch.promote_types(kind, part.dtype)
        exists = torch.tensor([float(tensor is not None) for tensor in tensors])
        flat = [
            part.new_zeros(shape.numel()) if tensor is None else tensor.detach().reshape(-1)
            for tensor, part, (shape, _, _) in zip(tensors, empty, like)
        ]
        buffer = torch.cat([*(part.to(kind) for part in flat), exists.to(empty[0].device, kind)])
        self._sum(buffer)
        *rows, existing = torch.split_with_sizes(buffer, [*map(len, flat), len(like)])
        return [
            row.reshape(shape).to(dtype) if count else None
            for row, (shape, dtype, _), count in zip(rows, like, existing.tolist())
        ]

    def all_rows(self, local: Tensor, bounds: Sequence[int], dim: int) -> Tensor:
        """Return all processes' rows along a dimension; process r has those from bounds[r] on."""
        sizes = [end - start for start, end in pairwise(bounds)]
        local = local.detach().movedim(dim, 0)
        padded = local.new_zeros(max(sizes), *local.shape[1:])  # gloo wants one size
        padded[: len(local)] = local
        flat = [torch.empty_like(padded) for _ in sizes]
        with others_alive():
            dist.all_gather(flat, padded, group=self.group)
        self.gathered += 1
        return torch.cat([part[:size] for part, size in zip(flat, sizes)]).movedim(0, dim)

    def hear(self, content: bytes = b"") -> bytes:
        """Send bytes from the first process to all. Returns what it sent."""
        size = torch.tensor(len(content))
        with others_alive():
            dist.broadcast(size, 0, group=self.group)
            if not size:
                return b""
            room = bytearray(content if self.rank == 0 else int(size))
            text = torch.frombuffer(room, dtype=torch.uint8)
            dist.broadcast(text, 0, group=self.group)
        return text.numpy().tobytes()

    def _sum(self, buffer: Tensor) -> None:
        """Add up the buffers of all processes, in place."""
        with others_alive():
            dist.all_reduce(buffer, group=self.group)
        self.reduced += 1


@cache
def wait_at_exit() -> None:
    """Let the threads of gloo come to rest before Python ends. One of them puts the last exchange
    away shortly after it is over, and with it a Python object of the thread that asked for it
    (torch's autograd keeps one there). It would abort the process if Python were ending by then,
    and torch has no way to wait for it."""
    atexit.register(time.sleep, AFTER_THE_LAST)


@contextmanager
def others_alive() -> Iterator[None]:
    """Say in one sentence that another process has ended, which torch tells in many words."""
    try:
        yield
    except RuntimeError as error:
        raise OthersGone(
            "another process of this run ended, or cannot be reached "
            f"({str(error).splitlines()[0]}): start the run again, to go on from its last "
            "checkpoint."
        ) from error


@dataclass(frozen=True)
class Share:
    """Which of `count` rows are this rank's: a stretch of them, never none."""

    ranks: Ranks
    count: int

    @property
    def bounds(self) -> list[int]:
        """Return where the rows of each rank begin, and the end of the last."""
        size = self.ranks.size
        return [self.count * rank // size for rank in range(size + 1)]

    @property
    def rows(self) -> slice:
        """Return the rows of this rank, as a slice of all of them."""
        return slice(*self.bounds[self.ranks.rank : self.ranks.rank + 2])


def applied(kind: type[Function], *arguments: Any) -> Any:
    """Return the result of a function with derivatives of its own."""
    return kind.apply(*arguments)  # type: ignore[no-untyped-call]


class _Copied(Function):
    """Common to shares: the tensor itself on each rank; backward: the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.like = ranks, [Like.of(tensor) for tensor in tensors]
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, *applied(_Summed, ctx.ranks, ctx.like, *grads))


class _Summed(Function):
    """Shares to common: the sum over the ranks; backward: a copy on each rank."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, like: Any, *tensors: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.like = ranks, like
        return tuple(ranks.sums(tensors, like))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        existing = [grad for grad in grads if grad is not None]
        copies = iter(applied(_Copied, ctx.ranks, *existing) if existing else ())
        return (None, None, *(None if grad is None else next(copies) for grad in grads))


class _Taken(Function):
    """Common to shares: the rank's rows of all; backward: the rows of all again."""

    @staticmethod
    def forward(ctx: Any, share: Share, full: Tensor, dim: int) -> Tensor:
        ctx.share, ctx.dim = share, dim
        local = share.rows
        return full.narrow(dim, local.start, local.stop - local.start).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, applied(_Gathered, ctx.share, grad, ctx.dim), None


class _Gathered(Function):
    """Shares to common: the rows of all ranks; backward: the rank's own rows."""

    @staticmethod
    def forward(ctx: Any, share: Share, local: Tensor, dim: int) -> Tensor:
        ctx.share, ctx.dim = share, dim
        return share.ranks.all_rows(local, share.bounds, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, applied(_Taken, ctx.share, grad, ctx.dim), None


def copied(ranks: Ranks, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the same tensors, for use by each rank on its own rows; one all-reduce per backward
    pass."""
    tensors = tuple(tensors)
    if has_torch_function(tensors):
        result: tuple[Tensor, ...] = handle_torch_function(copied, tensors, ranks, tensors)
        return result
    return tuple(applied(_Copied, ranks, *tensors))


def gathered(share: Share, local: Tensor) -> Tensor:
    """Return all ranks' rows (n, …) in their order."""
    if has_torch_function((local,)):
        result: Tensor = handle_torch_function(gathered, (local,), share, local)
        return result
    full: Tensor = applied(_Gathered, share, local, 0)
    return full


def taken(share: Share, full: Tensor) -> Tensor:
    """Return this rank's rows of all."""
    if not full.requires_grad:
        return full[share.rows]
    local: Tensor = applied(_Taken, share, full, 0)
    return local


def total(ranks: Ranks, local: Tensor) -> Tensor:
    """Return the sum over the ranks, for use by each on its own rows."""
    (common,) = applied(_Summed, ranks, [Like.of(local)], local)
    (used,) = applied(_Copied, ranks, common)
    result: Tensor = used
    return result


def _copied_rule(out: Any, ranks: Ranks, tensors: Sequence[Tensor]) -> Linearised:
    """Return the rule of `copied`: tangents are the same on all ranks already."""
    return Linearised(tuple(t for t in tensors if t.requires_grad), lambda moved, layout: moved)


def _gathered_rule(out: Tensor, share: Share, local: Tensor) -> Linearised:
    """Return the rule of `gathered`: the tangents (directions, rows, …) of all ranks, joined."""

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        (moved,) = tangents
        return [None if moved is None else share.ranks.all_rows(moved, share.bounds, 1)]

    return Linearised((local,), push)


RULES.update({copied: _copied_rule, gathered: _gathered_rule})

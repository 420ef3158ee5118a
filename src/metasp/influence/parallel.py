"""Data parallel: the influence and the weighted update of a global batch split over ranks.

Each rank holds a shard of the batch and of the two goals. Means over the whole are sums over the
ranks, so one process and many give the same numbers up to rounding, and every rank the same bits.

The network itself must treat examples one by one, or each rank's among themselves. GroupNorm and
LayerNorm do. BatchNorm in training mode takes the statistics of each rank's shard, as under
DistributedDataParallel: sound, but not the numbers of one process with the whole batch.
SyncBatchNorm is refused: it talks to the other ranks inside every pass, its derivative cannot be
differentiated again, and it needs a GPU. A model that is split (see splitting.py) has neither
limit: there every rank is given the whole batch, and nothing is sharded but the passes.
"""

import atexit
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence.pseudo import Named

AFTER_THE_LAST = 0.2  # seconds: what gloo needs after the last exchange, amply


class Like(NamedTuple):
    """What a tensor looks like, without its numbers."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> "Like":
        return cls(tensor.shape, tensor.dtype, tensor.device)


class OthersGone(UserError):
    """Another process has ended, or cannot be reached."""


Part = tuple[Named, int]
"""Means over some examples by name, and over how many."""


class Sharing(Protocol):
    """How the processes that share a batch come to common numbers."""

    def means(self, make: Callable[[], Sequence[Part]], like: Sequence[Named]) -> list[Named]:
        """The means over all processes' examples, for one or more parts at once; `like` has the
        names and shapes that each part may have."""
        ...

    def gather(self, values: Tensor) -> tuple[Tensor, slice]:
        """All processes' columns (k, n of all) side by side, and which are this one's."""
        ...


class Alone:
    """One process that has the whole batch."""

    def means(self, make: Callable[[], Sequence[Part]], like: Sequence[Named]) -> list[Named]:
        return [means for means, _ in make()]

    def gather(self, values: Tensor) -> tuple[Tensor, slice]:
        return values, slice(None)


def refuse_synchronised(model: nn.Module) -> None:
    """Raise if a layer couples the ranks inside the forward pass."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UserError(
                f"{name or 'the model'} is a SyncBatchNorm, through which an influence over ranks "
                "cannot be differentiated: use GroupNorm, BatchNorm with each rank's own "
                "statistics, or split_over_ranks with the whole batch on every rank."
            )


class Ranks:
    """The processes of a torch.distributed group (default: all). Every rank makes the same calls,
    each with its own shard, none of them empty; `reduced` counts the all-reduces and `sent` the
    numbers in them."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise UserError(
                "there is no process group: start with torchrun and call "
                "torch.distributed.init_process_group first."
            )
        wait_at_exit()
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.reduced = self.sent = self.gathered = 0

    def means(self, make: Callable[[], Sequence[Part]], like: Sequence[Named]) -> list[Named]:
        failed: UserError | None = None
        parts: Sequence[Part | None]
        try:
            parts = make()
        except UserError as error:  # the others must hear of it, or they would wait for ever
            failed, parts = error, [None] * len(like)
        buffers = [packed(part, names) for part, names in zip(parts, like)]
        total = torch.cat(buffers)
        self._sum(total)
        if not bool(total.isfinite().all()):
            raise failed or UserError(
                "another rank met a number that is not finite: see its message."
            )
        pieces = torch.split_with_sizes(total, [len(buffer) for buffer in buffers])
        return [unpacked(piece, names) for piece, names in zip(pieces, like)]

    def gather(self, values: Tensor) -> tuple[Tensor, slice]:
        # Two all-reduces: how many columns each rank has, and the columns.
        counts = values.new_zeros(self.size, dtype=torch.long)
        counts[self.rank] = values.shape[1]
        self._sum(counts)
        ends = counts.cumsum(0).tolist()
        own = slice(ends[self.rank] - values.shape[1], ends[self.rank])
        whole = values.new_zeros(values.shape[0], ends[-1])
        whole[:, own] = values
        self._sum(whole)
        return whole, own

    def sums(self, tensors: Sequence[Tensor | None], like: Sequence[Like]) -> list[Tensor | None]:
        """The sum of each over all processes, in one all-reduce; None where no process has it."""
        empty = [torch.empty(0, dtype=part.dtype, device=part.device) for part in like]
        kind = torch.float32
        for part in empty:
            kind = torch.promote_types(kind, part.dtype)
        here = torch.tensor([float(tensor is not None) for tensor in tensors])
        parts = [
            part.new_zeros(shape.numel()) if tensor is None else tensor.detach().reshape(-1)
            for tensor, part, (shape, _, _) in zip(tensors, empty, like)
        ]
        buffer = torch.cat([*(part.to(kind) for part in parts), here.to(empty[0].device, kind)])
        self._sum(buffer)
        *rows, there = torch.split_with_sizes(buffer, [*map(len, parts), len(like)])
        return [
            row.reshape(shape).to(dtype) if known else None
            for row, (shape, dtype, _), known in zip(rows, like, there.tolist())
        ]

    def all_rows(self, own: Tensor, bounds: Sequence[int], dim: int) -> Tensor:
        """All processes' rows along a dimension; process r has those from bounds[r] on."""
        sizes = [end - start for start, end in pairwise(bounds)]
        own = own.detach().movedim(dim, 0)
        padded = own.new_zeros(max(sizes), *own.shape[1:])  # gloo wants one size
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in sizes]
        with others_alive():
            dist.all_gather(parts, padded, group=self.group)
        self.gathered += 1
        return torch.cat([part[:size] for part, size in zip(parts, sizes)]).movedim(0, dim)

    def descend(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """One step of the optimizer along the gradient of the sum of all ranks' losses: weights
        over the whole batch times this rank's losses, summed."""
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        params = [p for group in optimizer.param_groups for p in group["params"]]
        like = {str(index): p.detach() for index, p in enumerate(params)}
        grads = {str(i): p.grad for i, p in enumerate(params) if p.grad is not None}
        buffer = packed((grads, 1), like)
        self._sum(buffer)
        found = unpacked(buffer, like, mean=False)
        for index, parameter in enumerate(params):
            parameter.grad = found.get(str(index))
        optimizer.step()

    def hear(self, content: bytes = b"") -> bytes:
        """What the first process says, as all of them hear it."""
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
        with others_alive():
            dist.all_reduce(buffer, group=self.group)
        self.reduced += 1
        self.sent += buffer.numel()


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


def packed(part: Part | None, like: Mapping[str, Tensor]) -> Tensor:
    """Sums in the order of `like`, whether each name is there, and the count, as one vector; not
    finite where there is no part."""
    kind = torch.float32
    for tensor in like.values():
        kind = torch.promote_types(kind, tensor.dtype)
    device = next(iter(like.values())).device
    if part is None:
        size = sum(tensor.numel() for tensor in like.values()) + len(like) + 1
        return torch.full((size,), torch.nan, dtype=kind, device=device)
    means, count = part
    here = torch.tensor([*(float(name in means) for name in like), float(count)])
    rows = [
        (means[name].detach() * count if name in means else torch.zeros_like(tensor)).reshape(-1)
        for name, tensor in like.items()
    ]
    return torch.cat([*(row.to(kind) for row in rows), here.to(device, kind)])


def unpacked(total: Tensor, like: Mapping[str, Tensor], mean: bool = True) -> Named:
    """What `packed` vectors add up to: means (or sums) by name, of the names any of them had."""
    sizes = [tensor.numel() for tensor in like.values()]
    *rows, here = torch.split_with_sizes(total, [*sizes, len(like) + 1])
    count = here[-1] if mean else 1.0
    return {
        name: (row / count).reshape(tensor.shape).to(tensor.dtype)
        for (name, tensor), row, there in zip(like.items(), rows, here[:-1].tolist())
        if there
    }

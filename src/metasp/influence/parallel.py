"""The processes of a torch.distributed group, and how they come to common numbers.

Every sum is an all-reduce, whose result has the same bits on every rank.
"""

import atexit
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from metasp.errors import UserError

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

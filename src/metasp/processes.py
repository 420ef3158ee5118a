"""One run on many processes: how they meet, what they compare, and what the first one does."""

import atexit
import contextlib
import os
import sys
import time
import zlib
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from safetensors.torch import load as unpack
from safetensors.torch import save as pack
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence.parallel import AFTER_THE_LAST, Like, Ranks, others_alive

DONE, FAILED = b"+", b"-"  # begin the messages of the first process
DIFFERENT = (
    "the processes of this run no longer hold the same numbers, so nothing more is stored: "
    "start it again on machines of one kind, to go on from its last checkpoint."
)
MEETING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


def joined() -> Ranks | None:
    """Return the processes that were started together with this one, by torchrun or by a process
    group that exists; None where it is alone."""
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        if any(name not in os.environ for name in MEETING) or os.environ["WORLD_SIZE"] == "1":
            return None
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(_leave_at_exit)
    return Ranks() if dist.get_world_size() > 1 else None


def leave() -> None:
    """Leave the other processes once all have come to the end: one that leaves early can abort the
    threads of the others."""
    if dist.is_available() and dist.is_initialized():
        with others_alive():
            dist.barrier()
        time.sleep(AFTER_THE_LAST)  # as in wait_at_exit, for a program that ends by this
        dist.destroy_process_group()


def _leave_at_exit() -> None:
    """Leave at the end of a program that has not done so. One that ends by an error does not wait
    for the others, which may be waiting for another message of it."""
    if not hasattr(sys, "last_value"):
        with contextlib.suppress(UserError, RuntimeError):
            leave()


def any_of(ranks: Ranks | None, *flags: bool) -> list[bool]:
    """Return for each flag whether any process has raised it."""
    if ranks is None:
        return list(flags)
    raised = torch.tensor(flags).float()
    (counts,) = ranks.sums([raised], [Like.of(raised)])
    assert counts is not None
    return [count > 0 for count in counts.tolist()]


def check_same_run(ranks: Ranks, name: str) -> None:
    """Raise unless all processes were asked for the same run of the same data."""
    wanted = ranks.hear(name.encode()).decode()
    if any(any_of(ranks, name != wanted)):
        raise UserError(
            f"the processes were not started for the same run ({wanted}, and here {name}): give "
            "all of them the same settings and data."
        )


def check_alike(ranks: Ranks, tensors: Mapping[str, Tensor], otherwise: str = DIFFERENT) -> None:
    """Raise unless all processes have the same bits."""
    digest = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        about = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        flat = tensor.clone(memory_format=torch.contiguous_format).reshape(-1)
        content = flat.view(torch.uint8).numpy()
        digest = zlib.crc32(content.data, zlib.crc32(about.encode(), digest))
    if any(any_of(ranks, digest != int(ranks.hear(str(digest).encode())))):
        raise UserError(otherwise)


def as_the_first(ranks: Ranks, model: nn.Module) -> None:
    """Give all processes the first one's weights and buffers."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    own = {name: t.detach().cpu().contiguous().clone() for name, t in named.items()}
    with torch.no_grad():
        for name, tensor in unpack(ranks.hear(pack(own))).items():
            named[name].copy_(tensor)


def heard(ranks: Ranks | None, work: Callable[[], bytes | None]) -> bytes:
    """Return to all processes what the first one reads or does, or raise its mistake in all."""
    if ranks is None:
        return work() or b""
    message = b""
    if ranks.rank == 0:
        try:
            message = DONE + (work() or b"")
        except UserError as error:
            message = FAILED + str(error).encode()
    message = ranks.hear(message)
    if message.startswith(FAILED):
        raise UserError(message[len(FAILED) :].decode())
    return message[len(DONE) :]

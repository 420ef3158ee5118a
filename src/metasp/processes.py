"""One run on many processes: how they meet, and who writes the run."""

import atexit
import contextlib
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as pack_tensors
from safetensors.torch import load as unpack_torch
from safetensors.torch import save as pack_torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.events import Event
from metasp.influence.parallel import AFTER_THE_LAST, Like, Ranks, others_alive
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store.checkpoints import Arrays, Checkpoint

FOUND, FAILED = b"+", b"-"  # how what the first process says begins
APART = (
    "the processes of this run no longer hold the same numbers, so nothing more is stored: "
    "start it again on machines of one kind, to go on from its last checkpoint."
)
MEETING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # as torchrun says it


def joined() -> Ranks | None:
    """The processes that were started together with this one, by torchrun or by whoever made a
    process group; None where it is alone."""
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
    """Part from the other processes once all have come to the end: one that leaves early can abort
    the threads of the others."""
    if dist.is_available() and dist.is_initialized():
        with others_alive():
            dist.barrier()
        time.sleep(AFTER_THE_LAST)  # as in wait_at_exit, for a program that ends by this
        dist.destroy_process_group()


def _leave_at_exit() -> None:
    """Part at the end of a program that has not done so. One that ends by an error does not wait
    for the others, which may be waiting for something else of it."""
    if not hasattr(sys, "last_value"):
        with contextlib.suppress(UserError, RuntimeError):
            leave()


def any_of(ranks: Ranks | None, *flags: bool) -> list[bool]:
    """Each flag: whether any process has raised it."""
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


def check_alike(ranks: Ranks, tensors: Mapping[str, Tensor], otherwise: str = APART) -> None:
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
        for name, tensor in unpack_torch(ranks.hear(pack_torch(own))).items():
            named[name].copy_(tensor)


def heard(ranks: Ranks | None, work: Callable[[], bytes | None]) -> bytes:
    """What the first process finds or does, or the mistake that it met, for all of them."""
    if ranks is None:
        return work() or b""
    said = b""
    if ranks.rank == 0:
        try:
            said = FOUND + (work() or b"")
        except UserError as error:
            said = FAILED + str(error).encode()
    said = ranks.hear(said)
    if said.startswith(FAILED):
        raise UserError(said[len(FAILED) :].decode())
    return said[len(FOUND) :]


class SharedRunDir(RunDir):
    """A run directory that the first process reads and writes; the others hear what it found."""

    def __init__(self, path: Path, ranks: Ranks) -> None:
        super().__init__(path)
        self.ranks = ranks
        self._writing = False  # while the first process is at work alone

    @contextlib.contextmanager
    def open(self, spec: RunSpec, fresh: bool = False) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            self._heard(lambda: held.enter_context(RunDir.open(self, spec, fresh)) and None)
            yield

    def result(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._heard(super().result)
        return found

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        arrays: Arrays = {}

        def look() -> dict[str, Any]:
            found, warnings = RunDir.latest(self)
            if found is None:
                return {"numbers": None, "warnings": warnings}
            arrays.update(found.arrays)
            return {"number": found.number, "numbers": found.numbers, "warnings": warnings}

        said = self._heard(look)
        content = self.ranks.hear(pack_tensors(arrays) if arrays else b"")
        if said["numbers"] is None:
            return None, []
        found = Checkpoint(said["number"], parse_tensors(content), said["numbers"])
        return found, said["warnings"] if self.first else []

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.ranks.rank == 0

    def append(self, event: Event) -> None:
        self._alone(lambda: RunDir.append(self, event))

    def checkpoint(self, arrays: Arrays, numbers: dict[str, Any], keep: bool = False) -> None:
        self._alone(lambda: RunDir.checkpoint(self, arrays, numbers, keep))

    def keep_noise(self, flipped: Mapping[str, Sequence[Any]]) -> None:
        self._alone(lambda: RunDir.keep_noise(self, flipped))

    def keep_trusted(self, trusted: Mapping[str, Sequence[Any]]) -> None:
        self._alone(lambda: RunDir.keep_trusted(self, trusted))

    def finish(self, result: Mapping[str, Any]) -> None:
        self._alone(lambda: RunDir.finish(self, result))

    def _alone(self, work: Callable[[], None]) -> None:
        """Let the first process do it, which may then ask the directory without being heard."""
        if self.first:
            self._writing = True
            try:
                work()
            finally:
                self._writing = False

    def _heard(self, look: Callable[[], Any]) -> Any:
        """What the first process finds, in plain values, or the mistake that it met, for all."""
        if self._writing:
            return look()

        def alone() -> bytes:
            try:
                self._writing = True
                return json.dumps(look()).encode()
            finally:
                self._writing = False

        return json.loads(heard(self.ranks, alone))

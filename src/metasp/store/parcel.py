"""A run directory in transit: its files as plain bytes, written where they arrive in an order
that is safe at any moment."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from metasp.errors import UserError
from metasp.store.checkpoints import drop_checkpoint, numbers_in
from metasp.store.files import own_only, write_atomic
from metasp.store.run_tables import FOLDERS, TABLES, names_by_task

# In the order of writing: a checkpoint's JSON makes its tensors count, a result ends the run.
FILES = (
    r"forgotten\.json",
    r"spec\.toml",
    r"events\.jsonl",
    *(re.escape(name) for name in TABLES),
    *(rf"{folder}/task-\d+\.parquet" for folder in FOLDERS),
    r"checkpoint/\d+\.safetensors",
    r"checkpoint/\d+\.json",
    r"result\.json",
)

Parcel = dict[str, bytes]


def newest_checkpoint(run: Path) -> int:
    """The number of a run's last checkpoint; 0 where there is none."""
    return max(numbers_in(run / "checkpoint"), default=0)


def pack(run: Path) -> Parcel:
    """The files of a run, which may be running: checkpoints come before the log, so that the
    log is never shorter than a checkpoint says. What disappears meanwhile is left out; if every
    checkpoint does, the parcel is empty."""
    parcel, there = checkpoints_of(run), numbers_in(run / "checkpoint")
    if there and not parcel:  # replaced while we read: the new ones are there now
        parcel = checkpoints_of(run)
        if not parcel:
            return {}
    loose = ["forgotten.json", "spec.toml", "events.jsonl", "result.json", *TABLES]
    for folder in FOLDERS:
        loose += names_by_task(run, folder).values()
    for name in loose:
        try:
            parcel[name] = (run / name).read_bytes()
        except FileNotFoundError:
            continue
    return parcel


def checkpoints_of(run: Path) -> Parcel:
    """The checkpoints that are whole."""
    parcel: Parcel = {}
    for number in numbers_in(run / "checkpoint"):
        pair = [f"checkpoint/{number:06d}.{suffix}" for suffix in ("json", "safetensors")]
        with contextlib.suppress(FileNotFoundError):
            parcel.update({name: (run / name).read_bytes() for name in pair})
    return parcel


def unpack(run: Path, parcel: Mapping[str, bytes]) -> None:
    """Write a parcel; checkpoints that are not in it are outdated and go. An empty one says
    nothing: the run was not there any more, or not yet."""
    if not parcel:
        return
    ranked = sorted(parcel, key=rank)
    own_only(run)
    for name in ranked:
        target = run / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, parcel[name])
    for number in numbers_in(run / "checkpoint"):
        if f"checkpoint/{number:06d}.json" not in parcel:
            drop_checkpoint(run / "checkpoint", number)


def rank(name: str) -> int:
    """The place of a file in the order of writing; a name that no file of a run has is refused."""
    for place, pattern in enumerate(FILES):
        if re.fullmatch(pattern, name):
            return place
    raise UserError(f"{name!r} is not a file of a run: nothing of this parcel is written.")

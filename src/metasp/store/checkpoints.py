"""Checkpoints: tensors in safetensors, numbers in JSON, both checked before they are trusted."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as pack_tensors

from metasp.errors import UserError
from metasp.store.files import content_of, sha256, write_atomic
from metasp.store.manifest import Manifest

FORMAT = 1
KEEP = 2  # the latest, and the one before it should the latest be damaged

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Checkpoint:
    number: int
    arrays: Arrays
    numbers: dict[str, Any]


class Damaged(Exception):
    """A checkpoint that must not be used, with the reason."""


UNUSABLE = (
    FileNotFoundError,
    ValueError,
    RecursionError,  # JSON that is nested too deeply
    KeyError,
    TypeError,
    SafetensorError,
)


def save_checkpoint(
    folder: Path, arrays: Arrays, numbers: dict[str, Any], kept: Collection[int] = ()
) -> int:
    """Write the next checkpoint and drop those no longer needed, but for the `kept` ones. The JSON
    comes last: without it the tensors do not count. Returns its number."""
    folder.mkdir(exist_ok=True)
    number = max([0, *numbers_in(folder)]) + 1
    content = pack_tensors({k: np.ascontiguousarray(v) for k, v in arrays.items()})
    write_atomic(folder / f"{number:06d}.safetensors", content, listed_later=True)
    body = {"format": FORMAT, "tensors": sha256(content), "numbers": numbers}
    text = json.dumps(body, sort_keys=True)
    write_atomic(
        folder / f"{number:06d}.json",
        json.dumps({"body": body, "checksum": sha256(text.encode())}).encode(),
        listed_later=True,
    )
    for old in sorted(numbers_in(folder))[:-KEEP]:
        if old not in kept:
            drop_checkpoint(folder, old)
    return number


def name_of(number: int) -> str:
    """Return the name, in the run's folder, of the JSON that makes a checkpoint count."""
    return f"checkpoint/{number:06d}.json"


def listed(manifest: Manifest) -> list[int]:
    """Return the numbers of the checkpoints that a manifest lists, the newest first."""
    names = [name for name in manifest.files if name.startswith("checkpoint/")]
    return sorted((int(Path(name).stem) for name in names), reverse=True)


def load_latest(
    folder: Path, manifest: Manifest | None = None
) -> tuple[Checkpoint | None, dict[int, str]]:
    """Load the newest sound checkpoint of those that the manifest lists, or of all without one.
    Returns it with a sentence about each newer one that is damaged, by number."""
    damaged: dict[int, str] = {}
    numbers = sorted(numbers_in(folder), reverse=True) if manifest is None else listed(manifest)
    for number in numbers:
        try:
            return load_checkpoint(folder, number, manifest), damaged
        except Damaged as error:
            damaged[number] = f"checkpoint {number} in {folder} is damaged ({error}), not used."
    return None, damaged


def drop_checkpoint(folder: Path, number: int) -> None:
    """Remove a checkpoint; the JSON goes first, as it makes the tensors count."""
    for suffix in ("json", "safetensors"):
        (folder / f"{number:06d}.{suffix}").unlink(missing_ok=True)


def load_checkpoint(folder: Path, number: int, manifest: Manifest | None = None) -> Checkpoint:
    """Load one checkpoint, or raise `Damaged` with the reason."""
    try:
        text = content_of(folder / f"{number:06d}.json")
        if manifest is not None and manifest.differs(name_of(number), text):
            raise Damaged("it is not what the run stored")
        entry = json.loads(text)
        body = entry["body"]
        if sha256(json.dumps(body, sort_keys=True).encode()) != entry["checksum"]:
            raise Damaged("its numbers were altered")
        if (version := body["format"]) == FORMAT:
            content = content_of(folder / f"{number:06d}.safetensors")
            if sha256(content) != body["tensors"]:
                raise Damaged("its tensors were cut short or altered")
            return Checkpoint(number, parse_tensors(content), body["numbers"])
    except UNUSABLE as error:
        raise Damaged(str(error)) from error
    except OSError as error:  # a disk that does not answer now may hold sound checkpoints
        raise UserError(
            f"cannot read checkpoint {number} in {folder}: {error.strerror or error}; nothing was "
            "changed, try again when the disk can be read."
        ) from error
    raise UserError(
        f"checkpoint {number} in {folder} has format {version} and this version of metasp reads "
        f"{FORMAT}: continue with the version that wrote it, or start the run again with --force."
    )


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints that were written to the end."""
    return [int(path.stem) for path in folder.glob("[0-9]*.json") if path.stem.isdecimal()]

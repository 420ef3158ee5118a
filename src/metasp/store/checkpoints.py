"""Checkpoints: one file of safetensors, whose header holds the numbers as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as pack_tensors

from metasp.store.manifest import CHECKPOINTS, Damaged, Manifest, read_manifest, stored_content

NEWEST = 2  # checkpoints that stay: the last, and the one before it should the last be damaged

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run: arrays by name, and numbers, of which `log` is the length of the log."""

    arrays: Arrays
    numbers: dict[str, Any]

    def pack(self) -> bytes:
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return pack_tensors(arrays, {"numbers": json.dumps(self.numbers)})

    @staticmethod
    def parse(content: bytes) -> "Checkpoint":
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        numbers = json.loads(header["__metadata__"]["numbers"])
        return Checkpoint(parse_tensors(content), numbers)


def number_of(name: str) -> int:
    return int(Path(name).stem)


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in a folder; copies by a user do not count."""
    return [number_of(p.name) for p in folder.glob("[0-9]*.safetensors") if p.stem.isdecimal()]


def name_of(number: int) -> str:
    """Return the name of a checkpoint in the run's folder."""
    return f"{CHECKPOINTS}{number:06d}.safetensors"


def newest_sound(run: Path, manifest: Manifest) -> tuple[bytes | None, list[str]]:
    """Return the content of the newest sound checkpoint, with a sentence about each newer one,
    which is taken off the manifest."""
    warnings = list[str]()
    for name in manifest.checkpoints:
        try:
            return stored_content(run, name), warnings
        except Damaged:
            warnings.append(f"{run / name} is damaged, not used.")
            del manifest.files[name]
    return None, warnings


def newest(run: Path) -> Checkpoint | None:
    """Load the newest checkpoint of a run, which must be sound; None where there is none yet."""
    for _ in range(2):  # a run that is under way may replace it between two reads
        manifest = read_manifest(run)
        if manifest is None or not manifest.checkpoints:
            return None
        content = stored_content(run, manifest.checkpoints[0])
        if content is not None:
            return Checkpoint.parse(content)
    return None

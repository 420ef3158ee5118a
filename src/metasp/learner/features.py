"""Features on disk: files of rows that never change, memory-mapped, each row found by the digest of
the example it is of. Nothing in them is ever executed, and all may be deleted at any time."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as pack
from torch import Tensor

from metasp.errors import or_user_error
from metasp.store.files import sha256, write_atomic

ENDING = ".safetensors"
KEY = hashlib.sha256().digest_size
LARGEST_FILE = 64 * 2**20  # bytes of features in one file, so that a task is never packed whole
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
}
HELD = 256 * 2**20  # bytes of single features that are kept in working memory


@dataclass(eq=False)
class Segment:
    """Rows that were written together: a file, mapped, or without a path in working memory."""

    keys: list[bytes]
    features: Tensor
    path: Path | None = None
    checksum: str = ""
    checked: bool = True  # of what this process has written itself


@dataclass
class FeatureCache:
    """The features of one encoder's examples. `limit` bounds the bytes below `folder`, where other
    encoders may have theirs: the files that were not used for longest are deleted first. What
    belongs to the task at hand stays within reach until the next one begins, whatever its size."""

    folder: Path
    limit: int
    name: str = ""  # of the encoder: that of its own folder
    _where: dict[bytes, tuple[Segment, int]] = field(default_factory=dict)
    _held: dict[bytes, Tensor] = field(default_factory=dict)
    _held_bytes: int = 0
    _current: list[Segment] = field(default_factory=list)
    _needed: set[bytes] = field(default_factory=set)

    def open(self, name: str) -> None:
        """Serve another encoder: know what is on disk of it."""
        self.name = name
        self._where, self._held, self._held_bytes, self._current = {}, {}, 0, []
        for path in sorted((self.folder / name).glob(f"*{ENDING}")):
            segment = mapped(path)
            if segment is None:
                path.unlink(missing_ok=True)
            else:
                self._index(segment)

    def begin(self, needed: Iterable[bytes]) -> None:
        """A new task begins, which needs these rows of what was there before."""
        self._needed = set(needed)
        past, self._current = self._current, []
        for segment in past:
            if segment.path is None or not segment.path.exists():
                self._drop(segment)
        self._held = {key: row for key, row in self._held.items() if key in self._needed}
        self._held_bytes = sum(row.nbytes for row in self._held.values())

    def find(self, key: bytes) -> Tensor | None:
        """The row of that digest, if it is known."""
        if key in self._held:
            return self._held[key]
        place = self._where.get(key)
        return None if place is None else place[0].features[place[1]]

    def unchecked(self, keys: Sequence[bytes]) -> dict[Segment, list[int]]:
        """Files that are about to serve for the first time, with the places of their rows among
        the keys; damaged ones are dropped here."""
        found: dict[Segment, list[int]] = {}
        for index, key in enumerate(keys):
            place = None if key in self._held else self._where.get(key)
            if place is not None and not place[0].checked:
                found.setdefault(place[0], []).append(index)
        for segment in list(found):
            if feature_digest(segment.features) != segment.checksum:
                self.discard(segment)
                del found[segment]
        return found

    def trust(self, segment: Segment) -> None:
        """It may serve from now on; its time of use says so to who makes room."""
        segment.checked = True
        if segment.path is not None:
            with contextlib.suppress(OSError):
                os.utime(segment.path)

    def discard(self, segment: Segment) -> None:
        """It must not serve: neither here nor elsewhere."""
        if segment.path is not None:
            segment.path.unlink(missing_ok=True)
        for key in segment.keys:
            if self._where.get(key, (None, 0))[0] is segment:
                del self._where[key]

    def add(self, keys: list[bytes], features: Tensor) -> None:
        """Keep rows (n, …) for as long as the bound allows, at least through this task."""
        segment = Segment(keys, features)
        if features.nbytes <= self.limit:
            segment = self._write(keys, features) or segment
        self._current.append(segment)
        self._index(segment)
        self._make_room()

    def hold(self, keys: Sequence[bytes], features: Tensor) -> None:
        """Keep single rows in working memory; the oldest go first where they are too many."""
        for key, row in zip(keys, features):
            self._held_bytes += row.nbytes if key not in self._held else 0
            self._held[key] = row.clone()
        while self._held_bytes > HELD:
            oldest = next(iter(self._held))
            self._held_bytes -= self._held.pop(oldest).nbytes

    def clear(self) -> None:
        """Delete all that is on disk of this encoder, and forget what is not needed."""
        for segment in {place[0] for place in self._where.values()}:
            self.discard(segment)
        for path in (self.folder / self.name).glob(f"*{ENDING}"):  # of other processes
            path.unlink(missing_ok=True)
        self._held, self._held_bytes, self._current = {}, 0, []

    def _write(self, keys: list[bytes], features: Tensor) -> Segment | None:
        """The rows as a file, mapped; None where it is gone already."""
        folder = self.folder / self.name
        joined = b"".join(keys)
        path = folder / f"{sha256(joined)[:24]}{ENDING}"
        tensors = {
            "features": features.contiguous(),
            "keys": torch.frombuffer(bytearray(joined), dtype=torch.uint8).view(-1, KEY),
        }
        checks = {"keys": sha256(joined), "features": feature_digest(features)}
        with caching(self.folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, pack(tensors, checks))
        segment = mapped(path)
        if segment is not None:
            segment.checked = True
        return segment

    def _index(self, segment: Segment) -> None:
        for row, key in enumerate(segment.keys):
            self._where[key] = (segment, row)

    def _drop(self, segment: Segment) -> None:
        """Let go of a segment, but for the rows that are needed."""
        for row, key in enumerate(segment.keys):
            if self._where.get(key, (None, 0))[0] is segment:
                del self._where[key]
                if key in self._needed:
                    self.hold([key], segment.features[row : row + 1])

    def _make_room(self) -> None:
        """Delete files, the longest unused first, until the rest is within the bound."""
        files = []
        for path in self.folder.glob(f"*/*{ENDING}"):
            with contextlib.suppress(OSError):  # another process may make room too
                about = path.stat()
                files.append((about.st_mtime_ns, about.st_size, path))
        total = sum(size for _, size, _ in files)
        gone = set()
        for _, size, path in sorted(files):
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            gone.add(path)
            total -= size
        ours = {place[0] for place in self._where.values()} if gone else set()
        for segment in ours - {*self._current}:  # what is mapped of the task at hand stays mapped
            if segment.path in gone:
                self._drop(segment)


def mapped(path: Path) -> Segment | None:
    """A file's rows without reading them; None where it is damaged or gone. What it holds of keys
    is checked now, the features when they are first used."""
    if not path.is_file():  # a pipe would keep us waiting
        return None
    try:
        content = np.memmap(path, np.uint8, mode="c")  # torch wants to be able to write
        length = int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8 : 8 + length].tobytes())
        keys, features = (part_of(content, 8 + length, header[n]) for n in ("keys", "features"))
        joined, checks = keys.numpy().tobytes(), header["__metadata__"]
        if sha256(joined) != checks["keys"] or keys.shape != (len(features), KEY):
            return None
        rows = [joined[start : start + KEY] for start in range(0, len(joined), KEY)]
        return Segment(rows, features, path, str(checks["features"]), checked=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, RecursionError):
        return None


def part_of(content: Any, start: int, about: Mapping[str, Any]) -> Tensor:
    """One tensor of a mapped safetensors file, whose data begins at `start`."""
    first, last = about["data_offsets"]
    whole = torch.from_numpy(content[start + first : start + last])
    return whole.view(TYPES[about["dtype"]]).reshape(about["shape"])


def feature_digest(features: Tensor) -> str:
    """SHA-256 of the rows' bytes."""
    flat = features.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()


def caching(folder: Path) -> contextlib.AbstractContextManager[None]:
    remedy = "make room, or give FrozenEncoder another folder as cache."
    return or_user_error(f"cannot keep features in {folder}", remedy)

"""Decoded examples on disk: one uint8 array file, memory-mapped, checked before it is trusted."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from metasp.benchmarks.places import digest_of
from metasp.errors import UserError
from metasp.folders import cache_folder

FORMAT = 1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Decoded:
    """Pictures (n, c, h, w) of all splits one after another, with a label each. `domains` (n,)
    numbers the values of a further column, where one was asked for."""

    inputs: Tensor
    labels: Tensor
    splits: Mapping[str, int]
    class_names: tuple[str, ...]
    domains: Tensor | None
    domain_names: tuple[str, ...]
    digest: str
    true_labels: Tensor | None = None

    def rows(self, *names: str) -> Tensor:
        """The rows of the named splits, in order."""
        starts = dict(zip(self.splits, np.cumsum([0, *self.splits.values()]).tolist()))
        parts = [
            torch.arange(starts[name], starts[name] + self.splits[name])
            for name in names
            if name in self.splits
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


@dataclass(frozen=True)
class Table:
    """What a reader found out besides the pictures it wrote."""

    labels: Sequence[int]
    splits: Mapping[str, int]
    class_names: Sequence[str]
    domains: Sequence[int] | None = None
    domain_names: Sequence[str] = ()
    true_labels: Sequence[int] | None = None


class Damaged(Exception):
    """A cached file that must not be used."""


class Pictures:
    """An .npy file that grows picture by picture; the number of rows is written at the end."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.count, self.shape = file, 0, (0, 0, 0)

    def append(self, picture: Array) -> None:
        """Add one picture (c, h, w) of bytes, of the same shape as all before."""
        if not self.count:
            self.shape = picture.shape
            self._header()
        self.file.write(np.ascontiguousarray(picture, dtype=np.uint8).tobytes())
        self.count += 1

    def close(self) -> None:
        # NumPy pads the header so that its length does not depend on the number of rows.
        self.file.seek(0)
        self._header()

    def _header(self) -> None:
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.count, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, header)


def decoded(identity: Mapping[str, Any], read: Callable[[Pictures], Table]) -> Decoded:
    """What `identity` stands for: from the cache if it is there and sound, else read anew."""
    key = digest_of(identity)[:24]
    folder = cache_folder()
    try:
        return load(folder, key)
    except (Damaged, FileNotFoundError):
        store(folder, key, read)
    return load(folder, key)


def store(folder: Path, key: str, read: Callable[[Pictures], Table]) -> None:
    """Read into a temporary file and put it in place when it is whole. The header comes last:
    without it the array does not count."""
    with caching(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with whole(folder / f"{key}.npy") as file:
        pictures = Pictures(file)
        table = read(pictures)
        if not pictures.count:
            raise UserError("this data holds no examples: check that its folder is the right one.")
        pictures.close()
    body = {
        "format": FORMAT,
        "array": file_digest(folder / f"{key}.npy"),
        "labels": list(table.labels),
        "splits": dict(table.splits),
        "class_names": list(table.class_names),
        "domains": None if table.domains is None else list(table.domains),
        "domain_names": list(table.domain_names),
    }
    if table.true_labels is not None:  # else not at all: older copies keep their digest
        body["true_labels"] = list(table.true_labels)
    with whole(folder / f"{key}.json") as file:
        file.write(json.dumps({"body": body, "checksum": digest_of(body)}).encode())


def load(folder: Path, key: str) -> Decoded:
    """Map a cached array into memory, or say that it is damaged."""
    path = folder / f"{key}.npy"
    try:
        entry = json.loads((folder / f"{key}.json").read_bytes())
        body = entry["body"]
        if digest_of(body) != entry["checksum"] or body["format"] != FORMAT:
            raise Damaged("its header was altered")
        if file_digest(path) != body["array"]:
            raise Damaged("its pictures were cut short or altered")
        # Copy-on-write: torch needs a writable array, the file must never change.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        labels = torch.tensor(body["labels"], dtype=torch.long)
        domains = body["domains"]
        true = torch.tensor(body.get("true_labels", body["labels"]), dtype=torch.long)
        counts = {len(array), len(labels), len(true), sum(body["splits"].values())}
        if len(counts) > 1:
            raise Damaged("its rows and labels do not agree")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise Damaged(str(error)) from error
    content = {name: value for name, value in body.items() if name != "format"}
    return Decoded(
        inputs=torch.from_numpy(array),
        labels=labels,
        splits=body["splits"],
        class_names=tuple(body["class_names"]),
        domains=None if domains is None else torch.tensor(domains, dtype=torch.long),
        domain_names=tuple(body["domain_names"]),
        digest=digest_of(content)[:16],
        true_labels=true if "true_labels" in body else None,
    )


def content_digest(files: Sequence[Path], root: Path) -> str:
    """SHA-256 over the names and bytes of files; remembered until a size or a time changes."""
    stamp = [
        [str(path.relative_to(root)), (about := path.stat()).st_size, about.st_mtime_ns]
        for path in files
    ]
    note = cache_folder() / "seen" / f"{digest_of([str(root.resolve()), stamp])[:24]}.json"
    try:
        entry = json.loads(note.read_bytes())
        if entry["checksum"] == digest_of(entry["content"]):
            return str(entry["content"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        pass  # nothing remembered, or not readable: look again
    content = digest_of([[name, file_digest(path)] for (name, *_), path in zip(stamp, files)])
    with caching(note.parent):
        note.parent.mkdir(parents=True, exist_ok=True)
    with whole(note) as file:
        file.write(json.dumps({"content": content, "checksum": digest_of(content)}).encode())
    return content


@contextlib.contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that appears under its name only when the block ends well."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with caching(path.parent), open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def caching(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot keep decoded data in {folder}: {error.strerror or error}; make room, or "
            "name another folder with METASP_CACHE."
        ) from error


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

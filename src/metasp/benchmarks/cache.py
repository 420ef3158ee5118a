"""Decoded examples on disk: one uint8 array file, memory-mapped, checked before it is trusted."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from metasp.benchmarks.pictures import Decoder
from metasp.benchmarks.places import digest_of
from metasp.encoded import LazyRows, WithHoles
from metasp.errors import CorruptPicture, UserError, or_user_error
from metasp.folders import cache_folder

FORMAT = 1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Decoded:
    """Pictures (n, c, h, w) of all splits one after another, with a label each; they may
    still be encoded. `domains` (n,) numbers the values of a further column, where one was asked
    for."""

    inputs: Tensor | LazyRows
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
    corrupt: Mapping[int, str] = field(default_factory=dict)  # rows that were skipped, and why

    @property
    def content(self) -> dict[str, Any]:
        """All of it in plain values, without what is not there: older copies keep their digest."""
        body: dict[str, Any] = {
            "labels": list(self.labels),
            "splits": dict(self.splits),
            "class_names": list(self.class_names),
            "domains": None if self.domains is None else list(self.domains),
            "domain_names": list(self.domain_names),
        }
        if self.true_labels is not None:
            body["true_labels"] = list(self.true_labels)
        if self.corrupt:
            body["corrupt"] = {str(row): why for row, why in self.corrupt.items()}
        return body

    def of(self, inputs: Tensor | LazyRows, digest: str) -> Decoded:
        """The same with its pictures."""
        labels, domains, true = (
            None if column is None else torch.tensor(column, dtype=torch.long)
            for column in (self.labels, self.domains, self.true_labels)
        )
        assert labels is not None
        names = tuple(self.class_names), tuple(self.domain_names)
        return Decoded(inputs, labels, self.splits, names[0], domains, names[1], digest, true)


class Damaged(Exception):
    """A cached file that must not be used."""


class Pictures:
    """An .npy file that grows picture by picture; the number of rows is written at the end. Where
    it is told to `skip` corrupt pictures, these are black and their rows noted."""

    def __init__(self, file: IO[bytes], skip: bool = False) -> None:
        self.file, self.count, self.shape = file, 0, (0, 0, 0)
        self.skip, self.corrupt = skip, dict[int, str]()

    def decode(self, decoder: Decoder, content: bytes, where: Callable[[], str]) -> None:
        """Add one encoded picture, which an error names by `where`."""
        try:
            picture = decoder(content, where)
        except CorruptPicture as error:
            if not self.skip:
                raise
            self.corrupt[self.count + len(self.corrupt) * (not self.count)] = str(error)
            if self.count:
                self.append(np.zeros(self.shape, np.uint8))
            return
        if not self.count:
            for _ in self.corrupt:  # those before the first that told the shape
                self.append(np.zeros(picture.shape, np.uint8))
        self.append(picture)

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


def decoded(
    identity: Mapping[str, Any], read: Callable[[Pictures], Table], skip: bool | None = None
) -> Decoded:
    """What `identity` stands for: from the cache if it is there and sound, else read anew, without
    its corrupt pictures if these are to be skipped."""
    key = digest_of(identity)[:24]
    folder = cache_folder()
    try:
        return load(folder, key)
    except (Damaged, FileNotFoundError):
        store(folder, key, read, bool(skip))
    return load(folder, key)


def store(folder: Path, key: str, read: Callable[[Pictures], Table], skip: bool = False) -> None:
    """Read into a temporary file and put it in place when it is whole. The header comes last:
    without it the array does not count."""
    with caching(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with whole(folder / f"{key}.npy") as file:
        pictures = Pictures(file, skip)
        table = read(pictures)
        if not pictures.count:
            raise UserError("this data holds no examples: check that its folder is the right one.")
        pictures.close()
    array = file_digest(folder / f"{key}.npy")
    body = {"format": FORMAT, "array": array, **table.content}
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
        about = {name: body[name] for name in body if name not in ("format", "array")}
        holes = {int(row): str(why) for row, why in about.pop("corrupt", {}).items()}
        table = Table(**about)
        true = table.labels if table.true_labels is None else table.true_labels
        counts = {len(array), len(table.labels), len(true), sum(table.splits.values())}
        if len(counts) > 1:
            raise Damaged("its rows and labels do not agree")
        content = {"array": body["array"], **about}
        if holes:
            content["corrupt"] = sorted(holes)  # what is said of them depends on the place
        inputs = torch.from_numpy(array)
        found = WithHoles(inputs, holes) if holes else inputs
        return table.of(found, digest_of(content)[:16])
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise Damaged(str(error)) from error


def content_digest(files: Sequence[Path], root: Path) -> str:
    """SHA-256 over the names and bytes of files; remembered until a size or a time changes."""
    stamp = [
        [str(path.relative_to(root)), (about := path.stat()).st_size, about.st_mtime_ns]
        for path in files
    ]

    def look() -> str:
        with progress(len(files), "checking") as advance:
            found = []
            for (name, *_), path in zip(stamp, files):
                found.append([name, file_digest(path)])
                advance(1)
        return digest_of(found)

    return str(remembered([str(root.resolve()), stamp], look))


def remembered(key: Any, find: Callable[[], Any]) -> Any:
    """What was found out about `key` before, or is now: a plain value."""
    note = cache_folder() / "seen" / f"{digest_of(key)[:24]}.json"
    try:
        entry = json.loads(note.read_bytes())
        if entry["checksum"] == digest_of(entry["content"]):
            return entry["content"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        pass  # nothing remembered, or not readable: look again
    content = find()
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


def caching(folder: Path) -> contextlib.AbstractContextManager[None]:
    remedy = "make room, or name another folder with METASP_CACHE."
    return or_user_error(f"cannot keep decoded data in {folder}", remedy)


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def progress(rows: int, doing: str = "decoding") -> Iterator[Any]:
    """Show how much is done, to a person at a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        line = bar.add_task(doing, total=rows)
        yield lambda count: bar.advance(line, count)

"""Results that take long to compute, kept as files of the cache folder: arrays and small notes."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from metasp.config import cache_folder
from metasp.errors import or_user_error

Array = np.ndarray[Any, Any]


def cached_array(
    key: Any, shape: Sequence[int], dtype: Any, fill: Callable[[Array], None]
) -> Array:
    """Return the array that was made under `key`, or else one that `fill` writes now. It is mapped
    into memory, and what is written to it never reaches the file."""
    path = cache_folder() / f"{digest_of(key)}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):  # not there, or cut short
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
        if array.shape == tuple(shape) and array.dtype == dtype:
            return array
    with written(path) as file:
        np.lib.format.write_array_header_1_0(  # type: ignore[no-untyped-call]
            file,
            {
                "descr": np.dtype(dtype).str,
                "fortran_order": False,
                "shape": tuple(shape),
            },
        )
        start = file.tell()
        file.truncate(start + int(np.prod(shape)) * np.dtype(dtype).itemsize)
        if np.prod(shape):
            fill(np.memmap(file.name, dtype, "r+", start, tuple(shape)))
    made: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    return made


def cached_note(key: Any, find: Callable[[], Any]) -> Any:
    """Return the plain value that was found under `key` before, or else is found now."""
    path = cache_folder() / f"{digest_of(key)}.json"
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_bytes())
    value = find()
    with written(path) as file:
        file.write(json.dumps(value).encode())
    return value


@contextlib.contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when the block ends well."""
    remedy = "make room, or name another folder with METASP_CACHE."
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with or_user_error(f"cannot keep decoded data in {path.parent}", remedy):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def digest_of(value: Any) -> str:
    """Return the first 24 hex digits of the SHA-256 of a plain value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextlib.contextmanager
def progress(rows: int, doing: str) -> Iterator[Callable[[int], None]]:
    """Show how much is done, to a person at a terminal; the block is told how to advance it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        line = bar.add_task(doing, total=rows)
        yield lambda count: bar.advance(line, count)

"""Writing that either happens whole or not at all, and locks between processes."""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from metasp.errors import UserError, or_user_error


def writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn a failed write into one sentence."""
    remedy = "make room or choose another folder with --runs. What was stored before is intact."
    return or_user_error(f"cannot write to {path}", remedy)


def own_only(run: Path) -> None:
    """What a run writes in place or clears out must be its own: a link could name any file or
    folder of ours, and a pipe would keep us waiting."""
    for path in (run / name for name in ("events.jsonl", "checkpoint", "memory", "scores")):
        if path.is_symlink() or path.is_fifo():
            raise UserError(
                f"{path} is a link or a pipe, and a run writes only to its own files: put what "
                "belongs there in its place, or delete it."
            )


def content_of(path: Path) -> bytes:
    """The content of a stored file; a pipe would keep us waiting, and a device may never end."""
    if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return path.read_bytes()


def write_atomic(path: Path, content: bytes, listed_later: bool = False) -> None:
    """Replace a file in one step that survives a crash at any moment. One that only counts when a
    file written later lists it need not wait for its folder: that one's writing orders both."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if not listed_later:
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file for this process alone; the system frees it when the process ends. It is
    never reached through a link, which could name any file of ours."""
    from filelock import FileLock, Timeout  # only those who write need it

    lock = FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False, on_acquired=_sign)
    with writing(path):
        try:
            held = lock.acquire()
        except Timeout:
            held = None
    if held is None:
        owner = path.read_text(errors="replace")[:32].strip() or "unknown"
        raise UserError(
            f"another process (pid {owner}) is writing {path.parent}: wait for it, or stop it."
        )
    with held:
        yield


def _sign(handle: int) -> None:
    """Say in a lock file who holds it."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)

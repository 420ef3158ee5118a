"""Writing that either happens whole or not at all, and locks between processes."""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from metasp.errors import UserError, or_user_error


def writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn a failed write into one sentence."""
    remedy = "make room or choose another folder with --runs. What was stored before is intact."
    return or_user_error(f"cannot write to {path}", remedy)


def content_of(path: Path) -> bytes:
    """Read a stored file. A pipe would block, and a device may never end: neither is read."""
    if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return path.read_bytes()


def write_atomic(
    path: Path,
    content: bytes,
    listed_later: bool = False,
    suffix: str = ".tmp",
    private: bool = False,
) -> None:
    """Replace a file in one step that survives a crash at any moment. A `private` one is for the
    user alone to read.

    What a killed process left of an earlier attempt is overwritten. With `listed_later` the rename
    becomes durable with that of a file that is written later to the same folder or lists it."""
    temporary = path.with_name(f".{path.name}{suffix}")
    with os.fdopen(_locked_alone(temporary), "wb") as file:
        try:
            if private:
                os.fchmod(file.fileno(), 0o600)
            file.truncate()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)  # while it is locked
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    if not listed_later:
        sync_folder(path.parent)


def remove_stale(folder: Path, suffix: str) -> None:
    """Remove the temporary files that killed processes have left in a folder: nobody locks them."""
    for path in folder.glob(f".*{suffix}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _locked_alone(path: Path) -> int:
    """Open a temporary file, never through a link, once no other process is writing it."""
    while True:
        handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.lstat(path)):
                return handle
        os.close(handle)  # another process has put it in its place meanwhile


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
    never reached through a link, which could name any file of the user's."""
    from filelock import FileLock, Timeout  # only those who write need it

    lock = FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False, on_acquired=_sign)
    with writing(path):
        try:
            lock.acquire()
        except Timeout:
            owner = path.read_text(errors="replace")[:32].strip() or "unknown"
            raise UserError(
                f"another process (pid {owner}) is writing {path.parent}: wait for it, or stop it."
            ) from None
    try:
        yield
    finally:
        lock.release()


def _sign(handle: int) -> None:
    """Write the process id into a lock file."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)

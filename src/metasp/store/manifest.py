"""The manifest of a run: a digest of every file that it owns, so that whoever reads notices damage.

It is written with each checkpoint and at the end of the run, and is what makes a file count: a file
of a task that it does not list was written after the newest checkpoint, and is made again."""

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from metasp.errors import UserError
from metasp.store.files import content_of, sha256, write_atomic

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass
class Manifest:
    """The digest of a run's spec; the length and SHA-256 of the part of events.jsonl that belongs
    to the newest checkpoint; the SHA-256 of each other file by its name, or two of them while it
    is replaced. `forgotten` are ids that were erased, or are being erased."""

    spec: str
    log: int = 0
    log_digest: str = sha256(b"")
    files: dict[str, list[str]] = field(default_factory=dict)
    forgotten: list[int] = field(default_factory=list)
    erasing: bool = False
    kept: list[int] = field(default_factory=list)  # checkpoints that later ones do not replace

    def write(self, run: Path) -> None:
        """Replace the manifest in a run's folder."""
        body = {"format": FORMAT, **asdict(self)}
        stored = {"body": body, "checksum": checksum(body)}
        write_atomic(run / MANIFEST, json.dumps(stored).encode())

    def differs(self, name: str, content: bytes) -> bool:
        """Return whether a listed file has another content than the run gave it."""
        return name in self.files and sha256(content) not in self.files[name]


def checksum(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode())


def read_manifest(run: Path) -> Manifest | None:
    """Read the manifest of a run; None where it has none."""
    try:
        stored = json.loads(content_of(run / MANIFEST))
        body = dict(stored["body"])
        if checksum(body) != stored["checksum"]:
            raise ValueError("it was altered")
        version = body.pop("format")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise damaged(run, MANIFEST, f"it cannot be read, {error}") from error
    if version != FORMAT:
        raise UserError(
            f"{run / MANIFEST} has format {version} and this metasp reads {FORMAT}: use the "
            "version that wrote it."
        )
    return Manifest(**body)


def checked_content(run: Path, name: str) -> bytes:
    """Read a file of a run that must be as the manifest says."""
    for _ in range(2):  # a run that is under way may replace both between two reads
        content, manifest = content_of(run / name), read_manifest(run)
        if manifest is None or not manifest.differs(name, content):
            return content
    raise damaged(run, name, "its content is not what the run stored")


def has_file(run: Path, name: str) -> bool:
    """Return whether a run has a file; one that is listed and not there is damage."""
    if (run / name).is_file():
        return True
    manifest = read_manifest(run)
    if manifest is not None and name in manifest.files:
        raise damaged(run, name, "it is missing")
    return False


def check_files(run: Path, manifest: Manifest) -> None:
    """Raise for the first listed file, checkpoints and result left out, that is lost or altered."""
    for name in manifest.files:
        if name.startswith("checkpoint/") or name == "result.json":
            continue
        with missing_is_damage(run, name):
            if manifest.differs(name, content_of(run / name)):
                raise damaged(run, name, "its content is not what the run stored")


@contextlib.contextmanager
def missing_is_damage(run: Path, name: str) -> Iterator[None]:
    """Turn a file that is not there, or cannot be read, into one sentence."""
    try:
        yield
    except OSError as error:
        raise damaged(run, name, error.strerror or str(error)) from error


def damaged(run: Path, name: str, how: str) -> UserError:
    """Say in one sentence that a file is damaged, and what makes the run again."""
    return UserError(
        f"{run / name} is damaged ({how}): bring it back from a backup, leave this run out, or "
        f"make it again with `{command_for(run)}`."
    )


def command_for(run: Path, *more: str) -> str:
    """Return the command that makes a stored run once more, from its start."""
    again = ["metasp", "run", "--spec", str(run / "spec.toml"), "--runs", str(run.parent)]
    return shlex.join([*again, *more, "--force"])

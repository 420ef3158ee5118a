"""The manifest of a run: a digest of every file that it owns, so that whoever reads notices damage.

It is written with each checkpoint and at the end of the run, and is what makes a file count: a file
of a task that it does not list was written after the newest checkpoint, and is made again."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from metasp.errors import UserError, or_user_error
from metasp.store.files import content_of, sha256, write_atomic

FORMAT = 2
MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoint/"  # begins the names of checkpoints
ALTERED = "its content is not what the run stored"


class Damaged(UserError):
    """A file of a run that is lost or is not what the run stored."""


def damaged(run: Path, name: str, how: str) -> Damaged:
    """Name a damaged file in one sentence, with the command that makes the run again."""
    return Damaged(
        f"{run / name} is damaged ({how}): bring it back from a backup, leave this run out, or "
        f"make it again with `{command_for(run)}`."
    )


def command_for(run: Path, *more: str) -> str:
    """Return the command that makes a stored run once more, from its start."""
    again = ["metasp", "run", "--spec", str(run / "spec.toml"), "--runs", str(run.parent)]
    return shlex.join([*again, *more, "--force"])


@dataclass
class Manifest:
    """What a run consists of.

    spec: the digest of its settings.
    log, log_digest: length and SHA-256 of the part of events.jsonl that belongs to the newest
        checkpoint, or to the result.
    files: the SHA-256 of each other file by its name, or two of them while it is replaced.
    kept: checkpoints that later ones do not replace.
    forgotten: ids that were erased; `erasing` while that is not done yet."""

    spec: str
    log: int = 0
    log_digest: str = sha256(b"")
    files: dict[str, list[str]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    erasing: bool = False

    @property
    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints, the newest first."""
        return sorted((name for name in self.files if name.startswith(CHECKPOINTS)), reverse=True)

    def write(self, run: Path) -> None:
        """Replace the manifest in a run's folder."""
        body = {"format": FORMAT, **asdict(self)}
        write_atomic(run / MANIFEST, json.dumps({"body": body, "checksum": _sum(body)}).encode())

    def store(self, run: Path, name: str, content: bytes) -> None:
        """Write a file, which counts once the manifest is written. One that is replaced is listed
        with both contents meanwhile, as a kill may come before or after."""
        digest = sha256(content)
        if self.files.get(name) not in (None, [digest]):
            self.files[name].append(digest)
            self.write(run)
        (run / name).parent.mkdir(exist_ok=True)
        write_atomic(run / name, content, listed_later=True)
        self.files[name] = [digest]

    def logged(self, run: Path) -> bytes:
        """Read events.jsonl, which must begin as it did when the manifest was written."""
        content = _content(run, "events.jsonl") or b""
        if len(content) < self.log:
            raise damaged(run, "events.jsonl", "events are lost")
        if sha256(content[: self.log]) != self.log_digest:
            raise damaged(run, "events.jsonl", ALTERED)
        return content


def _sum(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode())


def read_manifest(run: Path) -> Manifest | None:
    """Read the manifest of a run; None where nothing is stored yet."""
    content = _content(run, MANIFEST)
    if content is None:
        if (run / "spec.toml").exists():
            raise damaged(run, MANIFEST, "it is missing")
        return None
    try:
        stored = json.loads(content)
        body = dict(stored["body"])
        if _sum(body) != stored["checksum"]:
            raise ValueError("it was altered")
        version = body.pop("format")
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise damaged(run, MANIFEST, f"it cannot be read, {error}") from error
    if version != FORMAT:
        raise UserError(
            f"{run / MANIFEST} has format {version} and this metasp reads {FORMAT}: use the "
            "version that wrote it."
        )
    return Manifest(**body)


def stored_content(run: Path, name: str) -> bytes | None:
    """Read a file as the run stored it; None where the manifest lists none."""
    how = ""
    for _ in range(2):  # a run that is under way may replace file and manifest between two reads
        manifest = read_manifest(run)
        if manifest is None or name not in manifest.files:
            return None
        content = _content(run, name)
        if content is not None and sha256(content) in manifest.files[name]:
            return content
        how = "it is missing" if content is None else ALTERED
    raise damaged(run, name, how)


def _content(run: Path, name: str) -> bytes | None:
    remedy = "nothing was changed, try again when the disk can be read."
    with or_user_error(f"cannot read {run / name}", remedy):
        try:
            return content_of(run / name)
        except (FileNotFoundError, NotADirectoryError):
            return None

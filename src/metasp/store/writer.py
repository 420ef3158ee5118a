"""A run as it is written: events, tables of finished tasks, checkpoints, the result."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from metasp.errors import UserError
from metasp.events import Event, TaskFinished, as_record
from metasp.spec import RunSpec
from metasp.store.checkpoints import (
    NEWEST,
    Arrays,
    Checkpoint,
    name_of,
    newest_sound,
    number_of,
    numbers_in,
)
from metasp.store.files import sha256, write_atomic, writing
from metasp.store.manifest import CHECKPOINTS, Manifest, read_manifest, stored_content
from metasp.store.run_tables import (
    FOLDERS,
    INFLUENCE,
    SCORES,
    TABLES,
    VERDICTS,
    Columns,
    name_of_task,
    packed,
    task_of,
)


class RunWriter:
    """The process that holds a run's lock writes it through this."""

    def __init__(self, run: Path, spec: RunSpec, fresh: bool) -> None:
        self.run = run
        if fresh:
            _wipe(run, spec)
        self.manifest = read_manifest(run) or Manifest(spec.digest)
        if not (run / "spec.toml").exists():
            self.manifest.write(run)  # first: a run that has a spec has a manifest
            write_atomic(run / "spec.toml", spec.to_toml().encode())
        if self.manifest.spec != spec.digest or RunSpec.from_toml(run / "spec.toml") != spec:
            raise UserError(
                f"{run} was started with another spec: choose another folder with --runs."
            )
        if not (run / "result.json").exists():
            self.manifest.files.pop("result.json", None)  # listed, and killed before it was written
        self._log = open(run / "events.jsonl", "ab")  # noqa: SIM115
        self._log_digest = hashlib.sha256()

    def resume(self) -> tuple[bytes | None, list[str]]:
        """Return the content of the newest sound checkpoint, with warnings about damaged ones. Cut
        the log back to it and remove what the manifest does not list, so that what is done again
        is stored once. Raise where something is damaged that cannot be made again."""
        run, manifest = self.run, self.manifest
        for name in manifest.files:
            if not name.startswith(CHECKPOINTS):
                stored_content(run, name)
        log = manifest.logged(run)
        content, warnings = newest_sound(run, manifest)
        with writing(run):
            length = Checkpoint.parse(content).numbers["log"] if content else 0
            self._log.truncate(length)
            self._log_digest.update(log[:length])
            self.flush()
            manifest.write(run)
            self._drop_unlisted()
        return content, warnings

    def append(self, event: Event) -> None:
        """Add an event to the log. The columns that it carries go to tables."""
        with writing(self.run):
            if isinstance(event, TaskFinished):
                memory = pa.table(dict(event.memory))
                self._store(name_of_task("memory", event.task), memory)
                if event.influence:
                    self._store("influence.parquet", self._with_earlier(event))
                if event.scores:
                    scores = pa.table(dict(event.scores), schema=SCORES)
                    self._store(name_of_task("scores", event.task), scores)
            line = (json.dumps(as_record(event)) + "\n").encode()
            self._log.write(line)
            self._log_digest.update(line)

    def keep(self, name: str, columns: Columns) -> None:
        """Store a table of facts that the run was given, unless it is empty."""
        if columns:
            with writing(self.run):
                self._store(name, pa.table(dict(columns), schema=TABLES[name]))

    def keep_file(self, name: str, content: bytes) -> None:
        """Store another file that belongs to the run."""
        with writing(self.run):
            self.manifest.store(self.run, name, content)

    def begin_with(self, files: Mapping[str, bytes], log: bytes) -> None:
        """Begin a new run with what another one had stored by a checkpoint, which follows."""
        for name, content in files.items():
            self.keep_file(name, content)
        with writing(self.run):
            self._log.write(log)
            self._log_digest.update(log)

    def checkpoint(self, arrays: Arrays, numbers: Mapping[str, Any], keep: bool = False) -> None:
        """Store a state, and the length of the log that belongs to it. With `keep` it stays when
        later ones come."""
        manifest = self.manifest
        with writing(self.run):
            self.flush()
            name = name_of(1 + max(map(number_of, manifest.checkpoints), default=0))
            state = Checkpoint(arrays, {**numbers, "log": manifest.log})
            manifest.store(self.run, name, state.pack())
            if keep:
                manifest.kept.append(name)
            for old in {*manifest.checkpoints[NEWEST:]} - {*manifest.kept}:
                del manifest.files[old]
            manifest.write(self.run)
            drop_unlisted_checkpoints(self.run, manifest)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Store the result. The manifest lists it first, so that it never counts unlisted."""
        content = json.dumps(result, indent=1).encode()
        with writing(self.run):
            self.flush()
            self.manifest.files["result.json"] = [sha256(content)]
            self.manifest.write(self.run)
            write_atomic(self.run / "result.json", content)

    def flush(self) -> None:
        """Make the log durable as far as it is written."""
        self._log.flush()
        os.fsync(self._log.fileno())
        self.manifest.log = self._log.seek(0, os.SEEK_END)
        self.manifest.log_digest = self._log_digest.hexdigest()

    def close(self) -> None:
        # What a full disk kept from the log comes after the last checkpoint, and is done again.
        with contextlib.suppress(OSError):
            self._log.close()

    def _store(self, name: str, table: pa.Table) -> None:
        self.manifest.store(self.run, name, packed(table))

    def _with_earlier(self, event: TaskFinished) -> pa.Table:
        """Return the rows of influence.parquet of earlier tasks, then those of this one."""
        unknown = [None] * len(event.influence["id"])
        columns = {"loss": unknown, "predicted": unknown, **event.influence}
        rows = pa.table(columns, schema=INFLUENCE)
        if "influence.parquet" not in self.manifest.files:
            return rows
        import pyarrow.parquet as pq  # slow to load, and a run starts without it

        with pq.ParquetFile(self.run / "influence.parquet") as file:
            stored = file.read()
        earlier = pa.array(stored["task"].to_numpy() < event.task)
        return pa.concat_tables([stored.filter(earlier), rows])

    def _drop_unlisted(self) -> None:
        """Remove what was stored after the newest checkpoint, and unfinished temporary files."""
        run = self.run
        drop_unlisted_checkpoints(run, self.manifest)
        names = [name for name in TABLES if (run / name).exists()]
        for folder in FOLDERS:
            paths = (run / folder).glob("task-*.parquet")
            names += [f"{folder}/{path.name}" for path in paths if task_of(path.name) is not None]
        for name in names:
            if name not in self.manifest.files:
                (run / name).unlink()
        for path in [*run.glob(".*.tmp"), *run.glob("*/.*.tmp")]:
            if not path.name.startswith((".explorer", f".{VERDICTS}")):  # need no lock
                path.unlink()


def drop_unlisted_checkpoints(run: Path, manifest: Manifest) -> None:
    """Remove the checkpoints that do not count."""
    for number in numbers_in(run / "checkpoint"):
        if name_of(number) not in manifest.files:
            (run / name_of(number)).unlink()
    manifest.kept = [name for name in manifest.kept if name in manifest.files]


def _wipe(run: Path, spec: RunSpec) -> None:
    """Begin anew: what the new manifest does not list goes when the run is resumed."""
    gone: list[int] = []
    with contextlib.suppress(UserError):  # a manifest that is damaged goes too
        manifest = read_manifest(run)
        gone = manifest.forgotten if manifest is not None else []
    if gone:
        raise UserError(
            f"{len(gone)} examples were forgotten from {run}, and would be learned again: start a "
            "new run without them by --exclude FILE."
        )
    (run / "result.json").unlink(missing_ok=True)
    Manifest(spec.digest).write(run)
    for path in run.glob("explorer*.html"):
        path.unlink()
    (run / "spec.toml").unlink(missing_ok=True)

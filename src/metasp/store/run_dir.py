"""The run directory: the only place that knows its files."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from metasp.errors import UserError, or_user_error
from metasp.events import Event, TaskFinished, as_record
from metasp.metrics import SCENARIOS, scores
from metasp.spec import RunSpec
from metasp.store import forget
from metasp.store.checkpoints import (
    Arrays,
    Checkpoint,
    Damaged,
    drop_checkpoint,
    listed,
    load_checkpoint,
    load_latest,
    name_of,
    numbers_in,
    save_checkpoint,
)
from metasp.store.files import content_of, locked, own_only, sha256, write_atomic, writing
from metasp.store.manifest import (
    MANIFEST,
    Manifest,
    check_files,
    checked_content,
    damaged,
    has_file,
    missing_is_damage,
    read_manifest,
)
from metasp.store.run_tables import (
    FOLDERS,
    INFLUENCE,
    NOISE,
    SCORES,
    TRUSTED,
    VERDICTS,
    names_by_task,
    packed,
    whole_table,
)

Columns = Mapping[str, Sequence[Any]]
GARBLED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)


class RunDir:
    """spec.toml, result.json, events.jsonl, influence.parquet, memory/, scores/, checkpoint/ and
    manifest.json, which holds a digest of each; noise.parquet where labels were made wrong on
    purpose, trusted.parquet where some are verified, verified.csv where the explorer saved
    verdicts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events: BinaryIO | None = None
        self._digest = hashlib.sha256()  # of the log, while the run is open
        self._manifest = Manifest("")

    @property
    def finished(self) -> bool:
        return self.result() is not None

    @contextlib.contextmanager
    def open(self, spec: RunSpec, fresh: bool = False) -> Iterator[None]:
        """Hold the run for writing, from nothing or where it stands."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / "lock"):
            own_only(self.path)
            with writing(self.path):
                if fresh:
                    self._wipe(spec)
                self._go_on(spec)
                self._drop_half_written()
                self._events = open(self.path / "events.jsonl", "ab")  # noqa: SIM115
            try:
                yield
            finally:
                self._close_events()

    def _go_on(self, spec: RunSpec) -> None:
        """Read the manifest, or begin one where nothing is stored yet."""
        stored = read_manifest(self.path)
        if stored is None:
            if numbers_in(self.path / "checkpoint"):
                raise damaged(self.path, MANIFEST, "it is missing")
            stored = Manifest(spec.digest)
            stored.write(self.path)
        self._manifest = stored
        if not (self.path / "spec.toml").exists():
            write_atomic(self.path / "spec.toml", spec.to_toml().encode())
        if self.spec() != spec:
            raise UserError(
                f"{self.path} was started with another spec: choose another folder with --runs."
            )
        if not (self.path / "result.json").exists():
            stored.files.pop("result.json", None)  # it was listed just before it was to be written

    def spec(self) -> RunSpec:
        """Return the spec that the run was started with."""
        spec = RunSpec.from_toml(self.path / "spec.toml")
        manifest = read_manifest(self.path)
        if manifest is not None and manifest.spec != spec.digest:
            raise UserError(
                f"{self.path / 'spec.toml'} was changed after the run started (its digest is now "
                f"{spec.digest}): undo that, or start a new run with `metasp run --spec`."
            )
        return spec

    def result(self) -> dict[str, Any] | None:
        """Return the stored result; None while the run is unfinished."""
        try:
            result = json.loads(checked_content(self.path, "result.json"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UserError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise damaged(self.path, "result.json", str(error)) from error
        return result if isinstance(result, dict) else None

    def outcome(self) -> dict[str, Any] | None:
        """Return the stored result with its scores, which follow from the stored accuracies."""
        result = self.result()
        if result is None:
            return None
        try:
            json.dumps(result, allow_nan=False)  # which Python's JSON lets through
            result["seconds"]["total"] + 0.0
            for scenario in SCENARIOS:
                accuracies = result[scenario]
                accuracies |= scores(accuracies["matrix"], accuracies["before"])
        except GARBLED as error:
            how = f"{error} is missing or malformed"
            raise damaged(self.path, "result.json", how) from error
        return result

    def append(self, event: Event) -> None:
        """Add an event to the log; what it carries as columns goes to its own file."""
        with writing(self.path):
            if isinstance(event, TaskFinished):
                self._write_by_task("memory", event.task, pa.table(dict(event.memory)))
                self._write_influence(event)
                if event.scores:
                    table = pa.table(dict(event.scores), schema=SCORES)
                    self._write_by_task("scores", event.task, table)
            line = (json.dumps(as_record(event)) + "\n").encode()
            self._log.write(line)
            self._digest.update(line)

    def checkpoint(self, arrays: Arrays, numbers: dict[str, Any], keep: bool = False) -> None:
        """Store a state together with the length of the log that belongs to it. `keep` it when
        later ones come."""
        with writing(self.path):
            self._flush_log()
            numbers = {**numbers, "log": self._manifest.log}
            kept = self._manifest.kept
            number = save_checkpoint(self.path / "checkpoint", arrays, numbers, kept)
            if keep:
                kept.append(number)
            name = name_of(number)
            self._manifest.files[name] = [sha256(content_of(self.path / name))]
            self._list_files()
            self._manifest.write(self.path)

    def _flush_log(self) -> None:
        self._log.flush()
        os.fsync(self._log.fileno())
        self._manifest.log = self._log.tell()
        self._manifest.log_digest = self._digest.hexdigest()

    def _list_files(self) -> None:
        """Take the checkpoints that are no longer there off the manifest."""
        for number in listed(self._manifest):
            if not (self.path / name_of(number)).exists():
                del self._manifest.files[name_of(number)]
        listed_now = listed(self._manifest)
        self._manifest.kept = [n for n in self._manifest.kept if n in listed_now]

    def kept_checkpoints(self) -> Iterator[Checkpoint]:
        """Yield the checkpoints that the run was asked to keep, the oldest first."""
        manifest = read_manifest(self.path)
        for number in sorted(manifest.kept) if manifest is not None else ():
            try:
                yield load_checkpoint(self.path / "checkpoint", number, manifest)
            except Damaged as error:
                raise damaged(self.path, name_of(number), str(error)) from error

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest sound checkpoint, with warnings about damaged ones, which are removed.
        The log is cut back to it, and what the manifest does not list is removed, so that what is
        done again is not told twice. Raises where what cannot be made again is damaged."""
        folder = self.path / "checkpoint"
        check_files(self.path, self._manifest)
        stored, unsound = load_latest(folder, self._manifest)
        with writing(self.path):
            length = stored.numbers["log"] if stored else 0
            content = content_of(self.path / "events.jsonl")
            self._check_log(content)
            for number in {*numbers_in(folder)} - {*listed(self._manifest)} | {*unsound}:
                drop_checkpoint(folder, number)
            for name in self._tables():
                if name not in self._manifest.files:
                    (self.path / name).unlink()
            self._log.truncate(length)
            self._log.seek(0, os.SEEK_END)
            self._digest = hashlib.sha256(content[:length])
            self._list_files()
            self._flush_log()
            if stored is None or unsound or content[length:]:
                self._manifest.write(self.path)
        return stored, [*unsound.values()]

    def _tables(self) -> list[str]:
        """Return the names of the tables of finished tasks, in the folders and beside them."""
        names = [name for folder in FOLDERS for name in names_by_task(self.path, folder).values()]
        there = (self.path / "influence.parquet").exists()
        return [*names, "influence.parquet"] if there else names

    def _check_log(self, content: bytes, manifest: Manifest | None = None) -> None:
        """Raise unless a log begins as it did when the manifest was written."""
        manifest = manifest or self._manifest
        if len(content) < manifest.log:
            raise damaged(self.path, "events.jsonl", "events are lost")
        if sha256(content[: manifest.log]) != manifest.log_digest:
            raise damaged(self.path, "events.jsonl", "its content is not what the run stored")

    def events(self) -> list[dict[str, Any]]:
        """Return all events so far, in order."""
        if self._events is not None:
            with writing(self.path):
                self._events.flush()
        # In this order: what the manifest names of the log stays as it is.
        manifest = read_manifest(self.path)
        with missing_is_damage(self.path, "events.jsonl"):
            content = content_of(self.path / "events.jsonl")
        if manifest is not None:
            self._check_log(content, manifest)
        # A killed run may end in the middle of a line, which then does not count.
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        try:
            return [dict(json.loads(line)) for line in lines]
        except (ValueError, RecursionError, TypeError) as error:
            raise damaged(self.path, "events.jsonl", str(error)) from error

    def finish(self, result: Mapping[str, Any]) -> None:
        """Store the result. The manifest lists it first, so that it never counts unlisted."""
        content = json.dumps(result, indent=1).encode()
        with writing(self.path):
            self._flush_log()
            self._manifest.files["result.json"] = [sha256(content)]
            self._manifest.write(self.path)
            write_atomic(self.path / "result.json", content)

    def influence(self) -> Columns | None:
        """One row per example and task; None where the method records none."""
        return self._columns("influence.parquet", INFLUENCE)

    def memory_tables(self) -> dict[int, Columns]:
        """What the memory held at the end of each finished task, by task."""
        return self._by_task("memory")

    def scores(self) -> dict[int, Columns]:
        """How the examples of each finished task fared in its training, by task."""
        return self._by_task("scores")

    def page(self, other: "RunDir | None" = None) -> Path:
        """Where the explorer's page of this run, or of this and another one, is kept."""
        suffix = f"-with-{other.spec().digest}" if other else ""
        return self.path / f"explorer{suffix}.html"

    @property
    def verdicts(self) -> Path:
        """Where the explorer keeps what a person says of examples; a run made anew leaves it."""
        return self.path / VERDICTS

    @property
    def _log(self) -> BinaryIO:
        if self._events is None:
            raise RuntimeError("the run is not open for writing")
        return self._events

    def keep_noise(self, flipped: Columns) -> None:
        """Note which labels are wrong on purpose, for scoring."""
        self._keep("noise.parquet", flipped, NOISE)

    def keep_trusted(self, trusted: Columns) -> None:
        """Note which examples were given as verified, and with which labels."""
        self._keep("trusted.parquet", trusted, TRUSTED)

    def _keep(self, name: str, columns: Columns, schema: pa.Schema) -> None:
        """Store facts about examples that the run was given."""
        if columns:
            with writing(self.path):
                self._store(name, packed(pa.table(dict(columns), schema=schema)))

    def forgotten(self) -> list[int]:
        """Return the ids of examples that were erased from the run."""
        manifest = read_manifest(self.path)
        return [] if manifest is None else manifest.forgotten

    def forget(self, ids: Sequence[int]) -> list[int]:
        """Erase examples from a finished run: nothing of their content stays in the directory."""
        if not self.finished:
            raise UserError(
                f"{self.path} is not finished: let it finish by `metasp resume`, or start a new "
                "run without these examples by --exclude FILE."
            )
        with locked(self.path / "lock"), writing(self.path):
            own_only(self.path)
            return forget.forget(self.path, ids)

    def memory(self) -> Columns:
        """What the memory holds, as of the last checkpoint."""
        return forget.memory_of(self.path)

    def trusted(self) -> Columns | None:
        """The examples that were given as verified; None where there are none."""
        return self._columns("trusted.parquet", TRUSTED)

    def noise(self) -> Columns | None:
        """The labels that are wrong on purpose; None where none were asked for."""
        return self._columns("noise.parquet", NOISE)

    def _columns(self, name: str, schema: pa.Schema) -> Columns | None:
        if not has_file(self.path, name):
            return None
        columns: Columns = whole_table(self.path, name, schema).to_pydict()
        return columns

    def _by_task(self, folder: str) -> dict[int, Columns]:
        names = names_by_task(self.path, folder)
        manifest = read_manifest(self.path)
        for name in sorted(manifest.files) if manifest is not None else ():
            if name.startswith(f"{folder}/") and name not in names.values():
                raise damaged(self.path, name, "it is missing")
        tables = {task: self._columns(name, FOLDERS[folder]) for task, name in names.items()}
        return {task: columns for task, columns in tables.items() if columns is not None}

    def _store(self, name: str, content: bytes) -> None:
        """Write a file. One that the manifest lists is listed with both contents while it changes,
        as a kill may come before or after."""
        digest = sha256(content)
        if self._manifest.files.get(name) not in (None, [digest]):
            self._manifest.files[name].append(digest)
            self._manifest.write(self.path)
        write_atomic(self.path / name, content, listed_later=True)
        self._manifest.files[name] = [digest]  # counts with the next checkpoint

    def _write_by_task(self, folder: str, task: int, table: pa.Table) -> None:
        (self.path / folder).mkdir(exist_ok=True)
        self._store(f"{folder}/task-{task:03d}.parquet", packed(table))

    def _write_influence(self, event: TaskFinished) -> None:
        """Rows of the earlier tasks as they are, then those of this one."""
        if not event.influence:
            return
        path = self.path / "influence.parquet"
        unknown = [None] * len(event.influence["id"])
        columns = {"loss": unknown, "predicted": unknown, **event.influence}
        rows = pa.table(columns, schema=INFLUENCE)
        if path.exists():
            old = whole_table(self.path, path.name, INFLUENCE)
            earlier = pa.array(old["task"].to_numpy() < event.task)
            rows = pa.concat_tables([old.filter(earlier), rows])
        self._store(path.name, packed(rows))

    def _wipe(self, spec: RunSpec) -> None:
        """Begin anew: whatever the manifest no longer lists goes when the run is opened."""
        gone: list[int] = []
        with contextlib.suppress(UserError):  # a manifest that is damaged goes too
            gone = self.forgotten()
        if gone:
            raise UserError(
                f"{len(gone)} examples were forgotten from {self.path}, and would be learned "
                "again: start a new run without them by --exclude FILE."
            )
        (self.path / "result.json").unlink(missing_ok=True)
        Manifest(spec.digest).write(self.path)
        for path in [*self.path.glob("explorer*.html"), *self.path.glob("noise.parquet"),
                     *self.path.glob("trusted.parquet")]:  # fmt: skip
            path.unlink()
        (self.path / "spec.toml").unlink(missing_ok=True)

    def _drop_half_written(self) -> None:
        """What a killed process left. Only pages and verdicts are written without the run's lock,
        so one may be on its way."""
        for path in self.path.rglob(".*.tmp"):
            if not path.name.startswith((".explorer", f".{VERDICTS}")):
                path.unlink()

    def _close_events(self) -> None:
        if self._events is not None:
            events, self._events = self._events, None
            # What a full disk kept from the log comes after the last checkpoint, and is done again.
            with contextlib.suppress(OSError):
                events.close()


def open_run(path: Path) -> RunDir:
    """A run that is stored in a folder, to be read: without what it was told to forget, also
    where that was cut short."""
    with or_user_error(f"cannot read {path}"):
        there = (path / "spec.toml").is_file()
    if not there:
        raise UserError(f"{path} is not a run: it has no spec.toml; see `metasp list runs`.")
    run = path.resolve()
    own_only(run)
    manifest = read_manifest(run)
    if manifest is not None and manifest.erasing:
        with locked(run / "lock"), writing(run):
            forget.complete(run, manifest)
    return RunDir(run)


def runs_in(folder: Path) -> list[RunDir]:
    """The runs stored in a folder, by name."""
    return [RunDir(path.parent) for path in sorted(folder.glob("*/spec.toml"))]

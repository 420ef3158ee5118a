"""The run directory: the only place that knows its files."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from metasp.errors import UserError, or_user_error
from metasp.events import STORED, Event, TaskFinished, as_record
from metasp.metrics import SCENARIOS, scores
from metasp.spec import RunSpec
from metasp.store import forget
from metasp.store.checkpoints import (
    Arrays,
    Checkpoint,
    drop_checkpoint,
    load_latest,
    save_checkpoint,
)
from metasp.store.files import content_of, locked, own_only, write_atomic, writing
from metasp.store.run_tables import (
    FOLDERS,
    INFLUENCE,
    NOISE,
    SCORES,
    TABLES,
    TRUSTED,
    VERDICTS,
    command_for,
    names_by_task,
    whole_table,
    write_table,
)

Columns = Mapping[str, Sequence[Any]]

DIGEST_NOTE = "# The digest of this spec, which tells a changed one: "
GARBLED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)


def whole_scores(entry: Any) -> bool:
    """Whether all scores of a scenario follow from what is stored of it."""
    try:
        found = scores(entry["matrix"], entry["before"])
    except GARBLED:
        return False
    return is_finite(found)


def whole_seconds(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("total"), float)


def whole_names(entry: Any) -> bool:
    return isinstance(entry, list | None)


def is_finite(entry: Any) -> bool:
    """Whether no number in it is NaN or infinite, which Python's JSON lets through."""
    try:
        json.dumps(entry, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


PARTS = {
    "class_il": whole_scores,
    "task_il": whole_scores,
    "seconds": whole_seconds,
    "class_names": whole_names,
}


class RunDir:
    """spec.toml, result.json, events.jsonl, influence.parquet, memory/, scores/, checkpoint/; and
    noise.parquet where labels were made wrong on purpose, trusted.parquet where some are verified,
    verified.csv where the explorer saved verdicts, forgotten.json where examples were taken
    back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events: BinaryIO | None = None

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
                    self._wipe()
                if not (self.path / "spec.toml").exists():
                    text = f"{DIGEST_NOTE}{spec.digest}\n{spec.to_toml()}"
                    write_atomic(self.path / "spec.toml", text.encode())
            if self.spec() != spec:
                raise UserError(
                    f"{self.path} was started with another spec: choose another folder with --runs."
                )
            with writing(self.path):
                self._drop_half_written()
                forget.complete(self.path)
                self._events = open(self.path / "events.jsonl", "ab")  # noqa: SIM115
            try:
                yield
            finally:
                self._close_events()

    def spec(self) -> RunSpec:
        """The spec the run was started with."""
        spec = RunSpec.from_toml(self.path / "spec.toml")
        digest = self._digest_at_start()
        if digest is None:  # a folder of an older version that was renamed
            raise UserError(
                f"{self.path} was renamed, so a change to its spec.toml would go unnoticed: make "
                f"the folder's name end in -{spec.digest} again."
            )
        if spec.digest != digest:
            raise UserError(
                f"{self.path / 'spec.toml'} was changed after the run started (its digest is now "
                f"{spec.digest}): undo that, or start a new run with `metasp run --spec`."
            )
        return spec

    def _digest_at_start(self) -> str | None:
        """The digest of the spec when the run started: as spec.toml notes it or, in a run of an
        older version, as the folder's name ends; None where neither says."""
        first, *_ = content_of(self.path / "spec.toml").decode().split("\n", 1)
        noted = first.removeprefix(DIGEST_NOTE) if first.startswith(DIGEST_NOTE) else ""
        ending = re.search(r"-([0-9a-f]{12})$", self.path.name)
        return noted.strip() or (ending.group(1) if ending else None)

    def result(self) -> dict[str, Any] | None:
        """The stored result; None while the run is unfinished."""
        try:
            result = json.loads(content_of(self.path / "result.json"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f"{self.path / 'result.json'} is damaged ({error}): make the run again with "
                f"`{command_for(self.path)}`."
            ) from error
        return result if isinstance(result, dict) else None

    def outcome(self) -> dict[str, Any] | None:
        """The stored result with its scores, which follow from the stored accuracies; or one
        sentence about what it lacks of what every result has."""
        result = self.result()
        if result is None:
            return None
        for part, is_whole in PARTS.items():
            if not (is_whole(result.get(part)) and is_finite(result.get(part))):
                raise UserError(
                    f"{self.path / 'result.json'} is damaged ({part} is missing or malformed): "
                    f"make the run again with `{command_for(self.path)}`."
                )
        derived = {s: scores(result[s]["matrix"], result[s]["before"]) for s in SCENARIOS}
        return {**result, **{s: {**result[s], **derived[s]} for s in SCENARIOS}}

    def append(self, event: Event) -> None:
        """Add an event to the log; what it carries as columns goes to its own file."""
        with writing(self.path):
            if isinstance(event, TaskFinished):
                self._write_by_task("memory", event.task, pa.table(dict(event.memory)))
                self._write_influence(event)
                if event.scores:
                    table = pa.table(dict(event.scores), schema=SCORES)
                    self._write_by_task("scores", event.task, table)
            self._log.write((json.dumps(as_record(event)) + "\n").encode())

    def checkpoint(self, arrays: Arrays, numbers: dict[str, Any]) -> None:
        """Store a state together with the length of the log that belongs to it."""
        with writing(self.path):
            self._log.flush()
            os.fsync(self._log.fileno())
            numbers = {**numbers, "log": self._log.tell()}
            save_checkpoint(self.path / "checkpoint", arrays, numbers)

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest sound checkpoint, with warnings about damaged ones, which are removed. The
        log is cut back to it, so that what is done again is not told twice."""
        found, damaged = load_latest(self.path / "checkpoint")
        with writing(self.path):
            for number in damaged:
                drop_checkpoint(self.path / "checkpoint", number)
            length = found.numbers["log"] if found else 0
            if self._log.seek(0, os.SEEK_END) < length:  # to truncate would make it longer
                raise UserError(
                    f"{self.path / 'events.jsonl'} is shorter than the checkpoint says, so events "
                    "are lost: bring it back from a backup, or start the run again with --force."
                )
            self._log.truncate(length)
            self._log.seek(0, os.SEEK_END)
        return found, list(damaged.values())

    def events(self) -> list[dict[str, Any]]:
        """All events so far, in order."""
        if self._events is not None:
            with writing(self.path):
                self._events.flush()
        try:
            content = content_of(self.path / "events.jsonl")
        except FileNotFoundError as error:
            raise UserError(f"{self.path} has no events.jsonl: the run is damaged.") from error
        except OSError as error:
            raise UserError(
                f"cannot read {self.path / 'events.jsonl'}: {error.strerror or error}."
            ) from error
        # A killed run may end in the middle of a line, which then does not count.
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        try:
            events = [json.loads(line) for line in lines]
            for event in events:
                for name in STORED.get(event["event"], ()):
                    event[name]
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise UserError(
                f"{self.path / 'events.jsonl'} is damaged ({error}): make the run again with "
                f"`{command_for(self.path)}`."
            ) from error
        return events

    def finish(self, result: Mapping[str, Any]) -> None:
        with writing(self.path):
            self._log.flush()
            os.fsync(self._log.fileno())
            write_atomic(self.path / "result.json", json.dumps(result, indent=1).encode())

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
        """Store facts about examples that the run was given, but for what was forgotten."""
        if columns:
            table = pa.table(dict(columns), schema=schema)
            gone = {*self.forgotten()}
            kept = table.filter(pa.array([name not in gone for name in columns["id"]], pa.bool_()))
            with writing(self.path):
                write_table(self.path / name, kept)

    def forgotten(self) -> list[int]:
        """The ids of examples that the run must do without."""
        return forget.forgotten(self.path)

    def forget(self, ids: Sequence[int], reason: str = "") -> list[int]:
        """Take examples back: nothing of their content stays in the directory, and the run, if it
        goes on, does so without them."""
        with locked(self.path / "lock"), writing(self.path):
            own_only(self.path)
            return forget.forget(self.path, ids, reason)

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
        if not (self.path / name).is_file():
            return None
        columns: Columns = whole_table(self.path, name, schema).to_pydict()
        return columns

    def _by_task(self, folder: str) -> dict[int, Columns]:
        names = names_by_task(self.path, folder).items()
        tables = {task: self._columns(name, FOLDERS[folder]) for task, name in names}
        return {task: columns for task, columns in tables.items() if columns is not None}

    def _write_by_task(self, folder: str, task: int, table: pa.Table) -> None:
        (self.path / folder).mkdir(exist_ok=True)
        write_table(self.path / folder / f"task-{task:03d}.parquet", table)

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
        write_table(path, rows)

    def _wipe(self) -> None:
        # Whatever is left if this is cut short is an unfinished run: no result without the rest,
        # no checkpoint without its log, and the spec to the last.
        (self.path / "result.json").unlink(missing_ok=True)
        for name in ("checkpoint", *FOLDERS):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for path in self.path.glob("explorer*.html"):
            path.unlink()
        for name in ("events.jsonl", *TABLES, "spec.toml"):
            (self.path / name).unlink(missing_ok=True)

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
    if forget.pending(run):
        with locked(run / "lock"), writing(run):
            forget.complete(run)
    return RunDir(run)


def runs_in(folder: Path) -> list[RunDir]:
    """The runs stored in a folder, by name."""
    return [RunDir(path.parent) for path in sorted(folder.glob("*/spec.toml"))]

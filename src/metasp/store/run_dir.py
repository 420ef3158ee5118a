"""The folder of a run as it is read, and where it is opened for writing."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from metasp.errors import UserError, or_user_error
from metasp.metrics import SCENARIOS, scores
from metasp.spec import RunSpec
from metasp.store import forget
from metasp.store.checkpoints import Checkpoint, newest
from metasp.store.files import locked, writing
from metasp.store.manifest import damaged, read_manifest, stored_content
from metasp.store.run_tables import (
    FOLDERS,
    INFLUENCE,
    NOISE,
    TABLES,
    TRUSTED,
    VERDICTS,
    Columns,
    packed,
    read_table,
    task_of,
)
from metasp.store.writer import RunWriter

GARBLED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
LISTED = {"ids": "id", "labels": "label", "tasks": "task"}


class RunDir:
    """spec.toml, result.json, events.jsonl, influence.parquet, memory/, scores/, checkpoint/ and
    manifest.json, which holds a digest of each; noise.parquet where labels were made wrong on
    purpose, trusted.parquet where some are verified, verified.csv where the explorer saved
    verdicts. Only what the manifest lists is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def finished(self) -> bool:
        return self.result() is not None

    @contextlib.contextmanager
    def open(self, spec: RunSpec, fresh: bool = False) -> Iterator[RunWriter]:
        """Hold the run for writing, from nothing or where it stands."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / "lock"):
            refuse_links(self.path)
            with writing(self.path):
                writer = RunWriter(self.path, spec, fresh)
            try:
                yield writer
            finally:
                writer.close()

    def spec(self) -> RunSpec:
        """Return the spec that the run was started with."""
        try:
            spec = RunSpec.from_toml(self.path / "spec.toml")
        except UserError as error:
            raise UserError(f"{self.path / 'spec.toml'} cannot be used: {error}") from error
        manifest = read_manifest(self.path)
        if manifest is not None and manifest.spec != spec.digest:
            raise UserError(
                f"{self.path / 'spec.toml'} was changed after the run started (its digest is now "
                f"{spec.digest}): undo that, or start a new run with `metasp run --spec`."
            )
        return spec

    def result(self) -> dict[str, Any] | None:
        """Return the stored result; None while the run is unfinished."""
        if not (self.path / "result.json").exists():
            return None  # it may be listed just before it is written
        content = stored_content(self.path, "result.json")
        if content is None:
            raise damaged(self.path, "result.json", "the manifest does not list it")
        result: dict[str, Any] = json.loads(content)
        return result

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

    def events(self) -> list[dict[str, Any]]:
        """Return all events so far, in order."""
        manifest = read_manifest(self.path)  # first: what it lists of the log stays as it is
        content = b"" if manifest is None else manifest.logged(self.path)
        # A killed run may end in the middle of a line, which then does not count.
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        try:
            return [dict(json.loads(line)) for line in lines]
        except (ValueError, RecursionError, TypeError) as error:
            raise damaged(self.path, "events.jsonl", str(error)) from error

    def influence(self) -> Columns | None:
        """Return one row per example and task; None where the method records none."""
        return self._columns("influence.parquet", INFLUENCE)

    def influence_of(self, columns: Sequence[str]) -> pa.Table | None:
        """Return some columns of the influences; None where the method records none."""
        return read_table(self.path, "influence.parquet", INFLUENCE, columns)

    def memory_tables(self) -> dict[int, Columns]:
        """Return what the memory held at the end of each finished task, by task."""
        return self._by_task("memory")

    def scores(self) -> dict[int, Columns]:
        """Return how the examples of each finished task fared in its training, by task."""
        return self._by_task("scores")

    def trusted(self) -> Columns | None:
        """Return the examples that were given as verified; None where there are none."""
        return self._columns("trusted.parquet", TRUSTED)

    def noise(self) -> Columns | None:
        """Return the labels that are wrong on purpose; None where none were asked for."""
        return self._columns("noise.parquet", NOISE)

    def held_out(self) -> Columns | None:
        """Return how networks judge the examples that did not train on them; None where they were
        not asked to."""
        return self._columns("held_out.parquet", TABLES["held_out.parquet"])

    def memory(self) -> Columns:
        """Return what the memory holds as of the newest checkpoint: slot, id, label and every
        column with a number per slot."""
        stored = self.checkpoint()
        if stored is None or forget.SLOTS not in stored.arrays:
            raise UserError(
                f"{self.path} has no checkpoint yet: let it run, or look at a finished run."
            )
        slots = np.nonzero(stored.arrays[forget.SLOTS] != forget.EMPTY)[0]
        columns: dict[str, Sequence[Any]] = {"slot": slots.tolist(), "id": [], "label": []}
        for full_name in forget.slot_columns(stored.arrays):
            name, values = full_name.removeprefix("memory/"), stored.arrays[full_name]
            if name == "labels" or (values.ndim == 1 and not name.startswith("inputs")):
                columns[LISTED.get(name, name)] = values[slots].tolist()
        return columns

    def checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint, which must be sound; None where there is none yet."""
        return newest(self.path)

    def kept_checkpoints(self) -> Iterator[Checkpoint]:
        """Yield the checkpoints that the run was asked to keep, the oldest first."""
        manifest = read_manifest(self.path)
        for name in sorted(manifest.kept) if manifest is not None else ():
            content = stored_content(self.path, name)
            if content is not None:
                yield Checkpoint.parse(content)

    def page(self, other: "RunDir | None" = None) -> Path:
        """Return the path of the explorer's page of this run, or of this and another one."""
        suffix = f"-with-{other.spec().digest}" if other else ""
        return self.path / f"explorer{suffix}.html"

    @property
    def verdicts(self) -> Path:
        """Return the path of a person's verdicts; a run made anew leaves it as it is."""
        return self.path / VERDICTS

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
            refuse_links(self.path)
            return forget.forget(self.path, ids)

    def attach(self, name: str, table: pa.Table) -> None:
        """Add one of TABLES to a run that has begun; the manifest lists it."""
        with locked(self.path / "lock"), writing(self.path):
            manifest = read_manifest(self.path)
            if manifest is None or name not in TABLES:
                raise ValueError(f"{name} is no table of a run, or the run has not begun")
            manifest.store(self.path, name, packed(table.cast(TABLES[name])))
            manifest.write(self.path)

    def table(self, name: str) -> pa.Table | None:
        """Return one of TABLES; None where the run has none."""
        return read_table(self.path, name, TABLES[name])

    def _columns(self, name: str, schema: pa.Schema) -> Columns | None:
        table = read_table(self.path, name, schema)
        columns: Columns | None = None if table is None else table.to_pydict()
        return columns

    def _by_task(self, folder: str) -> dict[int, Columns]:
        manifest, tables = read_manifest(self.path), dict[int, Columns]()
        for name in sorted(manifest.files) if manifest is not None else ():
            task = task_of(name) if name.startswith(f"{folder}/") else None
            columns = None if task is None else self._columns(name, FOLDERS[folder])
            if task is not None and columns is not None:
                tables[task] = columns
        return tables


def refuse_links(run: Path) -> None:
    """Raise where a file that a run writes in place, or a folder that it clears, is a link, which
    could name any file of the user's, or a pipe, which would block."""
    for path in (run / name for name in ("events.jsonl", "checkpoint", *FOLDERS)):
        if path.is_symlink() or path.is_fifo():
            raise UserError(
                f"{path} is a link or a pipe, and a run writes only to its own files: put what "
                "belongs there in its place, or delete it."
            )


def open_run(path: Path) -> RunDir:
    """Return a run that is stored in a folder, to be read. An erasure that was cut short is
    finished first."""
    with or_user_error(f"cannot read {path}"):
        exists = (path / "spec.toml").is_file()
    if not exists:
        raise UserError(f"{path} is not a run: it has no spec.toml; see `metasp list runs`.")
    run = path.resolve()
    refuse_links(run)
    manifest = read_manifest(run)
    if manifest is not None and manifest.erasing:
        with locked(run / "lock"), writing(run):
            forget.complete(run, manifest)
    return RunDir(run)


def runs_in(folder: Path) -> list[RunDir]:
    """Return the runs stored in a folder, by name."""
    return [RunDir(path.parent) for path in sorted(folder.glob("*/spec.toml"))]

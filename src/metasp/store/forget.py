"""Forgetting examples in a finished run: no trace of their content stays in its folder."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from metasp.errors import UserError
from metasp.store.checkpoints import (
    Arrays,
    drop_checkpoint,
    listed,
    load_latest,
    name_of,
    numbers_in,
    save_checkpoint,
)
from metasp.store.files import content_of, sha256, write_atomic
from metasp.store.manifest import MANIFEST, Manifest, check_files, damaged, read_manifest
from metasp.store.run_tables import VERDICTS, packed

LAST = int(np.iinfo(np.int64).max)  # the largest id
SLOTS, COUNTERS = "memory/ids", "memory/counters"  # all else below memory/ has a row per slot
# But for encoded pictures, which are end to end, with a row per slot of where each is.
PICTURES, PLACES = "memory/inputs['encoded']", "memory/inputs['places']"
STATS = ("influence_stats/", "training_stats/", "method/", "weigh/")  # have a row per id of `…/ids`
EMPTY = -1  # the id in an empty slot
LISTED = {"ids": "id", "labels": "label", "tasks": "task"}


def forget(run: Path, ids: Iterable[int]) -> list[int]:
    """Erase examples from everything stored of a finished run, whose lock is held. The manifest
    names them first: should this be cut short, opening the run goes on with it. Returns the ids."""
    gone = sorted({int(i) for i in ids})
    if gone and not 0 <= gone[0] <= gone[-1] <= LAST:
        raise UserError(f"ids must be whole numbers from 0 to {LAST}.")
    manifest = read_manifest(run)
    if manifest is None:
        raise damaged(run, MANIFEST, "it is missing")
    check_files(run, manifest)
    newest(run, manifest)
    manifest.forgotten = sorted({*manifest.forgotten, *gone})
    manifest.erasing = True
    manifest.write(run)
    complete(run, manifest)
    return gone


def complete(run: Path, manifest: Manifest) -> None:
    """Finish an erasure that was begun, and note the digests of what is left."""
    ids = np.array(manifest.forgotten, np.int64)
    for path in [*run.glob("*.parquet"), *run.glob("*/*.parquet")]:
        _erase_rows(path, ids)
    _erase_lines(run / VERDICTS, ids)
    _erase_from_checkpoints(run / "checkpoint", ids, manifest)
    for path in [*run.glob("explorer*.html"), *run.rglob(".*.tmp")]:
        path.unlink()  # pages show pictures, and a killed write may have left a copy
    there = [name for name in manifest.files if (run / name).exists()]
    manifest.files = {name: [sha256(content_of(run / name))] for name in there}
    manifest.erasing = False
    manifest.write(run)


def newest(run: Path, manifest: Manifest) -> Arrays:
    """Return the arrays of the newest checkpoint of a run, which must be sound."""
    stored, unsound = load_latest(run / "checkpoint", manifest)
    if unsound:
        number = max(unsound)
        raise damaged(run, name_of(number), unsound[number].rstrip("."))
    if stored is None or SLOTS not in stored.arrays:
        raise UserError(f"{run} has no checkpoint yet: let it run, or look at a finished run.")
    return stored.arrays


def cleared(arrays: Arrays, ids: np.ndarray[Any, Any]) -> Arrays:
    """Return a checkpoint's arrays without the examples of these ids: empty slots of the memory,
    no rows of the statistics, nor of what else is stored by id (`x` beside `x_ids`)."""
    left = dict(arrays)
    slots = np.isin(arrays[SLOTS], ids) if SLOTS in arrays else None
    for name in slot_columns(arrays):
        column = arrays[name].copy()
        column[slots] = EMPTY if name == SLOTS else 0  # restoring makes blanks of empty slots
        left[name] = column
    if PICTURES in arrays:
        left[PICTURES] = arrays[PICTURES].copy()
        for start, end in arrays[PLACES][slots].tolist():
            left[PICTURES][start:end] = 0
    for name in arrays:
        if name.startswith(STATS) and name.endswith("/ids"):
            rows, part = ~np.isin(arrays[name], ids), name.removesuffix("ids")
            names = [each for each in arrays if each.startswith(part)]
        elif name.startswith(("method/", "weigh/")) and name.endswith("_ids"):
            rows = ~np.isin(arrays[name], ids)
            names = [each for each in (name, name.removesuffix("_ids")) if each in arrays]
        else:
            continue
        left |= {each: arrays[each][rows] for each in names}
    return left


def slot_columns(arrays: Arrays) -> list[str]:
    """Return the names of the arrays that hold a row for each slot of the memory."""
    others = (COUNTERS, PICTURES)
    return [name for name in arrays if name.startswith("memory/") and name not in others]


def memory_of(run: Path) -> dict[str, Sequence[Any]]:
    """Return the columns of what a run's memory holds, as of its newest checkpoint."""
    manifest = read_manifest(run)
    if manifest is None:
        raise damaged(run, MANIFEST, "it is missing")
    try:
        arrays = newest(run, manifest)
    except UserError:
        later = read_manifest(run)
        if later is None or listed(later) == listed(manifest):
            raise
        arrays = newest(run, later)  # a run under way has replaced it between two reads
    slots = np.nonzero(arrays[SLOTS] != EMPTY)[0]
    columns: dict[str, Sequence[Any]] = {"slot": slots.tolist(), "id": [], "label": []}
    for stored in slot_columns(arrays):
        name, values = stored.removeprefix("memory/"), arrays[stored]
        inputs = name == "inputs" or name.startswith("inputs[")
        if name == "labels" or (values.ndim == 1 and not inputs):
            columns[LISTED.get(name, name)] = values[slots].tolist()
    return columns


def _erase_rows(path: Path, ids: np.ndarray[Any, Any]) -> None:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error
    if "id" not in table.column_names:
        return
    keep = ~np.isin(table.column("id").to_numpy(), ids)
    if not keep.all():
        write_atomic(path, packed(table.filter(pa.array(keep))))


def _erase_lines(path: Path, ids: np.ndarray[Any, Any]) -> None:
    """Take rows out of a CSV file whose first line names a column `id`."""
    if not path.is_file():
        return
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
        column = [name.strip().lower() for name in rows[0]].index("id") if rows else 0
    except (OSError, ValueError, csv.Error) as error:
        raise unreadable(path, error) from error
    gone = {str(identity) for identity in ids.tolist()}
    left = [row for row in rows if len(row) <= column or row[column].strip() not in gone]
    if len(left) < len(rows):
        out = io.StringIO()
        csv.writer(out, lineterminator="\r\n").writerows(left)
        write_atomic(path, out.getvalue().encode())


def _erase_from_checkpoints(folder: Path, ids: np.ndarray[Any, Any], manifest: Manifest) -> None:
    """Write the latest checkpoint anew, and drop all others with what they hold."""
    stored, _ = load_latest(folder)
    if stored is None:
        return
    number = save_checkpoint(folder, cleared(stored.arrays, ids), stored.numbers)
    for other in numbers_in(folder):
        if other != number:
            drop_checkpoint(folder, other)
    for orphan in folder.glob("*.safetensors"):  # tensors whose JSON was never written
        if orphan.stem.isdecimal() and int(orphan.stem) != number:
            orphan.unlink()
    for other in listed(manifest):
        del manifest.files[name_of(other)]
    manifest.files[name_of(number)], manifest.kept = [], []


def unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is damaged ({str(error).splitlines()[0]}), so nothing can be erased from it: "
        "delete it, and forget the examples again."
    )

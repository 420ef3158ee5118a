"""Forgetting examples in a finished run: no trace of their content stays in its folder."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from metasp.errors import UserError
from metasp.store.checkpoints import Arrays, Checkpoint, name_of, newest, number_of
from metasp.store.files import content_of, sha256, write_atomic
from metasp.store.manifest import (
    CHECKPOINTS,
    MANIFEST,
    Manifest,
    damaged,
    read_manifest,
    stored_content,
)
from metasp.store.run_tables import VERDICTS, packed
from metasp.store.writer import drop_unlisted_checkpoints

LAST = int(np.iinfo(np.int64).max)  # the largest id
SLOTS, COUNTERS = "memory/ids", "memory/counters"  # all else below memory/ has a row per slot
# But for encoded pictures, which are end to end, with a row per slot of where each is.
PICTURES, PLACES = "memory/inputs['encoded']", "memory/inputs['places']"
EMPTY = -1  # the id in an empty slot


def forget(run: Path, ids: Iterable[int]) -> list[int]:
    """Erase examples from everything stored of a finished run, whose lock is held. The manifest
    names them first: should this be cut short, opening the run goes on with it. Returns the ids."""
    gone = sorted({int(i) for i in ids})
    if gone and not 0 <= gone[0] <= gone[-1] <= LAST:
        raise UserError(f"ids must be whole numbers from 0 to {LAST}.")
    manifest = read_manifest(run)
    if manifest is None:
        raise damaged(run, MANIFEST, "it is missing")
    for name in manifest.files:
        if not name.startswith(CHECKPOINTS):
            stored_content(run, name)
    newest(run)
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
    for path in [*run.glob("explorer*.html"), *run.rglob(".*.tmp")]:
        path.unlink()  # pages show pictures, and a killed write may have left a copy
    names = [name for name in manifest.files if not name.startswith(CHECKPOINTS)]
    left = {name: [sha256(content_of(run / name))] for name in names if (run / name).exists()}
    for name in manifest.checkpoints[:1]:
        stored = Checkpoint.parse(stored_content(run, name) or b"")
        content = Checkpoint(cleared(stored.arrays, ids), stored.numbers).pack()
        name = name_of(number_of(name) + 1)
        write_atomic(run / name, content)
        left[name] = [sha256(content)]
    manifest.files, manifest.kept = left, []
    manifest.write(run)  # the checkpoints with what they hold go once the new one counts
    drop_unlisted_checkpoints(run, manifest)
    manifest.erasing = False
    manifest.write(run)


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
        if name.endswith("/ids") and name != SLOTS:
            aligned = [column for column in arrays if column.startswith(name.removesuffix("ids"))]
        elif name.endswith("_ids"):
            aligned = [name, name.removesuffix("_ids")]
        else:
            continue
        rows = ~np.isin(arrays[name], ids)
        left |= {column: arrays[column][rows] for column in aligned if column in arrays}
    return left


def slot_columns(arrays: Arrays) -> list[str]:
    """Return the names of the arrays that hold a row for each slot of the memory."""
    others = (COUNTERS, PICTURES)
    return sorted(name for name in arrays if name.startswith("memory/") and name not in others)


def _erase_rows(path: Path, ids: np.ndarray[Any, Any]) -> None:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    if "id" not in table.column_names:
        return
    keep = ~np.isin(table.column("id").to_numpy(), ids)
    if not keep.all():
        write_atomic(path, packed(table.filter(pa.array(keep))))


def _erase_lines(path: Path, ids: np.ndarray[Any, Any]) -> None:
    """Take rows out of a CSV file whose first line names a column `id`."""
    if not path.exists():
        return
    try:
        text = content_of(path).decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline="")))
        column = [name.strip().lower() for name in rows[0]].index("id") if rows else 0
    except (OSError, ValueError, csv.Error) as error:
        raise _unreadable(path, error) from error
    gone = {str(identity) for identity in ids.tolist()}
    left = [row for row in rows if len(row) <= column or row[column].strip() not in gone]
    if len(left) < len(rows):
        out = io.StringIO()
        csv.writer(out, lineterminator="\r\n").writerows(left)
        write_atomic(path, out.getvalue().encode())


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is damaged ({str(error).splitlines()[0]}), so nothing can be erased from it: "
        "delete it, and forget the examples again."
    )

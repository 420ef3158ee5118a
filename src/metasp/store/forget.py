"""Forgetting examples in a stored run: a record of ids, and no trace of their content."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from metasp.errors import UserError
from metasp.store.checkpoints import Arrays, drop_checkpoint, load_latest, numbers_in
from metasp.store.checkpoints import save_checkpoint as save
from metasp.store.files import content_of, write_atomic
from metasp.store.run_tables import VERDICTS, command_for, write_table

FORMAT = 1
LAST = int(np.iinfo(np.int64).max)  # the largest id
RECORD = "forgotten.json"
SLOTS, COUNTERS = "memory/ids", "memory/counters"  # all else below memory/ has a row per slot
# But for encoded pictures, which are end to end, with a row per slot of where each is.
PICTURES, PLACES = "memory/inputs['encoded']", "memory/inputs['places']"
STATS = ("influence_stats/", "training_stats/", "method/", "weigh/")  # have a row per id of `…/ids`
EMPTY = -1  # the id in an empty slot
LISTED = {"ids": "id", "labels": "label", "tasks": "task"}


def records(run: Path) -> list[dict[str, Any]]:
    """Each removal: ids, when, reason."""
    return list(_read(run)["records"])


def forgotten(run: Path) -> list[int]:
    """All ids that a run must do without, ascending."""
    return sorted({i for record in records(run) for i in record["ids"]})


def forget(run: Path, ids: Iterable[int], reason: str) -> list[int]:
    """Erase examples from everything stored of a run, whose lock is held. The record comes first:
    should this be cut short, opening the run goes on with it. Gives the ids."""
    gone = sorted({int(i) for i in ids})
    if gone and not 0 <= gone[0] <= gone[-1] <= LAST:
        raise UserError(f"ids must be whole numbers from 0 to {LAST}.")
    stored = _read(run)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    stored["records"].append({"ids": gone, "when": when, "reason": reason})
    _write(run, {**stored, "complete": False})
    complete(run)
    return gone


def pending(run: Path) -> bool:
    """Whether an erasure was begun and cut short."""
    return not _read(run)["complete"]


def complete(run: Path) -> None:
    """Finish an erasure that was begun."""
    stored = _read(run)
    if stored["complete"]:
        return
    ids = np.array(forgotten(run), np.int64)
    for path in [*run.glob("*.parquet"), *run.glob("*/*.parquet")]:
        _erase_rows(path, ids)
    _erase_lines(run / VERDICTS, ids)
    _erase_from_checkpoints(run / "checkpoint", ids)
    for path in [*run.glob("explorer*.html"), *run.rglob(".*.tmp")]:
        path.unlink()  # pages show pictures, and a killed write may have left a copy
    _mark_result(run / "result.json", len(ids))
    _write(run, {**stored, "complete": True})


def marked(result: Mapping[str, Any], count: int, undisturbed: bool) -> dict[str, Any]:
    """A result with the number of examples forgotten, and whether training had them all."""
    before = result.get("forgotten", {}).get("undisturbed", undisturbed)
    return {**result, "forgotten": {"examples": count, "undisturbed": before}}


def cleared(arrays: Arrays, ids: np.ndarray[Any, Any]) -> Arrays:
    """A checkpoint's arrays without the examples of these ids: empty slots of the memory, no rows
    of the statistics, nor of what else is kept by id (`x` beside `x_ids`)."""
    kept = dict(arrays)
    slots = np.isin(arrays[SLOTS], ids) if SLOTS in arrays else None
    for name in slot_columns(arrays):
        column = arrays[name].copy()
        column[slots] = EMPTY if name == SLOTS else 0  # restoring makes blanks of empty slots
        kept[name] = column
    if PICTURES in arrays:
        kept[PICTURES] = arrays[PICTURES].copy()
        for start, end in arrays[PLACES][slots].tolist():
            kept[PICTURES][start:end] = 0
    for name in arrays:
        if name.startswith(STATS) and name.endswith("/ids"):
            rows, part = ~np.isin(arrays[name], ids), name.removesuffix("ids")
            names = [each for each in arrays if each.startswith(part)]
        elif name.startswith(("method/", "weigh/")) and name.endswith("_ids"):
            rows = ~np.isin(arrays[name], ids)
            names = [each for each in (name, name.removesuffix("_ids")) if each in arrays]
        else:
            continue
        kept |= {each: arrays[each][rows] for each in names}
    return kept


def slot_columns(arrays: Arrays) -> list[str]:
    """The arrays of a checkpoint that hold a row for each slot of the memory."""
    others = (COUNTERS, PICTURES)
    return [name for name in arrays if name.startswith("memory/") and name not in others]


def memory_of(run: Path) -> dict[str, Sequence[Any]]:
    """The columns of what a run's memory holds, as of its last checkpoint."""
    found, unsound = load_latest(run / "checkpoint")
    if found is None and unsound:
        raise UserError(
            f"all checkpoints of {run} are damaged, and the memory with them: make the run again "
            f"with `{command_for(run)}`."
        )
    if found is None or SLOTS not in found.arrays:
        raise UserError(f"{run} has no checkpoint yet: let it run, or look at a finished run.")
    slots = np.nonzero(found.arrays[SLOTS] != EMPTY)[0]
    columns: dict[str, Sequence[Any]] = {"slot": slots.tolist(), "id": [], "label": []}
    for stored in slot_columns(found.arrays):
        name, values = stored.removeprefix("memory/"), found.arrays[stored]
        inputs = name == "inputs" or name.startswith("inputs[")
        if name == "labels" or (values.ndim == 1 and not inputs):
            columns[LISTED.get(name, name)] = values[slots].tolist()
    return columns


def _erase_rows(path: Path, ids: np.ndarray[Any, Any]) -> None:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error
    if "id" not in table.column_names:
        return
    keep = ~np.isin(table.column("id").to_numpy(), ids)
    if not keep.all():
        write_table(path, table.filter(pa.array(keep)))


def _erase_lines(path: Path, ids: np.ndarray[Any, Any]) -> None:
    """Take rows out of a CSV file whose first line names a column `id`."""
    if not path.is_file():
        return
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
        place = [name.strip().lower() for name in rows[0]].index("id") if rows else 0
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(path, error) from error
    gone = {str(identity) for identity in ids.tolist()}
    kept = [row for row in rows if len(row) <= place or row[place].strip() not in gone]
    if len(kept) < len(rows):
        out = io.StringIO()
        csv.writer(out, lineterminator="\r\n").writerows(kept)
        write_atomic(path, out.getvalue().encode())


def _erase_from_checkpoints(folder: Path, ids: np.ndarray[Any, Any]) -> None:
    """Write the latest checkpoint anew, and drop all others with what they hold."""
    if not folder.is_dir():
        return
    found, _ = load_latest(folder)
    newest = None if found is None else save(folder, cleared(found.arrays, ids), found.numbers)
    for number in numbers_in(folder):
        if number != newest:
            drop_checkpoint(folder, number)
    for orphan in folder.glob("*.safetensors"):  # tensors whose JSON was never written
        if orphan.stem.isdecimal() and int(orphan.stem) != newest:
            orphan.unlink()


def damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is damaged ({str(error).splitlines()[0]}), so nothing can be erased from it: "
        "delete it, and forget the examples again."
    )


def _mark_result(path: Path, count: int) -> None:
    if path.is_file():
        try:
            result = marked(json.loads(path.read_bytes()), count, undisturbed=True)
        except (ValueError, RecursionError, TypeError, AttributeError) as error:
            raise damaged(path, error) from error
        write_atomic(path, json.dumps(result, indent=1).encode())


def _read(run: Path) -> dict[str, Any]:
    try:
        stored = json.loads(content_of(run / RECORD))
        version = stored["format"]
        if version == FORMAT and not _is_whole(stored):
            raise ValueError("it is not a record of what was forgotten")
    except (FileNotFoundError, NotADirectoryError):
        return {"format": FORMAT, "complete": True, "records": []}
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise UserError(
            f"{run / RECORD} is damaged ({error}): bring it back from a backup, or delete it and "
            "forget the same examples again with `metasp memory forget`."
        ) from error
    if version != FORMAT:
        raise UserError(
            f"{run / RECORD} has format {version} and this metasp reads {FORMAT}: "
            "use a newer metasp."
        )
    whole: dict[str, Any] = stored
    return whole


def _is_whole(stored: Mapping[str, Any]) -> bool:
    entries = stored.get("records")
    return (
        isinstance(stored.get("complete"), bool)
        and isinstance(entries, list)
        and all(isinstance(entry, dict) and _is_record(entry) for entry in entries)
    )


def _is_record(entry: Mapping[str, Any]) -> bool:
    ids = entry.get("ids")
    return (
        isinstance(ids, list)
        and all(type(i) is int and 0 <= i <= LAST for i in ids)
        and all(isinstance(entry.get(name), str) for name in ("when", "reason"))
    )


def _write(run: Path, stored: Mapping[str, Any]) -> None:
    write_atomic(run / RECORD, json.dumps(stored, indent=1).encode())

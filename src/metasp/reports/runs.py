"""Finished runs as records, from run directories and from tables of exported runs."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from metasp.config import defaults, read_toml
from metasp.errors import UserError
from metasp.metrics import METRICS, SCENARIOS
from metasp.spec import RunSpec, flat_items
from metasp.store import RunDir
from metasp.store.files import write_atomic

TOLERANCE = 1e-9
GARBLED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
TABLE = ".parquet"  # a file of exported runs
SETTINGS = ("method.", "influence.")  # whose settings a field of a flat spec is one of
SCORED = ("matrix", "before")  # what is exported of each scenario; all else follows from it
RESULT = ("seconds", "environment")  # what is exported of a result beside the scores


@dataclass(frozen=True)
class Record:
    """One finished run. `spec` is flat: every field by its name, settings as `method.alpha` and
    `influence.strict`, and nothing that is None. `defaults` likewise says what the method does
    unless told otherwise, and as `schedule.NAME` which of that divides the epochs."""

    name: str
    source: Path  # its directory, or the table that it is a row of
    spec: Mapping[str, Any]
    defaults: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return int(self.spec["seed"])

    @property
    def directory(self) -> RunDir | None:
        """Where the rest of the run is stored; None for a row of a table."""
        return None if self.source.suffix == TABLE else RunDir(self.source)

    @property
    def digest(self) -> str:
        return digest_of(self.spec)

    @property
    def code(self) -> str:
        """The version of metasp that made it, with the digest of its code where that is known."""
        environment = self.result.get("environment", {})
        version = str(environment.get("metasp", "unknown"))
        return f"{version}+{environment['code']}" if "code" in environment else version

    def score(self, scenario: str, metric: str) -> float | None:
        """A score in percent, from the accuracies; None where the metric has no such number."""
        if (scenario, metric) not in self._scores:
            scored = self.result[scenario]
            value = METRICS[metric].of(scored["matrix"], scored["before"])
            self._scores[scenario, metric] = None if value is None else 100 * value
        return self._scores[scenario, metric]

    @cached_property
    def _scores(self) -> dict[tuple[str, str], float | None]:
        return {}  # every table of a report asks again


@dataclass(frozen=True)
class Gathered:
    """The records of a search through folders, and the runs that have none."""

    records: list[Record]
    damaged: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


def gather(paths: Iterable[Path]) -> Gathered:
    """Read the finished runs among run directories, tables of exported runs, and folders of either.
    Copies of a run count once; two different results of one spec are refused."""
    gathered = Gathered([])
    by_digest: dict[str, Record] = {}
    for path in sources_in(paths):
        for record in read_source(path, gathered):
            refuse_contradiction(by_digest.setdefault(record.digest, record), record)
    gathered.records.extend(by_digest.values())
    return gathered


def sources_in(paths: Iterable[Path]) -> list[Path]:
    """List the run directories and tables that the paths are or contain, each once, in order."""
    chosen: dict[Path, Path] = {}
    for path in paths:
        if path.is_file() and path.suffix == TABLE:
            chosen.setdefault(path.resolve(), path)
            continue
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give a run, a table or a folder of runs.")
        files = ("spec.toml", "result.json")
        if any((path / name).exists() for name in files):
            sources = [path]
        else:
            sources = sorted({file.parent for name in files for file in path.glob(f"*/{name}")})
            sources += sorted(path.glob(f"*{TABLE}"))
        if not sources:
            raise UserError(f"no runs in {path}: make some with `metasp run` or `metasp sweep`.")
        for source in sources:
            chosen.setdefault(source.resolve(), source)
    return list(chosen.values())


def read_source(path: Path, gathered: Gathered) -> Iterator[Record]:
    """Yield the records of a directory or a table; note in `gathered` why others are left out."""
    if path.suffix == TABLE:
        for name, row in read_table(path):
            try:
                yield checked(record_of_row(path, name, row))
            except (UserError, *GARBLED) as error:
                gathered.damaged.append(f"{path}, run {name}: {error}")
        return
    try:
        record = read_directory(path)
    except UserError as error:
        gathered.damaged.append(f"{path}: {error}")
    except GARBLED as error:
        gathered.damaged.append(f"{path}: its result.json is malformed: {error}")
    else:
        if record is None:
            gathered.unfinished.append(str(path))
        else:
            yield record


def read_directory(path: Path) -> Record | None:
    """Return a finished run whose files agree with each other, or None for an unfinished one."""
    result = RunDir(path).result()
    if result is None:
        if (path / "result.json").exists():
            raise UserError("its result.json is not an object")
        return None
    check_spec(path, result["spec"])
    return checked(record_of(path, result))


def record_of(path: Path, result: Mapping[str, Any]) -> Record:
    """Return the record of a run directory with the content of its result.json."""
    return Record(path.name, path, flat_spec(result["spec"]), dict(result["defaults"]), result)


def flat_spec(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored spec with its settings as fields beside the others, and every field that it
    lacks at its default."""
    spec = {**spec_defaults(), **dict(flat_items(stored))}
    return {key: value for key, value in spec.items() if value is not None}


@cache
def spec_defaults() -> dict[str, Any]:
    """Return what a field of a spec is where a stored spec does not say it."""
    usual = defaults(RunSpec)
    del usual["settings"]
    return {name: [*value] if isinstance(value, tuple) else value for name, value in usual.items()}


def check_spec(path: Path, stored: Mapping[str, Any]) -> None:
    """The result must be of the spec that is stored beside it."""
    if not (path / "spec.toml").exists():
        raise UserError("its spec.toml is missing")
    digest = digest_of(stored)
    if path.resolve().name.rsplit("-", 1)[-1] == digest:
        return
    written = digest_of(read_toml(path / "spec.toml"))
    if written != digest:
        raise UserError(f"its result is of another spec than its spec.toml (digest {digest})")


def checked(record: Record) -> Record:
    """Return the record if its scores follow from its matrix and its parts are sound."""
    int(record.spec["seed"]), str(record.spec["benchmark"]), str(record.spec["method"])
    taken = record.result["seconds"]
    for seconds in (taken["total"], *taken.get("per_step", {}).values()):
        if not math.isfinite(seconds):
            raise UserError(f"its seconds contain {seconds}")
    str(record.code)
    for scenario in SCENARIOS:
        scored = record.result[scenario]
        for name, metric in METRICS.items():
            derived = metric.of(scored["matrix"], scored["before"])
            stored = scored.get(name, derived)  # what a run says of itself must not contradict it
            if (stored is None) != (derived is None) or (
                derived is not None and not abs(stored - derived) <= TOLERANCE  # NaN is neither
            ):
                raise UserError(f"its {name} ({scenario}) does not follow from its matrix")
    return record


def digest_of(spec: Mapping[str, Any]) -> str:
    """Return the digest of plain values."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def refuse_contradiction(one: Record, other: Record) -> None:
    """Two results for one spec are never averaged or chosen from silently."""
    if any(one.result[name]["matrix"] != other.result[name]["matrix"] for name in SCENARIOS):
        raise UserError(
            f"{one.source} and {other.source} contain the same run ({one.name}, {other.name}) with "
            "different results: find out which is right (another machine or version?) and leave "
            "the other out."
        )


def export(records: Sequence[Record], path: Path, more: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write runs as one Parquet table, a row each, to be read in place of their directories. `more`
    may add nested values to each row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row_of(record) for record in records]
    for row, added in zip(rows, more):
        row.update(flattened(added))
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as plain values by column."""
    scores = {name: {part: record.result[name][part] for part in SCORED} for name in SCENARIOS}
    others = {name: record.result[name] for name in RESULT if name in record.result}
    defaults = {f"defaults.{key}": value for key, value in record.defaults.items()}
    return {"run": record.name, **record.spec, **defaults, **flattened({**scores, **others})}


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with the keys of a path joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the values of each run of a table; what is null is left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            rows = file.read().to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}.") from error
    for number, row in enumerate(rows):
        values = {key: value for key, value in row.items() if value is not None}
        if "run" not in values:
            raise UserError(
                f"{path} is not a table of runs (row {number} has no value in the column run): "
                "`metasp report RUNS --export FILE.parquet` writes one."
            )
        yield str(values.pop("run")), values


def record_of_row(path: Path, name: str, row: Mapping[str, Any]) -> Record:
    """Return the record of a row of a table."""
    spec = {**spec_defaults()}
    result: dict[str, Any] = {}
    for column, value in row.items():
        first, *rest = column.split(".")
        if not rest or column.startswith(SETTINGS):
            spec[column] = value
            continue
        part = result.setdefault(first, {})
        for key in rest[:-1]:
            part = part.setdefault(key, {})
        part[rest[-1]] = value
    usual = flattened(result.pop("defaults", {}))
    spec = {key: value for key, value in spec.items() if value is not None}
    return Record(name, path, spec, usual, result)

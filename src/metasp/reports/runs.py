"""Finished runs as records, read from run directories and from tables of exported runs.

A record holds a flat spec, the defaults of its method and the stored result. Scores follow from the
stored accuracies, so a new entry of `METRICS` works on every record."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from metasp.config import defaults
from metasp.errors import UserError
from metasp.metrics import METRICS, SCENARIOS
from metasp.spec import RunSpec, flat_items
from metasp.store import RunDir
from metasp.store.files import write_atomic

GARBLED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
TABLE = ".parquet"  # a file of exported runs
SETTINGS = ("method.", "influence.")  # begin the names of settings in a flat spec
EXPORTED = ("seconds", "environment", "diverged")  # of a result, beside the accuracies


@dataclass(frozen=True)
class Record:
    """One finished run.

    `spec` is flat: fields by name, settings as `method.alpha` and `influence.gamma`, without what
    is None. `defaults` holds the defaults of its method under the same names, and as
    `schedule.NAME` those that divide the epochs."""

    name: str
    source: Path  # its directory, or the table that it is a row of
    spec: Mapping[str, Any]
    defaults: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """Return the seed of its random streams."""
        return int(self.spec["seed"])

    @property
    def directory(self) -> RunDir | None:
        """Return where the rest of the run is stored; None for a row of a table."""
        return None if self.source.suffix == TABLE else RunDir(self.source)

    @property
    def code(self) -> str:
        """Return the version of metasp that made it, with the digest of the code if stored."""
        environment = self.result.get("environment", {})
        version = str(environment.get("metasp", "unknown"))
        return f"{version}+{environment['code']}" if "code" in environment else version

    @property
    def diverged(self) -> bool:
        """Return whether the loss left the range in which the network still learns."""
        return bool(self.result.get("diverged"))

    def score(self, scenario: str, metric: str) -> float | None:
        """Return a score in percent; None where the run has no such number."""
        if (scenario, metric) not in self._scores:
            stored = self.result[scenario]
            value = METRICS[metric].of(stored["matrix"], stored["before"])
            self._scores[scenario, metric] = None if value is None else 100 * value
        return self._scores[scenario, metric]

    @cached_property
    def _scores(self) -> dict[tuple[str, str], float | None]:
        return {}  # every table of a report asks again


@dataclass(frozen=True)
class Gathered:
    """The records below some paths, and why other runs there are left out."""

    records: list[Record]
    damaged: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


def gather(paths: Iterable[Path]) -> Gathered:
    """Read the finished runs among run directories, tables of exported runs, and folders of either.

    Copies of a run count once. Two different results of one spec are refused."""
    gathered = Gathered([])
    by_digest: dict[str, Record] = {}
    for source in sources_in(paths):
        for record in read_source(source, gathered):
            refuse_contradiction(by_digest.setdefault(digest_of(record.spec), record), record)
    gathered.records.extend(by_digest.values())
    return gathered


def sources_in(paths: Iterable[Path]) -> list[Path]:
    """List the run directories and tables that the paths are or contain, each once, in order."""
    chosen: dict[Path, Path] = {}
    for path in paths:
        if path.is_file() and path.suffix == TABLE:
            sources = [path]
        elif not path.is_dir():
            raise UserError(f"{path} is not a folder: give a run, a table or a folder of runs.")
        elif is_run(path):
            sources = [path]
        else:
            sources = sorted(filter(is_run, path.glob("*/"))) + sorted(path.glob(f"*{TABLE}"))
        if not sources:
            raise UserError(f"no runs in {path}: make some with `metasp run` or `metasp sweep`.")
        for source in sources:
            chosen.setdefault(source.resolve(), source)
    return list(chosen.values())


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, finished or not."""
    return (folder / "spec.toml").exists() or (folder / "result.json").exists()


def read_source(source: Path, gathered: Gathered) -> Iterator[Record]:
    """Yield the sound records of a directory or table; note in `gathered` what is left out."""
    if source.suffix == TABLE:
        for name, row in read_table(source):
            try:
                yield checked(record_of_row(source, name, row))
            except (UserError, *GARBLED) as error:
                gathered.damaged.append(f"{source}, run {name}: {error}")
        return
    try:
        record = read_directory(source)
    except UserError as error:
        gathered.damaged.append(f"{source}: {error}")
    except GARBLED as error:
        gathered.damaged.append(f"{source}: its result.json is malformed: {error}")
    else:
        if record is None:
            gathered.unfinished.append(str(source))
        else:
            yield record


def read_directory(path: Path) -> Record | None:
    """Return a finished run; None for an unfinished one."""
    result = RunDir(path).outcome()
    return None if result is None else record_of(path, result)


def record_of(path: Path, result: Mapping[str, Any]) -> Record:
    """Return the record of a run directory from the content of its result.json."""
    return Record(path.name, path, flat_spec(result["spec"]), dict(result["defaults"]), result)


def flat_spec(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored spec by one name per field, with defaults where it has none."""
    spec = {**spec_defaults(), **dict(flat_items(stored))}
    return without_none(spec)


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items whose value is not None."""
    return {key: value for key, value in values.items() if value is not None}


@cache
def spec_defaults() -> dict[str, Any]:
    """Return the default of each field of a spec, as a file stores it."""
    values = defaults(RunSpec)
    del values["settings"]
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = list(value)
    return values


def checked(record: Record) -> Record:
    """Return the record if its scores can be computed and its seconds are finite."""
    if not math.isfinite(record.result["seconds"]["total"]):
        raise UserError(f"its seconds contain {record.result['seconds']['total']}")
    for scenario in SCENARIOS:
        for metric in METRICS:
            record.score(scenario, metric)
    return record


def digest_of(spec: Mapping[str, Any]) -> str:
    """Return the first 12 hex digits of the SHA-256 of plain values."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def refuse_contradiction(one: Record, two: Record) -> None:
    """Raise if two records of one spec have different accuracies."""
    if any(one.result[name]["matrix"] != two.result[name]["matrix"] for name in SCENARIOS):
        raise UserError(
            f"{one.source} and {two.source} contain the same run ({one.name}, {two.name}) with "
            "different results: find out which is right (another machine or version?) and leave "
            "the other out."
        )


def export(records: Sequence[Record], path: Path, more: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write runs as one Parquet table, a row per run, to be read in place of their directories.

    `more` holds further nested values of each run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for number, record in enumerate(records):
        nested: dict[str, Any] = {"defaults": record.defaults}
        for scenario in SCENARIOS:
            stored = record.result[scenario]
            nested[scenario] = {"matrix": stored["matrix"], "before": stored["before"]}
        for name in EXPORTED:
            if name in record.result:
                nested[name] = record.result[name]
        nested |= more[number] if more else {}
        rows.append({"run": record.name, **record.spec, **flattened(nested)})
    columns: dict[str, list[Any]] = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        columns[name] = [row.get(name) for row in rows]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


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
    """Yield the name and the values of each run of a table, without nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            rows = file.read().to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}.") from error
    for number, row in enumerate(rows):
        values = without_none(row)
        if "run" not in values:
            raise UserError(
                f"{path} is not a table of runs (row {number} has no value in the column run): "
                "`metasp report RUNS --export FILE.parquet` writes one."
            )
        yield str(values.pop("run")), values


def record_of_row(path: Path, name: str, row: Mapping[str, Any]) -> Record:
    """Return the record of a row of a table: the inverse of what `export` writes."""
    spec, method_defaults = dict(spec_defaults()), {}
    result: dict[str, Any] = {}
    for column, value in row.items():
        if column.startswith("defaults."):
            method_defaults[column.removeprefix("defaults.")] = value
        elif ("." not in column and column != "diverged") or column.startswith(SETTINGS):
            spec[column] = value
        else:
            *steps, last = column.split(".")
            inner = result
            for step in steps:
                inner = inner.setdefault(step, {})
            inner[last] = value
    return Record(name, path, without_none(spec), method_defaults, result)

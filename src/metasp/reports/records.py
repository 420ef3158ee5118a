"""Finished runs as records, with a word about every run that cannot be used."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from metasp.errors import UserError
from metasp.methods import usual
from metasp.metrics import METRICS, SCENARIOS
from metasp.store import RunDir
from metasp.toml import read_toml

TOLERANCE = 1e-9
GARBLED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)


class Unusable(Exception):
    """A run directory whose content does not hold together, with the reason."""


@dataclass(frozen=True)
class Record:
    """One finished run: its spec and result as stored."""

    path: Path
    spec: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return int(self.spec["seed"])

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """What its method did unless told otherwise. A run stored before such were kept is taken to
        have had today's."""
        stored = self.result.get("defaults")
        if isinstance(stored, Mapping):
            return stored
        return usual(str(self.spec["method"]), str(self.spec.get("influence", "none")))

    @property
    def digest(self) -> str:
        return digest_of(self.spec)

    @property
    def code(self) -> str:
        """The version of metasp that made it, with the digest of its code where that is known."""
        made = self.result.get("environment", {})
        version = str(made.get("metasp", "unknown"))
        return f"{version}+{made['code']}" if "code" in made else version

    def score(self, scenario: str, metric: str) -> float | None:
        """A score in percent, from the accuracies; None where the metric has no such number."""
        if (scenario, metric) not in self._scores:
            entry = self.result[scenario]
            value = METRICS[metric].of(entry["matrix"], entry["before"])
            self._scores[scenario, metric] = None if value is None else 100 * value
        return self._scores[scenario, metric]

    @cached_property
    def _scores(self) -> dict[tuple[str, str], float | None]:
        return {}  # those that somebody asked for: every table of a report asks again


@dataclass(frozen=True)
class Gathered:
    """What a search of folders found."""

    records: list[Record]
    damaged: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


def gather(paths: Iterable[Path]) -> Gathered:
    """The finished runs among the given run directories and folders of runs. Copies of a run
    count once; two different results of one digest are refused."""
    found = Gathered([])
    kept: dict[str, Record] = {}
    for path in run_paths(paths):
        try:
            record = read_record(path)
        except Unusable as error:
            found.damaged.append(f"{path}: {error}")
            continue
        if record is None:
            found.unfinished.append(str(path))
            continue
        twin = kept.setdefault(record.digest, record)
        refuse_contradiction(twin, record)
    found.records.extend(kept.values())
    return found


def run_paths(paths: Iterable[Path]) -> list[Path]:
    """The run directories that the paths are or hold, each once, in order."""
    chosen: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give a run or a folder of runs.")
        inside = sorted(
            {f.parent for n in ("spec.toml", "result.json") for f in path.glob(f"*/{n}")}
        )
        own = [path] if any((path / n).exists() for n in ("spec.toml", "result.json")) else []
        if not own and not inside:
            raise UserError(f"no runs in {path}: make some with `metasp run` or `metasp sweep`.")
        for run in own or inside:
            chosen.setdefault(run.resolve(), run)
    return list(chosen.values())


def read_record(path: Path) -> Record | None:
    """A finished run, or None for one that is not finished; Unusable where the files do not
    agree with each other."""
    try:
        result = RunDir(path).result()
    except UserError as error:
        raise Unusable(str(error)) from error
    if result is None:
        if (path / "result.json").exists():
            raise Unusable("its result.json is not an object")
        return None
    try:
        record = Record(path, dict(result["spec"]), result)
        check(record)
    except GARBLED as error:
        raise Unusable(f"its result.json is malformed: {error}") from error
    return record


def check(record: Record) -> None:
    """The name must belong to the spec, and the scores must follow from the matrix."""
    if not (record.path / "spec.toml").exists():
        raise Unusable("its spec.toml is missing")
    named = record.path.resolve().name.rsplit("-", 1)[-1] == record.digest
    if not named and stored_digest(record.path) != record.digest:
        raise Unusable(f"its result is of another spec than its spec.toml (digest {record.digest})")
    int(record.spec["seed"]), str(record.spec["benchmark"]), str(record.spec["method"])
    taken = record.result["seconds"]
    for seconds in (taken["total"], *taken.get("per_step", {}).values()):
        if not math.isfinite(seconds):
            raise Unusable(f"its seconds contain {seconds}")
    str(record.code), bool(record.result.get("forgotten", {}).get("undisturbed"))
    for scenario in SCENARIOS:
        entry = record.result[scenario]
        for name, metric in METRICS.items():
            derived = metric.of(entry["matrix"], entry["before"])
            stored = entry.get(name, derived)  # what a run says of itself must not contradict it
            if (stored is None) != (derived is None) or (
                derived is not None and not abs(stored - derived) <= TOLERANCE  # NaN is neither
            ):
                raise Unusable(f"its {name} ({scenario}) does not follow from its matrix")


def stored_digest(path: Path) -> str:
    """The digest of a run's spec.toml, for a folder that was renamed."""
    try:
        return digest_of({"settings": {}, **read_toml(path / "spec.toml")})
    except UserError as error:
        raise Unusable(str(error)) from error


def digest_of(spec: Mapping[str, Any]) -> str:
    """The digest of a spec as stored, whatever fields the present version knows."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def refuse_contradiction(one: Record, other: Record) -> None:
    """Two results for the same thing are never averaged or chosen from silently."""
    if any(one.result[name]["matrix"] != other.result[name]["matrix"] for name in SCENARIOS):
        raise UserError(
            f"{one.path} and {other.path} are the same run with different results: find out "
            "which is right (another machine or version?) and leave the other out."
        )

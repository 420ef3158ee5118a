"""Which runs belong together: the same spec but for the seed."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from metasp.config import fields_with
from metasp.reports.names import (
    DATA,
    Values,
    bare,
    is_setting,
    keeps_memory,
    labels_of,
    order,
    say,
    stream_names,
    values_in,
)
from metasp.reports.runs import Record, refuse_contradiction
from metasp.spec import RunSpec

PROTOCOL = sorted(fields_with(RunSpec, protocol=True), key=lambda name: name in DATA)
USUAL = {"class_order": "fixed", "label_noise_kind": "symmetric", "imbalance": 1.0, "test_every": 1}
LONGEST = 100  # letters of a file name, without what it shows and of which row

Runs = Mapping[int, Record]  # the runs of one configuration, by seed


@dataclass(frozen=True)
class Configuration:
    """The runs of one row: one spec, many seeds."""

    label: str
    spec: Mapping[str, Any]
    runs: Runs

    @property
    def method(self) -> str:
        return str(self.spec["method"])

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What its method does unless told otherwise."""
        return record_of(self.runs).defaults

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.runs))

    def scores(self, scenario: str, metric: str) -> dict[int, float]:
        """The scores by seed, in percent; without the runs that have none."""
        found = {seed: run.score(scenario, metric) for seed, run in self.runs.items()}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}


class Titled:
    """What is said of one benchmark, one memory and one variant of the data."""

    benchmark: str
    memory: int | None
    variant: str

    @property
    def title(self) -> str:
        memory = "" if self.memory is None else f"memory {self.memory}"
        return ", ".join(filter(None, (self.benchmark, memory, self.variant)))

    @property
    def slug(self) -> str:
        memory = "" if self.memory is None else f"m{self.memory}"
        return file_stem(self.benchmark, memory, self.variant)


@dataclass(frozen=True)
class Group(Titled):
    """The configurations that can be compared: one stream of data, one memory. `variant` says
    how the data differs from that of the benchmark's other groups."""

    benchmark: str
    memory: int | None
    rows: tuple[Configuration, ...]
    variant: str = ""

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for row in self.rows for seed in row.seeds}))


def file_stem(benchmark: str, *parts: str) -> str:
    """A file name for what a benchmark and some words tell apart."""
    words = "-".join(filter(None, (benchmark, *parts)))
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", words)
    if len(stem) <= LONGEST and re.fullmatch(r"[A-Za-z0-9.-]*", benchmark):
        return stem
    # What was cut off or replaced would tell two files apart: let the digest of it do so.
    return f"{stem[:LONGEST]}-{hashlib.sha256(words.encode()).hexdigest()[:6]}"


def identity(
    spec: Mapping[str, Any], defaults: Mapping[str, Any], apart: Sequence[str] = ()
) -> Values:
    """Everything in a spec but the seed (and a memory that is not kept, and what is told apart
    otherwise), comparable. What a method does by default counts as not said: older specs lack what
    follows from other settings."""
    skip = {"seed", *apart} if keeps_memory(spec) else {"seed", "memory", *apart}
    if spec.get("rehearse_last") == spec.get("epochs"):
        skip.add("rehearse_last")
    values = {}
    for key, value in spec.items():
        if key in skip or bare(key) in apart:
            continue
        scheduled = defaults.get(f"schedule.{bare(key)}") if is_setting(key) else None
        if is_setting(key) and value in (defaults.get(key), scheduled):
            continue
        values[key] = value
    return tuple(sorted((key, repr(value)) for key, value in values.items()))


def configurations(records: Iterable[Record]) -> list[Runs]:
    """The runs of each configuration, by seed."""
    by_spec: dict[Values, dict[int, Record]] = {}
    for record in records:
        runs = by_spec.setdefault(identity(record.spec, record.defaults), {})
        refuse_contradiction(runs.setdefault(record.seed, record), record)
    return list(by_spec.values())


def by_benchmark(members: Iterable[Runs]) -> dict[str, list[Runs]]:
    """Configurations by the name of their benchmark, in the order of the names."""
    found: dict[str, list[Runs]] = {}
    for runs in members:
        found.setdefault(str(record_of(runs).spec["benchmark"]), []).append(runs)
    return dict(sorted(found.items()))


def by_memory(members: Sequence[Runs]) -> dict[int | None, list[Runs]]:
    """Configurations by the size of their memory. What keeps no memory stands in every part."""
    without = [runs for runs in members if not keeps_memory(record_of(runs).spec)]
    keeping = [runs for runs in members if keeps_memory(record_of(runs).spec)]
    if not keeping:
        return {None: without}
    found: dict[int | None, list[Runs]] = {}
    for size in sorted({record_of(runs).spec["memory"] for runs in keeping}):
        found[size] = [*without]
    for runs in keeping:
        found[record_of(runs).spec["memory"]].append(runs)
    return found


def group(records: Iterable[Record]) -> list[Group]:
    """Groups by benchmark, data and memory. What keeps no memory stands in every group of its
    data."""
    groups = []
    for benchmark, members in by_benchmark(configurations(records)).items():
        names = stream_names([record_of(runs).spec for runs in members])
        streams: dict[Values, list[Runs]] = {}
        for runs in members:
            streams.setdefault(values_in(record_of(runs).spec, DATA), []).append(runs)
        for stream, here in sorted(streams.items()):
            for memory, rows in by_memory(here).items():
                groups.append(Group(benchmark, memory, label_all(rows), names[stream]))
    return groups


def record_of(runs: Runs) -> Record:
    return next(iter(runs.values()))


def label_all(members: Sequence[Runs]) -> tuple[Configuration, ...]:
    """Name each configuration of a group by its method and by what sets it apart."""
    labels = labels_of([record_of(runs) for runs in members])
    rows = [
        Configuration(label, record_of(runs).spec, dict(runs))
        for label, runs in zip(labels, members)
    ]
    return tuple(sorted(rows, key=lambda row: order(row.label)))


def common_ground(rows: Sequence[Configuration]) -> str:
    """The protocol that all rows of a table share, in words."""
    specs = [row.spec for row in rows]
    parts = []
    for key in PROTOCOL:
        values = {repr(spec.get(key)): spec.get(key) for spec in specs}
        (value, *others) = values.values()
        if not others and value and value != USUAL.get(key):
            parts.append(say(key, value))
    return ", ".join(parts)

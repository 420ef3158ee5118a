"""Which runs are one row, and which rows are one table."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from metasp.config import fields_with
from metasp.errors import unknown
from metasp.reports.names import (
    DATA,
    LABELS,
    Values,
    bare,
    is_setting,
    keeps_memory,
    labels_of,
    order,
    say,
    stream_names,
    unusual,
    values_in,
    words_for,
)
from metasp.reports.runs import Record, refuse_contradiction, spec_defaults
from metasp.spec import RunSpec

PROTOCOL = sorted(fields_with(RunSpec, protocol=True), key=lambda name: name in DATA)
USUAL = {"class_order": "fixed", "label_noise_kind": "symmetric", "imbalance": 1, "test_every": 1}
LONGEST = 100  # letters of a file name, without what it shows and of which row
STREAM = "stream"  # not a field: all that makes the data of two runs of one benchmark differ
STEPS = ("rehearse", "influence", "finetune")  # kinds that belong to no phase of a method
SCHEDULED = ("metasp", "metasp-rehsel")  # published with rehearsal in the last epochs only

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
        """Return the scores by seed, in percent; without the runs that have none."""
        scores = {seed: self.runs[seed].score(scenario, metric) for seed in self.seeds}
        return {seed: score for seed, score in scores.items() if score is not None}


@dataclass(frozen=True)
class Line:
    """One row of a table: a configuration at each column where it was run."""

    label: str
    at: Mapping[int, Configuration]

    @property
    def any(self) -> Configuration:
        return next(iter(self.at.values()))


@dataclass(frozen=True)
class Group:
    """The rows that can be compared: one stream of data, one memory. `variant` says how the data
    differs from that of the benchmark's other groups. With a `field` its `values` are columns, and
    neither the memory nor the data that they tell apart need be one."""

    benchmark: str
    memory: int | None
    variant: str
    lines: tuple[Line, ...]
    field: str = ""
    values: tuple[Any, ...] = (None,)
    words: tuple[str, ...] = ("",)

    @cached_property
    def rows(self) -> tuple[Configuration, ...]:
        """One configuration of each line: the only one, without a field."""
        return tuple(line.any for line in self.lines)

    @property
    def configurations(self) -> list[Configuration]:
        return [row for line in self.lines for row in line.at.values()]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for row in self.rows for seed in row.seeds}))

    @property
    def axis(self) -> str:
        """The field in words."""
        return words_for(self.field).replace("{} ", "")

    @property
    def title(self) -> str:
        memory = "" if self.memory is None else f"memory {self.memory}"
        return ", ".join(filter(None, (self.benchmark, memory, self.variant)))

    @property
    def slug(self) -> str:
        memory = "" if self.memory is None else f"m{self.memory}"
        return file_stem(self.benchmark, memory, self.variant)


def file_stem(benchmark: str, *details: str) -> str:
    """Return a file name for what a benchmark and some words tell apart."""
    words = "-".join(filter(None, (benchmark, *details)))
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", words)
    if len(stem) <= LONGEST and re.fullmatch(r"[A-Za-z0-9.-]*", benchmark):
        return stem
    # What was cut off or replaced would tell two files apart: let the digest of it do so.
    return f"{stem[:LONGEST]}-{hashlib.sha256(words.encode()).hexdigest()[:6]}"


def group(records: Iterable[Record], by: str = "") -> list[Group]:
    """Return groups by benchmark, data and memory; or, with a field, by what of these the field
    does not tell apart. What keeps no memory stands in every group of its data."""
    members = configurations(records)
    field = field_named(by, members) if by else ""
    fields = [key for key in DATA if key != "benchmark"] if field == STREAM else [field]
    apart = [key for key in DATA if key not in fields]
    groups = []
    for benchmark in sorted({str(record_of(runs).spec["benchmark"]) for runs in members}):
        same = [runs for runs in members if record_of(runs).spec["benchmark"] == benchmark]
        names = stream_names([record_of(runs).spec for runs in same], apart)
        streams: dict[Values, list[Runs]] = {}
        for runs in same:
            streams.setdefault(values_in(record_of(runs).spec, apart), []).append(runs)
        for stream, of_stream in sorted(streams.items()):
            parts = {None: of_stream} if field == "memory" else by_memory(of_stream)
            for memory, rows in parts.items():
                groups.append(one_group(benchmark, memory, names[stream], field, fields, rows))
    return [each for each in groups if each.values]


def configurations(records: Iterable[Record]) -> list[Runs]:
    """Return the runs of each configuration, by seed."""
    by_spec: dict[Values, dict[int, Record]] = {}
    for record in records:
        runs = by_spec.setdefault(identity(record.spec, record.defaults), {})
        refuse_contradiction(runs.setdefault(record.seed, record), record)
    return list(by_spec.values())


def identity(
    spec: Mapping[str, Any], defaults: Mapping[str, Any], apart: Sequence[str] = ()
) -> Values:
    """Return a spec as comparable values: all but the seed, a memory that is not kept, the fields
    that are told apart otherwise, and settings at their default."""
    skip = {"seed", *apart} if keeps_memory(spec) else {"seed", "memory", *apart}
    if spec.get("rehearse_last") == spec.get("epochs"):
        skip.add("rehearse_last")
    values = []
    for key, value in spec.items():
        if key in skip or bare(key) in apart:
            continue
        usual = (defaults.get(key), defaults.get(f"schedule.{bare(key)}"))
        if not is_setting(key) or value not in usual:
            values.append((key, repr(value)))
    return tuple(sorted(values))


def by_memory(members: Sequence[Runs]) -> dict[int | None, list[Runs]]:
    """Return configurations by the size of their memory; what keeps none is in every part."""
    sizes = {
        record_of(runs).spec["memory"] for runs in members if keeps_memory(record_of(runs).spec)
    }
    parts: dict[int | None, list[Runs]] = {size: [] for size in sorted(sizes) or [None]}
    for keeping in (False, True):
        for runs in members:
            spec = record_of(runs).spec
            if keeps_memory(spec) is keeping:
                for size in [spec["memory"]] if keeping else parts:
                    parts[size].append(runs)
    return parts


def record_of(runs: Runs) -> Record:
    return next(iter(runs.values()))


def one_group(
    benchmark: str,
    memory: int | None,
    variant: str,
    field: str,
    fields: Sequence[str],
    members: Sequence[Runs],
) -> Group:
    """Return a group whose lines are configurations that agree in all but some fields."""
    columns = columns_of(field, members)
    places = {key: place for place, key in enumerate(columns)}
    lines_at: dict[Values, dict[int, Runs]] = {}
    for runs in members:
        record = record_of(runs)
        key = column_of(record, field)
        line = lines_at.setdefault(identity(record.spec, record.defaults, fields), {})
        for place in places.values() if key is None else [places[key]]:
            line[place] = runs
    labels = labels_of([record_of(next(iter(at.values()))) for at in lines_at.values()], fields)
    lines = []
    for label, at in zip(labels, lines_at.values()):
        rows = {p: Configuration(label, record_of(runs).spec, runs) for p, runs in at.items()}
        lines.append(Line(label, rows))
    lines.sort(key=lambda line: order(line.label))
    values, words = zip(*columns.values()) if columns else ((), ())
    return Group(benchmark, memory, variant, tuple(lines), field, values, words)


def field_named(name: str, members: Sequence[Runs]) -> str:
    """Return the field that a name means, as it is written on the command line or in a spec."""
    field = bare(name.replace("-", "_"))
    known = {bare(key) for runs in members for key in record_of(runs).spec}
    known = (known | set(spec_defaults()) | {STREAM}) - {"seed", "method"}
    if field not in known:
        raise unknown("field", name, sorted(known))
    return field


def column_of(record: Record, field: str) -> Any:
    """Return a key of the column that a run stands in; None where it lacks the field."""
    if field == "":
        return ""
    if field == STREAM:
        return values_in(record.spec, DATA)
    if field == "memory" and not keeps_memory(record.spec):
        return None
    values = all_values(record)
    return repr(values[field]) if field in values else None


def all_values(record: Record) -> dict[str, Any]:
    """Return every field of a run and of its method by its own name."""
    defaults = {key: v for key, v in record.defaults.items() if not key.startswith("schedule.")}
    stored = {bare(key): value for key, value in {**defaults, **record.spec}.items()}
    return {**spec_defaults(), **stored}


def columns_of(field: str, members: Sequence[Runs]) -> dict[Any, tuple[Any, str]]:
    """Return the columns in their order: the value of each and its words, by its key."""
    if field == "":
        return {"": (None, "")}
    columns: dict[Any, tuple[Any, str]] = {}
    names = stream_names([record_of(runs).spec for runs in members]) if field == STREAM else {}
    for runs in members:
        record = record_of(runs)
        key = column_of(record, field)
        if key is None or key in columns:
            continue
        if field == STREAM:
            columns[key] = (names[key] or "all", names[key] or "all")
            continue
        value = all_values(record)[field]
        columns[key] = (value, "none" if value is None else str(value))
    return dict(sorted(columns.items(), key=lambda item: column_order(item[0], item[1][0])))


def column_order(key: Any, value: Any) -> tuple[int, float, str]:
    """Numbers by size, all else by name."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 1, float(value), ""
    return (0 if value is None else 2), 0.0, str(key)


def common_ground(rows: Sequence[Configuration]) -> str:
    """Say the protocol that all rows of a table share."""
    shared = []
    for key in PROTOCOL:
        values = {repr(row.spec.get(key)): row.spec.get(key) for row in rows}
        (value, *others) = values.values()
        if not others and value and value != USUAL.get(key):  # the usual is not worth a word
            shared.append(say(key, value))
    return ", ".join(shared)


def schedule_of(row: Configuration) -> str:
    """Say in which epochs of a task old examples are rehearsed; "" in every one, or where there is
    no memory."""
    if not keeps_memory(row.spec):
        return ""
    steps: Mapping[str, Any] = record_of(row.runs).result["seconds"].get("steps", {})
    phases = sorted(kind for kind in steps if kind not in STEPS)
    if phases:
        return f"trains in phases of its own ({', '.join(phases)})"
    epochs, last = row.spec["epochs"], row.spec.get("rehearse_last", row.spec["epochs"])
    if row.spec["influence"] == "none":  # whose epochs are not those of rehearsal
        for key, default in row.defaults.items():
            if key.startswith("schedule."):
                last = row.spec.get(f"method.{key.removeprefix('schedule.')}", default)
    return "" if last == epochs else f"rehearses in the last {last} of {epochs} epochs of a task"


def as_published(row: Configuration) -> bool:
    """Whether a row is a method of the paper as it was published, not a control or variant."""
    if any(row.spec.get(name) for name in LABELS):  # verified or corrected examples
        return False
    usual = row.defaults.get("selection")
    if row.spec.get("selection", usual) != usual or not settings_as_published(row):
        return False
    whole = row.spec.get("rehearse_last") in (None, row.spec["epochs"])
    return whole or row.method in SCHEDULED


def settings_as_published(row: Configuration) -> bool:
    """Likewise, whatever the memory keeps."""
    if row.spec["observe"] or row.spec["influence"] != "none":
        return False
    return not any(
        unusual(key, value, row.defaults)
        for key, value in row.spec.items()
        if is_setting(key) and f"schedule.{bare(key)}" not in row.defaults
    )

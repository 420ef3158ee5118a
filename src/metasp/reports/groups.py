"""Which runs are one row of a table, and which rows are one table."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from metasp.errors import unknown
from metasp.reports.labels import (
    DATA,
    LABELS,
    Spec,
    Values,
    bare,
    is_setting,
    keeps_memory,
    labels_of,
    order,
    phrase_of,
    stream_names,
    unusual,
    values_in,
)
from metasp.reports.runs import Record, refuse_contradiction, spec_defaults

STREAM = "stream"  # no field: all that makes the data of two runs of one benchmark differ
SCHEDULED = ("metasp", "metasp-rehsel")  # published with rehearsal in the last epochs only
LONGEST = 100  # characters of the stem of a file name


@dataclass(frozen=True)
class Configuration:
    """The runs of one row, by seed: their specs agree in everything else."""

    label: str
    runs: Mapping[int, Record]

    @property
    def record(self) -> Record:
        """Return one of the runs."""
        return next(iter(self.runs.values()))

    @property
    def spec(self) -> Spec:
        """Return the flat spec of one of the runs."""
        return self.record.spec

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Return the defaults of its method."""
        return self.record.defaults

    @property
    def method(self) -> str:
        """Return the name of its method."""
        return str(self.spec["method"])

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Return its seeds in ascending order."""
        return tuple(sorted(self.runs))

    def scores(self, scenario: str, metric: str) -> dict[int, float]:
        """Return the scores by seed in percent, without runs that have no such score."""
        scores = {}
        for seed in self.seeds:
            score = self.runs[seed].score(scenario, metric)
            if score is not None:
                scores[seed] = score
        return scores


@dataclass(frozen=True)
class Line:
    """One line of a table: a configuration in each column in which it was run."""

    label: str
    at: Mapping[int, Configuration]

    @property
    def any(self) -> Configuration:
        """Return the configuration of one of its columns."""
        return next(iter(self.at.values()))


@dataclass(frozen=True)
class Group:
    """The lines that can be compared: one stream of data, one size of the memory.

    `variant` says how the data differs from that of the benchmark's other groups. With a `field`
    the columns are its `values`; lines may then differ in it."""

    benchmark: str
    memory: int | None
    variant: str
    lines: tuple[Line, ...]
    field: str = ""
    values: tuple[Any, ...] = (None,)
    headings: tuple[str, ...] = ("",)

    @cached_property
    def rows(self) -> tuple[Configuration, ...]:
        """Return one configuration of each line: the only one, without a field."""
        return tuple(line.any for line in self.lines)

    @property
    def configurations(self) -> list[Configuration]:
        """Return the configurations of all lines and columns."""
        rows: list[Configuration] = []
        for line in self.lines:
            rows += line.at.values()
        return rows

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds of all rows in ascending order."""
        seeds: set[int] = set()
        return tuple(sorted(seeds.union(*(row.seeds for row in self.rows))))

    @property
    def axis(self) -> str:
        """Return the name of the field in words."""
        return phrase_of(self.field).replace("{} ", "")

    @property
    def title(self) -> str:
        """Return benchmark, memory and stream as the title of a table."""
        memory = "" if self.memory is None else f"memory {self.memory}"
        return ", ".join(filter(None, (self.benchmark, memory, self.variant)))

    @property
    def slug(self) -> str:
        """Return the same as the stem of a file name that no other group has."""
        memory = "" if self.memory is None else f"m{self.memory}"
        text = "-".join(filter(None, (self.benchmark, memory, self.variant)))
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", text)
        if len(stem) <= LONGEST and re.fullmatch(r"[A-Za-z0-9.-]*", self.benchmark):
            return stem
        # What was cut off or replaced would tell two files apart: let its digest do so.
        return f"{stem[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def group(records: Iterable[Record], by: str = "") -> list[Group]:
    """Return the groups of some records, by benchmark, stream of data and size of the memory.

    With a field, `by`, its values are the columns of a group. A method without memory is part of
    every group of its data."""
    rows = configurations(records)
    field = field_named(by, rows) if by else ""
    fields = [key for key in DATA if key != "benchmark"] if field == STREAM else [field]
    separating = [key for key in DATA if key not in fields]
    groups = []
    for benchmark in sorted({str(row.spec["benchmark"]) for row in rows}):
        streams: dict[Values, list[Configuration]] = {}
        for row in rows:
            if row.spec["benchmark"] == benchmark:
                streams.setdefault(values_in(row.spec, separating), []).append(row)
        names = stream_names([of_stream[0].spec for of_stream in streams.values()], separating)
        for stream, of_stream in sorted(streams.items()):
            by_size = {None: of_stream} if field == "memory" else by_memory(of_stream)
            for memory, members in by_size.items():
                columns = columns_of(field, members)
                lines = lines_of(members, field, fields, [*columns])
                values, headings = zip(*columns.values()) if columns else ((), ())
                variant = names[stream]
                groups.append(Group(benchmark, memory, variant, lines, field, values, headings))
    return [group for group in groups if group.values]


def configurations(records: Iterable[Record]) -> list[Configuration]:
    """Collect the records of each configuration by seed; labels are still empty."""
    rows: dict[Values, dict[int, Record]] = {}
    for record in records:
        runs = rows.setdefault(identity(record), {})
        refuse_contradiction(runs.setdefault(record.seed, record), record)
    return [Configuration("", runs) for runs in rows.values()]


def identity(record: Record, without: Sequence[str] = ()) -> Values:
    """Return a spec as comparable values.

    Left out are the seed, the size of a memory that does not exist, the fields in `without`, and
    settings at their default."""
    spec, skipped = record.spec, {"seed", *without}
    if not keeps_memory(spec):
        skipped.add("memory")
    if spec.get("rehearse_last") == spec.get("epochs"):
        skipped.add("rehearse_last")
    values = []
    for key, value in spec.items():
        if key in skipped or bare(key) in without:
            continue
        standard = (record.defaults.get(key), record.defaults.get(f"schedule.{bare(key)}"))
        if not is_setting(key) or value not in standard:
            values.append((key, repr(value)))
    return tuple(sorted(values))


def by_memory(rows: Sequence[Configuration]) -> dict[int | None, list[Configuration]]:
    """Sort rows by the size of their memory; those without one come first in every part."""
    with_memory = [row for row in rows if keeps_memory(row.spec)]
    without = [row for row in rows if not keeps_memory(row.spec)]
    sizes = sorted({row.spec["memory"] for row in with_memory})
    by_size: dict[int | None, list[Configuration]] = {}
    for size in sizes or [None]:
        by_size[size] = without + [row for row in with_memory if row.spec["memory"] == size]
    return by_size


def lines_of(
    rows: Sequence[Configuration], field: str, fields: Sequence[str], columns: Sequence[Any]
) -> tuple[Line, ...]:
    """Return labelled lines whose configurations agree in all but `fields`.

    A row without the field is in every column."""
    lines_at: dict[Values, dict[int, Configuration]] = {}
    for row in rows:
        key = column_of(row, field)
        line = lines_at.setdefault(identity(row.record, fields), {})
        for index in range(len(columns)) if key is None else [columns.index(key)]:
            line[index] = row
    labels = labels_of([next(iter(at.values())).record for at in lines_at.values()], fields)
    lines = []
    for label, at in zip(labels, lines_at.values()):
        labelled = {index: Configuration(label, row.runs) for index, row in at.items()}
        lines.append(Line(label, labelled))
    return tuple(sorted(lines, key=lambda line: order(line.label)))


def field_named(name: str, rows: Sequence[Configuration]) -> str:
    """Return the field that a name means, as written on the command line or in a spec."""
    field = bare(name.replace("-", "_"))
    fields = {*spec_defaults(), STREAM}.union(*(map(bare, row.spec) for row in rows))
    fields -= {"seed", "method"}
    if field not in fields:
        raise unknown("field", name, sorted(fields))
    return field


def column_of(row: Configuration, field: str) -> Any:
    """Return the key of the column of a row; None where the row lacks the field."""
    if field == "":
        return ""
    if field == STREAM:
        return values_in(row.spec, DATA)
    if field == "memory" and not keeps_memory(row.spec):
        return None
    values = all_values(row)
    return repr(values[field]) if field in values else None


def all_values(row: Configuration) -> dict[str, Any]:
    """Return every field of a spec, settings and their defaults included, by its bare name."""
    values = dict(spec_defaults())
    for key, value in {**row.defaults, **row.spec}.items():
        if not key.startswith("schedule."):
            values[bare(key)] = value
    return values


def columns_of(field: str, rows: Sequence[Configuration]) -> dict[Any, tuple[Any, str]]:
    """Return value and heading of each column by its key, numbers in ascending order."""
    if field == "":
        return {"": (None, "")}
    columns: dict[Any, tuple[Any, str]] = {}
    names = stream_names([row.spec for row in rows]) if field == STREAM else {}
    for row in rows:
        key = column_of(row, field)
        if key is None:
            continue
        if field == STREAM:
            columns[key] = (names[key] or "all", names[key] or "all")
        else:
            value = all_values(row)[field]
            columns[key] = (value, "none" if value is None else str(value))

    def in_order(item: tuple[Any, tuple[Any, str]]) -> tuple[int, float, str]:
        key, (value, _) = item
        if isinstance(value, int | float) and not isinstance(value, bool):
            return 1, float(value), ""
        return (0 if value is None else 2), 0.0, str(key)

    return dict(sorted(columns.items(), key=in_order))


def as_published(row: Configuration) -> bool:
    """Return whether a row is a method of the paper as published, no control or variant."""
    if any(row.spec.get(name) for name in LABELS):
        return False
    standard = row.defaults.get("selection")
    if row.spec.get("selection", standard) != standard or not settings_as_published(row):
        return False
    in_all_epochs = row.spec.get("rehearse_last") in (None, row.spec["epochs"])
    return in_all_epochs or row.method in SCHEDULED


def settings_as_published(row: Configuration) -> bool:
    """Return the same whatever the memory keeps."""
    if row.spec["observe"] or row.spec["influence"] != "none":
        return False
    for key, value in row.spec.items():
        scheduled = f"schedule.{bare(key)}" in row.defaults
        if is_setting(key) and not scheduled and unusual(key, value, row.defaults):
            return False
    return True


def seeds_text(row: Configuration, group: Group) -> str:
    """Return the number of seeds of a row: `5`, or `3 of 5` where other rows have more."""
    seeds, of_all = len(row.seeds), len(group.seeds)
    return str(seeds) if seeds == of_all else f"{seeds} of {of_all}"

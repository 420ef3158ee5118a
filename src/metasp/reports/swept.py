"""Runs with one field on an axis: the size of the memory, any swept setting, or the streams of a
benchmark side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metasp.errors import unknown
from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.configurations import (
    Configuration,
    Runs,
    Titled,
    by_benchmark,
    by_memory,
    common_ground,
    configurations,
    identity,
    record_of,
)
from metasp.reports.names import (
    DATA,
    bare,
    keeps_memory,
    labels_of,
    order,
    stream_names,
    values_in,
    words_for,
)
from metasp.reports.notes import reference_notes, seed_notes, version_note
from metasp.reports.reference import (
    Comparison,
    Entry,
    check_reference,
    compare_family,
    entry_of,
    mark_best,
    reference_of,
)
from metasp.reports.runs import Record, spec_defaults
from metasp.reports.schedules import schedule_marks
from metasp.reports.scores import (
    difference_cell,
    difference_notes,
    score_as_row,
    score_cell,
    tested_as_row,
)
from metasp.reports.table import Cell, Table

STREAM = "stream"  # not a field: all that makes the data of two runs of one benchmark differ
FAMILY = "the table"


@dataclass(frozen=True)
class Line:
    """One row of a table: a configuration at each place of the axis where it was run."""

    label: str
    at: Mapping[int, Configuration]

    @property
    def any(self) -> Configuration:
        return next(iter(self.at.values()))


@dataclass(frozen=True)
class Swept(Titled):
    """What belongs in one table: values of a field, in their order and in words, and the rows."""

    benchmark: str
    field: str
    memory: int | None
    variant: str
    values: tuple[Any, ...]
    words: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def rows(self) -> list[Configuration]:
        """One configuration of each line, for its name and spec."""
        return [line.any for line in self.lines]


def swept(records: Iterable[Record], name: str) -> list[Swept]:
    """The tables of runs with a field as their columns: by benchmark, and by data and memory where
    these are not what the columns tell apart. A row without the field stands in all columns."""
    members = configurations(records)
    field = field_named(name, members)
    fields = tuple(key for key in DATA if key != "benchmark") if field == STREAM else (field,)
    tables = []
    for benchmark, here in by_benchmark(members).items():
        apart = [key for key in DATA if key not in fields]
        names = stream_names([record_of(runs).spec for runs in here], apart)
        streams: dict[Any, list[Runs]] = {}
        for runs in here:
            streams.setdefault(values_in(record_of(runs).spec, apart), []).append(runs)
        for stream, own in sorted(streams.items()):
            parts = {None: own} if field == "memory" else by_memory(own)
            for memory, rows in parts.items():
                tables.append(one_table(benchmark, field, fields, memory, names[stream], rows))
    return [table for table in tables if table.values]


def field_named(name: str, members: Sequence[Runs]) -> str:
    """The field that a name means, as it is written on the command line or in a spec."""
    field = name.replace("-", "_")
    known = {bare(key) for runs in members for key in record_of(runs).spec}
    known = (known | set(spec_defaults()) | {STREAM}) - {"seed", "method"}
    if field not in known:
        raise unknown("field", name, sorted(known))
    return field


def one_table(
    benchmark: str,
    field: str,
    fields: Sequence[str],
    memory: int | None,
    variant: str,
    members: Sequence[Runs],
) -> Swept:
    """Configurations that agree in all but the fields are one line."""
    columns = columns_of(field, members)
    places = {key: place for place, key in enumerate(columns)}
    found: dict[Any, dict[int, Runs]] = {}
    for runs in members:
        record = record_of(runs)
        key = column_of(record, field)
        where = places.values() if key is None else [places[key]]
        line = found.setdefault(identity(record.spec, record.defaults, fields), {})
        for place in where:
            line[place] = runs
    labels = labels_of([record_of(next(iter(at.values()))) for at in found.values()], fields)
    lines = []
    for label, at in zip(labels, found.values()):
        rows = {
            place: Configuration(label, record_of(runs).spec, runs) for place, runs in at.items()
        }
        lines.append(Line(label, rows))
    lines.sort(key=lambda line: order(line.label))
    values = tuple(value for value, _ in columns.values())
    words = tuple(each for _, each in columns.values())
    return Swept(benchmark, field, memory, variant, values, words, tuple(lines))


def column_of(record: Record, field: str) -> Any:
    """What tells the column of a run: a comparable key, or None where it has no such field."""
    if field == STREAM:
        return values_in(record.spec, DATA)
    if field == "memory" and not keeps_memory(record.spec):
        return None
    values = all_values(record)
    return repr(values[field]) if field in values else None


def all_values(record: Record) -> dict[str, Any]:
    """Every field of a run and of its method, also where the stored spec leaves it out."""
    defaults = {key: value for key, value in record.defaults.items() if "schedule" not in key}
    values = {**defaults, **record.spec}
    return {**spec_defaults(), **{bare(key): value for key, value in values.items()}}


def columns_of(field: str, members: Sequence[Runs]) -> dict[Any, tuple[Any, str]]:
    """The columns in their order: the value of each and its words, by what tells it."""
    found: dict[Any, tuple[Any, str]] = {}
    names = stream_names([record_of(runs).spec for runs in members]) if field == STREAM else {}
    for runs in members:
        record = record_of(runs)
        key = column_of(record, field)
        if key is None or key in found:
            continue
        if field == STREAM:
            found[key] = (names[key] or "all", names[key] or "all")
            continue
        value = all_values(record)[field]
        found[key] = (value, "none" if value is None else str(value))
    return dict(sorted(found.items(), key=lambda item: column_order(item[0], item[1][0])))


def column_order(key: Any, value: Any) -> tuple[int, float, str]:
    """Numbers by size, all else by name."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 1, float(value), ""
    return (0 if value is None else 2), 0.0, str(key)


def swept_tables(tables: Sequence[Swept], how: Comparison) -> list[Table]:
    """A table for each metric and scenario: scores, with a column for each value."""
    check_reference([row for table in tables for row in table.rows], how.against)
    return [
        one_score_table(table, scenario, metric, how)
        for table in tables
        for metric in how.columns
        for scenario in SCENARIOS
    ]


def swept_differences(tables: Sequence[Swept], how: Comparison) -> list[Table]:
    """The same as differences from the row compared with, with their p-values."""
    found = []
    for table in tables:
        reference = reference_line(table, how)
        if reference is None:
            continue
        for metric in how.columns:
            for scenario in SCENARIOS:
                entries = entries_of(table, scenario, metric, how)
                if any(entry.p is not None for row in entries for entry in row.values()):
                    found.append(one_difference_table(table, scenario, metric, reference, entries))
    return found


def reference_line(table: Swept, how: Comparison) -> Line | None:
    chosen = reference_of(table.rows, table.title, how.against)
    return next((line for line in table.lines if chosen and line.any is chosen), None)


def entries_of(table: Swept, scenario: str, metric: str, how: Comparison) -> list[dict[int, Entry]]:
    """The numbers of each line by their place on the axis, tested as one family."""
    reference = reference_line(table, how)
    rows, family = [], []
    for line in table.lines:
        row = {}
        for place, configuration in line.at.items():
            row[place] = entry_of(configuration, scenario, metric, how)
            family.append((row[place], reference.at.get(place) if reference else None))
        rows.append(row)
    compare_family(family, scenario)
    for place in range(len(table.values)):
        mark_best([row[place] for row in rows if place in row])
    return rows


def one_score_table(table: Swept, scenario: str, metric: str, how: Comparison) -> Table:
    entries = entries_of(table, scenario, metric, how)
    marks, schedules = schedule_marks(table.rows)
    rows, data = [], []
    for line, row in zip(table.lines, entries):
        cells = [score_cell(row[p]) if p in row else Cell("–") for p in range(len(table.values))]
        rows.append((Cell(line.label, footnote=marks.get(line.label, "")), *cells))
        data += [as_row(table, scenario, place, entry) for place, entry in sorted(row.items())]
    title = f"{table.title}: {METRICS[metric].name} by {axis_words(table)}"
    title += f", {SCENARIO_WORDS[scenario]}, %"
    notes = [*notes_of(table, how), *schedules]
    return Table(title, ("method", *table.words), tuple(rows), tuple(data), tuple(notes))


def one_difference_table(
    table: Swept,
    scenario: str,
    metric: str,
    reference: Line,
    entries: Sequence[Mapping[int, Entry]],
) -> Table:
    rows = []
    for line, row in zip(table.lines, entries):
        if line is reference:
            continue
        places = range(len(table.values))
        cells = [difference_cell(row[p]) if p in row else Cell("–") for p in places]
        rows.append((Cell(line.label), *cells))
    title = f"{table.title}: {METRICS[metric].name} by {axis_words(table)}"
    title += f", {SCENARIO_WORDS[scenario]}, row minus {reference.label}, points"
    notes = difference_notes(FAMILY)
    return Table(title, ("method", *table.words), tuple(rows), (), notes)


def axis_words(table: Swept) -> str:
    return words_for(table.field).replace("{} ", "")


def as_row(table: Swept, scenario: str, place: int, entry: Entry) -> dict[str, Any]:
    """A number of the table with everything known about it."""
    return {
        "benchmark": table.benchmark,
        "memory": table.memory,
        "data": table.variant,
        "by": table.field,
        "value": table.values[place],
        **score_as_row(scenario, entry),
        **tested_as_row(entry),
    }


def notes_of(table: Swept, how: Comparison) -> list[str]:
    everything = [row for line in table.lines for row in line.at.values()]
    reference = reference_line(table, how)
    pairs = []
    for line in table.lines if reference else ():
        for place, row in line.at.items():
            if reference and line is not reference and place in reference.at:
                pairs.append((row, reference.at[place]))
    notes = [f"mean ± standard deviation over seeds; {common_ground(everything)}."]
    notes += reference_notes(reference.any if reference else None, pairs, how, FAMILY)
    for place, words in enumerate(table.words):
        here = [line.at[place] for line in table.lines if place in line.at]
        seeds = sorted({seed for row in here for seed in row.seeds})
        where = f"{axis_words(table)} {words}: "
        notes += seed_notes(here, seeds, where)
    return notes + version_note(everything)

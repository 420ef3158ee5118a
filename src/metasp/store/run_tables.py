"""The tables of a run: what they hold, and reading and writing them whole."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from metasp.store.manifest import checked_content, damaged, has_file


def schema_of(**columns: pa.DataType) -> pa.Schema:
    """The columns of a table, in their order."""
    return pa.schema(columns)


INFLUENCE = schema_of(
    task=pa.int32(),
    id=pa.int64(),
    label=pa.int32(),
    source=pa.string(),
    stability=pa.float64(),
    plasticity=pa.float64(),
    fused=pa.float64(),
    loss=pa.float64(),
    count=pa.int64(),
    kept=pa.bool_(),
    predicted=pa.int32(),
)

NOISE = schema_of(
    task=pa.int32(),
    id=pa.int64(),
    label=pa.int32(),
    true_label=pa.int32(),
)

SCORES = schema_of(
    id=pa.int64(),
    label=pa.int32(),
    count=pa.int64(),
    loss=pa.float64(),
    margin=pa.float64(),
    weight=pa.float64(),
    odds=pa.float64(),
    wrong=pa.float64(),
    score=pa.float64(),
    predicted=pa.int32(),
    kept=pa.bool_(),
    fate=pa.string(),
)

TRUSTED = schema_of(task=pa.int32(), id=pa.int64(), label=pa.int32())

MEMORY = schema_of(
    slot=pa.int64(),
    id=pa.int64(),
    label=pa.int64(),
    task=pa.int64(),
    entered=pa.int64(),
    influence=pa.float64(),
    pinned=pa.bool_(),
)

# Values that are not always known.
MAY_LACK = (
    *("loss", "margin", "weight", "odds", "wrong", "score", "predicted", "fate"),
    *("influence", "pinned"),
)

TABLES = {"noise.parquet": NOISE, "trusted.parquet": TRUSTED, "influence.parquet": INFLUENCE}
"""The tables of a run, by their file."""

VERDICTS = "verified.csv"
"""What a person says of examples: a table in text, so that it can be edited."""

FOLDERS = {"memory": MEMORY, "scores": SCORES}
"""The tables that it has of each task, by their folder."""


def influence_of(run: Path, columns: Sequence[str]) -> pa.Table | None:
    """The given columns of a run's influences; None where it recorded none."""
    if not has_file(run, "influence.parquet"):
        return None
    return whole_table(run, "influence.parquet", INFLUENCE, columns)


def whole_table(
    run: Path, name: str, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read a table of a run, with the columns of its schema, or raise one sentence."""
    import pyarrow.parquet as pq  # slow to load, and a run starts without it

    wanted = [schema.field(column) for column in (columns or schema.names)]
    try:
        content = pa.BufferReader(checked_content(run, name))
        with pq.ParquetFile(content) as file:  # unlike read_table it loads no pandas
            there = set(file.schema_arrow.names)
            found = file.read([field.name for field in wanted if field.name in there])
        parts = [
            found[each.name].cast(each.type)
            if each.name in there
            else pa.nulls(len(found), each.type)
            for each in wanted
        ]
        table = pa.table(parts, schema=pa.schema(wanted))
    except (pa.ArrowException, OSError) as error:
        raise damaged(run, name, str(error).splitlines()[0]) from error
    for column in (each for each in table.column_names if each not in MAY_LACK):
        values = table[column]
        if values.null_count:  # a column that is not there reads as nulls
            raise damaged(run, name, f"it lacks the column {column}, or values of it")
    return table


def packed(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def names_by_task(run: Path, folder: str) -> dict[int, str]:
    """The names of the tables in one of a run's folders, by task; copies that a user made of them
    are not the run's."""
    names = {path.stem[5:]: path.name for path in (run / folder).glob("task-*.parquet")}
    return {int(task): f"{folder}/{names[task]}" for task in sorted(names) if task.isdecimal()}

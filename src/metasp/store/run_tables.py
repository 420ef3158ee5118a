"""The tables of a run: their columns, and reading and writing them whole."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from metasp.store.manifest import damaged, stored_content

Columns = Mapping[str, Sequence[Any]]


def schema_of(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema(columns)


INFLUENCE = schema_of(
    {
        "task": pa.int32(),
        "id": pa.int64(),
        "label": pa.int32(),
        "source": pa.string(),
        "stability": pa.float64(),
        "plasticity": pa.float64(),
        "fused": pa.float64(),
        "loss": pa.float64(),
        "count": pa.int64(),
        "kept": pa.bool_(),
        "predicted": pa.int32(),
    }
)
TRUSTED = schema_of({"task": pa.int32(), "id": pa.int64(), "label": pa.int32()})
NOISE = TRUSTED.append(pa.field("true_label", pa.int32()))
SCORES = schema_of(
    {
        "id": pa.int64(),
        "label": pa.int32(),
        "count": pa.int64(),
        "loss": pa.float64(),
        "margin": pa.float64(),
        "weight": pa.float64(),
        "odds": pa.float64(),
        "wrong": pa.float64(),
        "score": pa.float64(),
        "predicted": pa.int32(),
        "kept": pa.bool_(),
        "fate": pa.string(),
    }
)
MEMORY = schema_of(
    {
        "slot": pa.int64(),
        "id": pa.int64(),
        "label": pa.int64(),
        "task": pa.int64(),
        "entered": pa.int64(),
        "influence": pa.float64(),
        "pinned": pa.bool_(),
    }
)

HELD_OUT = schema_of(
    {
        "id": pa.int64(),
        "task": pa.int32(),
        "label": pa.int32(),
        "fold": pa.int32(),
        "odds": pa.float64(),
        "wrong": pa.float64(),
        "suggested": pa.int32(),
        "predicted": pa.int32(),
        "ambiguity": pa.float64(),
    }
)

WHY = schema_of(
    {
        "query": pa.string(),
        "id": pa.int64(),
        "task": pa.int32(),
        "stability": pa.float64(),
        "plasticity": pa.float64(),
        "total": pa.float64(),
        "direct": pa.float64(),
        "through_memory": pa.float64(),
        "on_tasks": pa.list_(pa.float64()),
        "growth": pa.float64(),
        "agreement": pa.float64(),
    }
)
"""Answers of `metasp why` for each query; `on_tasks` are the derivatives of each loss."""

WHY_FILE = "why.parquet"
TABLES = {
    "noise.parquet": NOISE,
    "trusted.parquet": TRUSTED,
    "influence.parquet": INFLUENCE,
    "held_out.parquet": HELD_OUT,
    WHY_FILE: WHY,
}
"""The tables of a run by their file. Each has a column `id`, by which examples are erased."""

FOLDERS = {"memory": MEMORY, "scores": SCORES}
"""The tables that it has of each task, by their folder."""

VERDICTS = "verified.csv"
"""A person's verdicts about examples: a table in text, so that it can be edited."""


def read_table(
    run: Path, name: str, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table | None:
    """Read a table of a run with all columns of its schema, or some. None where it has none; a
    column that the file lacks is of nulls."""
    import pyarrow.parquet as pq  # slow to load, and a run starts without it

    content = stored_content(run, name)
    if content is None:
        return None
    wanted = pa.schema([schema.field(column) for column in columns or schema.names])
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:  # read_table would load pandas
            table = file.read([n for n in wanted.names if n in file.schema_arrow.names])
    except (pa.ArrowException, OSError) as error:
        raise damaged(run, name, str(error).splitlines()[0]) from error
    for field in wanted:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(wanted.names).cast(wanted)


def packed(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def name_of_task(folder: str, task: int) -> str:
    return f"{folder}/task-{task:03d}.parquet"


def task_of(name: str) -> int | None:
    """Return the task of a table by the name of its file; None for a copy that a user made."""
    number = Path(name).stem.removeprefix("task-")
    return int(number) if number.isdecimal() else None

"""Reading the tables of a run, a few columns at a time."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from metasp.errors import UserError


def influence_of(run: Path, columns: Sequence[str]) -> pa.Table | None:
    """The given columns of a run's influences; None where it recorded none."""
    file = run / "influence.parquet"
    if not file.exists():
        return None
    return whole_table(file, columns=list(columns))


def whole_table(file: Path, schema: pa.Schema | None = None, **how: Any) -> pa.Table:
    """A stored table of a run, or one sentence."""
    try:
        return pq.read_table(file, schema=schema, **how)
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{file} is damaged ({str(error).splitlines()[0]}): leave this run out, or make it "
            f"again with `{command_for(file.parent)}`."
        ) from error


def command_for(run: Path, *more: str) -> str:
    """What makes a stored run once more, from its start."""
    again = ["metasp", "run", "--spec", str(run / "spec.toml"), "--runs", str(run.parent)]
    return shlex.join([*again, *more, "--force"])

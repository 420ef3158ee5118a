"""Reading the tables of a run, a few columns at a time."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from metasp.errors import UserError


def influence_of(run: Path, columns: Sequence[str]) -> pa.Table | None:
    """The given columns of a run's influences; None where it recorded none."""
    file = run / "influence.parquet"
    if not file.exists():
        return None
    try:
        return pq.read_table(file, columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{file} is damaged ({str(error).splitlines()[0]}): leave this run out, or make it "
            "again with `metasp run --force`."
        ) from error

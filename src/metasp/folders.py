"""Where runs, data sets and decoded data are, unless somebody says otherwise."""

import os
from pathlib import Path

RUNS, RUNS_VARIABLE = Path("runs"), "METASP_RUNS"
DATA_VARIABLE = "METASP_DATA"
CACHE_VARIABLE = "METASP_CACHE"


def default_runs() -> Path:
    """The folder of runs: METASP_RUNS, or `runs` right here."""
    return Path(os.environ.get(RUNS_VARIABLE) or RUNS)


def default_data() -> Path | None:
    """The folder of data sets: METASP_DATA, or none."""
    folder = os.environ.get(DATA_VARIABLE)
    return Path(folder) if folder else None


def cache_folder() -> Path:
    """Where decoded data is kept: METASP_CACHE, or the user's own cache folder."""
    from platformdirs import user_cache_path  # only those who decode need it

    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else user_cache_path("metasp", appauthor=False)

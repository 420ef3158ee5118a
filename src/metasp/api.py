"""A run in three lines of Python."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from metasp.benchmarks import Benchmark
from metasp.console import text_console
from metasp.errors import UserError, unknown
from metasp.experiment import prepare
from metasp.folders import default_data, default_runs
from metasp.methods import METHODS
from metasp.progress import follow
from metasp.spec import RunSpec


def run(
    benchmark: str | Benchmark = "split-digits",
    *,
    runs: str | Path | None = None,
    data: str | Path | None = None,
    quiet: bool = True,
    force: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train on a stream of tasks as `metasp run` does, and give the result (that of result.json,
    with `run`, the directory). A finished run is read, a stopped one continued.

    ``benchmark`` is a name (`metasp list benchmarks`) or a stream made by `metasp.split`;
    ``runs`` is the folder that holds the runs (default: METASP_RUNS, or else "runs") and ``data``
    the one that holds the data sets (default: METASP_DATA); ``quiet=False`` shows the progress, and
    ``force`` makes a stored run again from its start; ``settings`` are those of a `RunSpec` and of
    the method. Trackers and another checkpoint interval are for the command line, or for
    `metasp.experiment.prepare`.
    """
    if not isinstance(benchmark, str | Benchmark):
        raise UserError(
            f"benchmark must be a name, or a stream made by `metasp.split`, not {benchmark!r}."
        )
    known = {entry.name for entry in fields(RunSpec)}
    given = settings.pop("settings", {})
    if not isinstance(given, Mapping):
        raise UserError(f"settings must be a table of the method's own, not {given!r}.")
    own = dict(given)
    loose = {key: settings.pop(key) for key in list(settings) if key not in known}
    of_methods = {f.name for recipe in METHODS.values() for f in fields(recipe.kind.Settings)}
    for key in loose:
        if key not in of_methods:
            raise unknown("setting of a run", key, known | of_methods)
    own |= loose
    named = {"benchmark": benchmark} if isinstance(benchmark, str) else {}
    spec = RunSpec.from_dict({**named, **settings, "settings": own})
    stream = None if isinstance(benchmark, str) else benchmark
    where = default_data() if data is None else Path(data)
    place = default_runs() if runs is None else Path(runs)
    experiment = prepare(spec, place, where, stream, force=force)
    if not experiment.finished:
        follow(experiment.events(), experiment, text_console(quiet=quiet))
    return {"run": str(experiment.directory.path), **(experiment.directory.outcome() or {})}

"""A run in three lines of Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from metasp.config import default_data, default_runs
from metasp.console import text_console
from metasp.data import Benchmark
from metasp.errors import UserError, told_in_python, unknown
from metasp.experiment import prepare
from metasp.methods import METHODS
from metasp.processes import joined
from metasp.progress import follow
from metasp.spec import RunSpec
from metasp.train.from_spec import OWN, MakeModel


class Seconds(TypedDict):
    """Seconds that a run took."""

    total: float
    per_step: dict[str, float]  # the median, by kind of step
    steps: dict[str, int]


class RunResult(TypedDict):
    """Result of `metasp.run`: the content of result.json, its scores, and where it is."""

    run: str
    spec: dict[str, Any]
    class_names: list[str]
    class_il: dict[str, Any]
    task_il: dict[str, Any]
    seconds: Seconds
    environment: dict[str, str | int]
    defaults: dict[str, object]  # what the method does unless told otherwise


@told_in_python
def run(
    benchmark: str | Benchmark = "split-digits",
    *,
    runs: str | Path | None = None,
    data: str | Path | None = None,
    quiet: bool = True,
    force: bool = False,
    model: MakeModel | None = None,
    **settings: Any,
) -> RunResult:
    """Train on a stream of tasks as `metasp run` does, and give the result (that of result.json,
    with `run`, the directory). A finished run is read, a stopped one continued.

    ``benchmark`` is a name (`metasp list benchmarks`) or a stream made by `metasp.split`;
    ``runs`` is the folder that holds the runs (default: METASP_RUNS, or else "runs") and ``data``
    the one that holds the data sets (default: METASP_DATA); ``quiet=False`` shows the progress, and
    ``force`` makes a stored run again from its start; ``model`` is a function that makes a model of
    your own, with an output for each class (its name and shapes are in the spec); ``settings`` are
    the fields of a `RunSpec`, and what the method takes. Trackers and another checkpoint interval
    are for the command line, or for `metasp.experiment.prepare`.
    """
    if not isinstance(benchmark, str | Benchmark):
        raise UserError(
            f"benchmark must be a name, or a stream made by `metasp.split`, not {benchmark!r}."
        )
    if model is not None and "backbone" in settings and settings["backbone"] != OWN:
        raise UserError("model and backbone are both given: leave one of them out.")
    named = {"benchmark": benchmark} if isinstance(benchmark, str) else {}
    spec = RunSpec.from_dict({**named, **sorted_out(settings)})
    stream = None if isinstance(benchmark, str) else benchmark
    where = default_data() if data is None else Path(data)
    folder = default_runs() if runs is None else Path(runs)
    ranks = joined()
    experiment = prepare(spec, folder, where, stream, force=force, ranks=ranks, model=model)
    if not experiment.finished:
        console = text_console(quiet=quiet or not experiment.writes)
        follow(experiment.events(), experiment, console)
    result = {"run": str(experiment.directory.path), **(experiment.directory.outcome() or {})}
    return cast(RunResult, result)


def sorted_out(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec, with the settings of a method that stand beside them put among
    its settings."""
    settings = chosen.get("settings", {})
    if not isinstance(settings, Mapping):
        raise UserError(
            f"settings must be a dictionary of the method's settings, not {settings!r}."
        )
    loose = {key: value for key, value in chosen.items() if key not in RunSpec.model_fields}
    of_methods = set().union(*(recipe.settings for recipe in METHODS.values()))
    for key in loose:
        if key not in of_methods:
            raise unknown("setting of a run", key, {*RunSpec.model_fields, *of_methods})
    fields = {key: value for key, value in chosen.items() if key not in loose}
    return {**fields, "settings": {**settings, **loose}}

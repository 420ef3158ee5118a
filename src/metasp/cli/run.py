"""metasp run: train on a stream of tasks and store the run."""

import json
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from metasp.cli.cluster import WORKERS, on_cluster, worker_options
from metasp.cli.options import (
    CORRECTIONS,
    checkpoint_option,
    correction_options,
    data_option,
    import_option,
    json_option,
    keep_option,
    runs_option,
    spec_from,
    spec_options,
    track_option,
)
from metasp.cli.show import balance_table, next_steps, score_table
from metasp.cli.terminal import typed_again
from metasp.console import duration, text_console
from metasp.errors import UserError

if TYPE_CHECKING:
    from metasp.callbacks import Make
    from metasp.experiment import Experiment
    from metasp.store import RunDir
    from metasp.sweeps.ranks_on_ray import RanksOnRay

EXAMPLES = """
\b
Examples:
  metasp run
  metasp run --method er --memory 100 --seed 1
  metasp run --method der --set alpha=0.5
  metasp run --spec my.toml --epochs 20
  metasp run --json > result.json
  metasp run --track tensorboard
  metasp run --import my_method.py --method my-method
  metasp run --on ray --workers 2
  metasp run --spec RUN/spec.toml --verified verified.csv
"""


AGAIN = ("data", "checkpoint_seconds", "keep_checkpoints", "track", "as_json", "on")


@click.command(epilog=EXAMPLES)
@click.option(
    "--spec",
    "file",
    type=click.Path(path_type=Path),
    help="TOML file with settings; flags override it.",
)
@import_option
@spec_options
@correction_options
@runs_option
@data_option
@checkpoint_option
@keep_option
@track_option
@worker_options
@click.option("--force", is_flag=True, help="Run again even if the run is finished.")
@json_option
def command(
    file: Path | None,
    runs: Path,
    data: Path | None,
    checkpoint_seconds: float,
    keep_checkpoints: str,
    track: tuple[str, ...],
    force: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Train on a stream of tasks and store the run. A run that is already finished is shown,
    and a run that was stopped continues."""
    from metasp.methods import BEST, configured, method_named

    cluster = on_cluster(data, given)
    found = {name: given.pop(name) for name in CORRECTIONS}
    files = {name: path for name, path in found.items() if path is not None}
    spec = spec_from(file, given)
    configured(method_named(spec.method), spec.method, spec)  # refused before torch is loaded
    from metasp.experiment import prepare
    from metasp.processes import joined

    options: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "force": force}
    options["keep_checkpoints"] = keep_checkpoints
    options |= {"device": cluster.device} if cluster else {"ranks": joined()}
    experiment = prepare(spec, runs, data, said=files, **options)
    if spec.method == BEST and experiment.writes and not as_json:
        done = experiment.spec
        print(f"{BEST} is method {done.method} with selection {done.selection}")
    return execute(experiment, as_json, track, cluster)


def execute(
    experiment: "Experiment",
    as_json: bool,
    track: Sequence[str] = (),
    cluster: "RanksOnRay | None" = None,
) -> int:
    """Make a run happen, here or on a cluster (or find it done), and show what came out, also in
    the given trackers."""
    from metasp.experiment import Interrupted
    from metasp.processes import leave
    from metasp.store import RunDir

    where = experiment.directory.path
    alone = RunDir(where)  # as it is read when the other processes have left
    if experiment.finished:
        leave()
        return show_finished(alone, as_json, track) if experiment.writes else 0
    console = console_for(as_json or not experiment.writes)
    makes: list[Make] = []
    if track and experiment.writes:
        from metasp.callbacks import callbacks_named

        makes = callbacks_named(track, experiment.directory)
    try:
        if cluster is None:
            happens_here(experiment, console, makes)
        else:
            happens_afar(experiment, console, makes, cluster)
    except Interrupted:
        same = typed_again(*AGAIN, *WORKERS)
        again = shlex.join(["metasp", "resume", str(where), *same])
        if experiment.writes:
            print(f"stopped; continue with: {again}", file=sys.stderr)
        leave()
        return 130
    leave()
    if experiment.writes:
        show_result(alone, as_json, console)
    return 0


def show_finished(run: "RunDir", as_json: bool, track: Sequence[str]) -> int:
    """Show a run that was finished before, also in the given trackers; torch is not needed."""
    from metasp.plugins import IMPORTED, changed_since
    from metasp.store.manifest import command_for

    console = console_for(as_json)
    if track:
        from metasp.callbacks import callbacks_named, retold

        retold(run, callbacks_named(track, run))
    again = command_for(run.path, *typed_again("data"))
    console.print(f"already finished: {run.path} (once more: {again})", soft_wrap=True)
    for file in changed_since(run.path) if IMPORTED else ():
        console.print(f"{file} has changed since this run was made", soft_wrap=True)
    show_result(run, as_json, console)
    return 0


def console_for(quiet: bool) -> Console:
    return text_console(quiet=quiet, width=None if sys.stdout.isatty() else 120)


def show_result(run: "RunDir", as_json: bool, console: Console) -> None:
    """What came out of a run that is finished."""
    result = run.outcome() or {}
    if as_json:
        print(json.dumps({"run": str(run.path), **result}))
        return
    console.print(score_table(result), balance_table(result))
    took = duration(result["seconds"]["total"])
    console.print(f"trained in {took}; stored in {run.path}", soft_wrap=True)
    steps = next_steps(run.path, run.spec().method, typed_again("data"))
    console.print(steps, soft_wrap=True, highlight=False, markup=False)


def happens_here(experiment: "Experiment", console: Console, makes: "Sequence[Make]") -> None:
    """Train in this process, telling trackers on the way."""
    from metasp.callbacks import tracked
    from metasp.progress import follow

    experiment.stop = stop_on_signal()
    events = experiment.events()
    if makes:
        events = tracked(events, experiment.directory, makes)
    follow(events, experiment, console)


def happens_afar(
    experiment: "Experiment",
    console: Console,
    makes: "Sequence[Make]",
    cluster: "RanksOnRay",
) -> None:
    """Train on a cluster; trackers are told when the run is done."""
    from metasp.callbacks import retold
    from metasp.experiment import Interrupted
    from metasp.progress import follow_elsewhere

    last = follow_elsewhere(cluster.run(experiment, stop_on_signal()), experiment, console)
    if last.state == "stopped":
        raise Interrupted
    if last.state == "failed":
        raise UserError(f"the run ended on the cluster: {last.note}")
    if makes:
        retold(experiment.directory, makes)


def stop_on_signal() -> Any:
    """A question that answers yes after the first Ctrl-C or SIGTERM; the second one kills."""
    asked = threading.Event()

    def handle(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return asked.is_set

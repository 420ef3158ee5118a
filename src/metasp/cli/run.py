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
    json_option,
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
    from metasp.experiment import Experiment
    from metasp.sweeps.ranks_on_ray import RanksOnRay
    from metasp.trackers import Tracker

EXAMPLES = """
\b
Examples:
  metasp run
  metasp run --method er --memory 100 --seed 1
  metasp run --spec my.toml --epochs 20
  metasp run --json > result.json
  metasp run --track tensorboard
  metasp run --on ray --workers 2
  metasp run --spec RUN/spec.toml --verified verified.csv
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--spec", "file", type=click.Path(path_type=Path), help="TOML file; flags override it."
)
@spec_options
@correction_options
@runs_option
@data_option
@checkpoint_option
@track_option
@worker_options
@click.option("--force", is_flag=True, help="Run again even if the run is finished.")
@json_option
def command(
    file: Path | None,
    runs: Path,
    data: Path | None,
    checkpoint_seconds: float,
    track: tuple[str, ...],
    force: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Train on a stream of tasks and store the run. A run that is already finished is shown, one
    that was stopped is continued."""
    from metasp.methods import BEST, method_named

    cluster = on_cluster(data, given)
    found = {name: given.pop(name) for name in CORRECTIONS}
    files = {name: path for name, path in found.items() if path is not None}
    spec = spec_from(file, given)
    method_named(spec.method)  # a wrong name is told of before torch is loaded
    from metasp.experiment import prepare
    from metasp.processes import joined

    options: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "force": force}
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
    from metasp.store.run_tables import command_for
    from metasp.trackers import retold, tracker_kind

    kinds = [tracker_kind(name) for name in dict.fromkeys(track)] if experiment.writes else []
    quiet = as_json or not experiment.writes
    console = text_console(quiet=quiet, width=None if sys.stdout.isatty() else 120)
    where = experiment.directory.path
    for kind in kinds:
        kind.check(experiment.directory)
    if experiment.finished:
        if kinds:
            retold(experiment.directory, kinds)
        again = command_for(where, *typed_again("data"))
        console.print(f"already finished: {where} (once more: {again})", soft_wrap=True)
    else:
        try:
            if cluster is None:
                happens_here(experiment, console, kinds)
            else:
                happens_afar(experiment, console, kinds, cluster)
        except Interrupted:
            same = typed_again("data", "checkpoint_seconds", "track", "as_json", "on", *WORKERS)
            again = shlex.join(["metasp", "resume", str(where), *same])
            if experiment.writes:
                print(f"stopped; continue with: {again}", file=sys.stderr)
            leave()
            return 130
    result = experiment.directory.outcome() or {}
    leave()
    if not experiment.writes:
        return 0
    if as_json:
        print(json.dumps({"run": str(where), **result}))
    else:
        console.print(score_table(result), balance_table(result))
        took = duration(result["seconds"]["total"])
        done = f"trained in {took}; stored in {where}"
        console.print(done, soft_wrap=True)
        console.print(next_steps(where), soft_wrap=True, highlight=False, markup=False)
    return 0


def happens_here(
    experiment: "Experiment", console: Console, kinds: "Sequence[type[Tracker]]"
) -> None:
    """Train in this process, telling trackers on the way."""
    from metasp.progress import follow
    from metasp.trackers import tracked

    experiment.stop = stop_on_signal()
    events = experiment.events()
    if kinds:
        events = tracked(events, experiment.directory, kinds)
    follow(events, experiment, console)


def happens_afar(
    experiment: "Experiment",
    console: Console,
    kinds: "Sequence[type[Tracker]]",
    cluster: "RanksOnRay",
) -> None:
    """Train on a cluster; trackers are told when the run is done."""
    from metasp.experiment import Interrupted
    from metasp.progress import follow_elsewhere
    from metasp.trackers import retold

    last = follow_elsewhere(cluster.run(experiment, stop_on_signal()), experiment, console)
    if last.state == "stopped":
        raise Interrupted
    if last.state == "failed":
        raise UserError(f"the run ended on the cluster: {last.note}")
    if kinds:
        retold(experiment.directory, kinds)


def stop_on_signal() -> Any:
    """A question that answers yes after the first Ctrl-C or SIGTERM; the second one kills."""
    asked = threading.Event()

    def handle(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return asked.is_set

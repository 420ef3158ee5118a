"""metasp sweep: run a grid of specs, here or on a Ray cluster."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from metasp.cli.options import (
    checkpoint_option,
    cluster_of,
    cluster_options,
    data_option,
    import_option,
    json_option,
    runs_option,
)
from metasp.cli.run import stop_on_signal
from metasp.cli.terminal import typed_again
from metasp.console import duration, text_console
from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.sweeps.grid import expand, read_sweep

if TYPE_CHECKING:
    from metasp.sweeps.jobs import Board, Job, Runner, Update

EXAMPLES = """
\b
Examples:
  metasp sweep my.toml --dry-run
  metasp sweep my.toml
  metasp sweep my.toml --on ray --address auto --gpus-per-worker 0.5 --data /shared/data
"""
NAMED = {"benchmark", "method", "influence", "memory", "seed", "data_digest"}  # in a run's name


@click.command(epilog=EXAMPLES)
@click.argument("sweep")
@click.option("--dry-run", is_flag=True, help="List the runs and what is already done.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Runs at a time on this machine [default: cores // threads of a run].",
)
@import_option
@runs_option
@data_option
@checkpoint_option
@cluster_options
@json_option
def command(
    sweep: str,
    dry_run: bool,
    jobs: int | None,
    runs: Path,
    as_json: bool,
    **values: Any,
) -> int:
    """Run every spec of SWEEP, a TOML file. Finished runs are never run
    again, stopped ones continue, and one that fails does not stop the others."""
    if jobs is not None and values["on"] == "ray":
        raise UserError("--jobs only applies to runs on this machine: leave out --jobs or --on.")
    specs = expand(read_sweep(sweep))
    console = text_console(stderr=as_json)
    todo, runner = plan(specs, runs, jobs, values)
    from metasp.sweeps.jobs import Board, estimated_seconds

    unfinished = [job for job in todo if job.stored != "finished"]
    at_once = runner.at_once(unfinished) if unfinished else 1
    board = Board(todo, at_once, estimated_seconds(todo))
    if dry_run:
        return show_plan(board, as_json, console)
    follow(board, runner.run(unfinished, stop_on_signal()), console)
    if as_json:
        print(json.dumps(summary(board, runs)))
    if board.of("stopped"):
        options = {param.name or "" for param in click.get_current_context().command.params}
        again = shlex.join(["metasp", "sweep", sweep, *typed_again(*options)])
        console.print(f"stopped; continue with: {again}", soft_wrap=True)
        return 130
    return 1 if board.of("failed") else 0


def plan(
    specs: list[RunSpec], runs: Path, jobs: int | None, values: dict[str, Any]
) -> "tuple[list[Job], Runner[Any]]":
    """Return the jobs, and what will carry them out."""
    data, seconds = values["data"], values["checkpoint_seconds"]
    cluster = cluster_of(data, values, checkpoint_seconds=seconds)
    from metasp.sweeps.jobs import jobs_of
    from metasp.sweeps.local import Local

    if cluster is None:
        return jobs_of(specs, runs, data), Local(data, seconds, jobs)
    return jobs_of(specs, runs, data, cluster.device), cluster


def show_plan(board: "Board", as_json: bool, console: Console) -> int:
    """List the runs of a sweep, and say how long they will take."""
    if as_json:
        rows = []
        for job in board.jobs:
            rows.append({"run": job.name, "stored": job.stored, "spec": job.spec.as_dict()})
        print(json.dumps({"runs": rows, "seconds": board.left()}))
    else:
        console.print(listing(board.jobs))
        console.print(headline(board))
    return 0


def listing(jobs: "list[Job]") -> Table:
    """Return the runs of a sweep: what varies among them, and what the runs folder holds of each.

    Fields vary among all runs, settings among those of one method and influence."""
    table = Table()
    for name in ("run", "with", "stored"):
        table.add_column(name, overflow="fold")
    specs = [job.spec.flat() for job in jobs]
    common = {key for key in varied(specs) if "." not in key} - NAMED
    for job, spec in zip(jobs, specs):
        alike = [one for one in specs if owner(one) == owner(spec)]
        shown = common | {key for key in varied(alike) if "." in key}
        if spec.get("rehearse_last") == job.spec.epochs:  # all of them: no schedule
            shown.discard("rehearse_last")
        phrases = []
        for key in spec:
            if key in shown:
                phrases.append(f"{key.rpartition('.')[2].replace('_', ' ')} {spec[key]}")
        table.add_row(job.name, ", ".join(phrases), job.stored)
    return table


def owner(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Return whose settings a flat spec has."""
    return spec["method"], spec["influence"]


def varied(specs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys whose values are not the same everywhere."""
    keys = set[str]().union(*specs)
    return {key for key in keys if len({repr(spec.get(key)) for spec in specs}) > 1}


def follow(board: "Board", updates: "Iterator[Update]", console: Console) -> None:
    """Consume a sweep's updates, showing them as they come: in one live table, or as plain lines
    where nobody watches."""
    if console.is_terminal:
        with Live(picture(board), console=console, refresh_per_second=4) as live:
            for update in updates:
                board.add(update)
                live.update(picture(board))
            live.update(picture(board))
        return
    console.print(headline(board))
    for update in updates:
        begins = update.state == "running" and update.name not in board.began
        board.add(update)
        if begins or update.state != "running":
            console.print(line(update, board), soft_wrap=True)
    console.print(headline(board))


def headline(board: "Board") -> str:
    """Say how far a sweep is."""
    phrases = [f"{len(board.of('done'))} of {len(board.jobs)} runs done"]
    for state in ("running", "waiting", "stopped", "failed"):
        if board.of(state):
            phrases.append(f"{len(board.of(state))} {state}")
    if board.of("running") or board.of("waiting"):
        phrases.append(f"about {duration(board.left())} left with {board.at_once} at a time")
    return ", ".join(phrases)


def line(update: "Update", board: "Board") -> str:
    """Return one event of a sweep as one line."""
    if update.state == "running":
        return f"started  {update.name}"
    took = board.took.get(update.name)
    tail = f" in {duration(took)}" if update.state == "done" and took is not None else ""
    note = f": {update.note}" if update.note else ""
    count = f"{len(board.of('done'))}/{len(board.jobs)}"
    return f"{update.state:8} {update.name}{tail} ({count} done){note}"


def picture(board: "Board") -> Group:
    """Return running runs with their progress, failed ones with the reason, and the sum of all."""
    table = Table(expand=True)
    table.add_column("run", ratio=4, overflow="fold")
    table.add_column("progress", ratio=2)
    table.add_column("left", justify="right")
    table.add_column("", ratio=3, overflow="fold")
    for update in board.of("running"):
        bar = ProgressBar(total=1.0, completed=update.fraction)
        left = duration(update.left) if update.left is not None else ""
        table.add_row(update.name, bar, left, update.note)
    for update in board.of("failed"):
        table.add_row(update.name, Text("failed", style="red"), "", Text(update.note))
    total = Table.grid(expand=True)  # a bar alone would not end its line
    total.add_row(ProgressBar(total=len(board.jobs), completed=len(board.of("done"))))
    return Group(table, total, Text(headline(board)))


def summary(board: "Board", runs: Path) -> dict[str, Any]:
    """Return how a sweep ended, as plain values."""
    rows = []
    for update in board.latest.values():
        reason = {"reason": update.note} if update.note else {}
        rows.append({"run": str(runs / update.name), "state": update.state, **reason})
    return {"runs": rows, **{s: len(board.of(s)) for s in ("done", "failed", "stopped")}}

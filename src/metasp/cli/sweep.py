"""metasp sweep: run a grid of specs, here or on a Ray cluster."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from metasp.cli.board import follow, listing, summary
from metasp.cli.cluster import (
    CLUSTER,
    a_share,
    cluster_options,
    guard_own_cluster,
    refuse_torchrun,
    refuse_what_belongs_elsewhere,
)
from metasp.cli.options import (
    checkpoint_option,
    data_option,
    import_option,
    json_option,
    runs_option,
)
from metasp.cli.run import stop_on_signal
from metasp.cli.terminal import typed_again
from metasp.console import text_console
from metasp.spec import RunSpec
from metasp.sweeps.grid import expand, read_sweep

if TYPE_CHECKING:
    from metasp.sweeps.jobs import Job, Runner

EXAMPLES = """
\b
Examples:
  metasp sweep my.toml --dry-run
  metasp sweep my.toml
  metasp sweep my.toml --on ray --address auto --gpus-per-run 0.5 --data /shared/data
"""
RAY = (*CLUSTER, "cpus_per_run", "gpus_per_run")
AGAIN = ("on", "jobs", "runs", "data", "checkpoint_seconds", "as_json")


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
@click.option("--cpus-per-run", **a_share, help="[default: the run's threads]")
@click.option(
    "--gpus-per-run", **a_share, default=0.0, show_default=True,
    help="GPUs of each run; with more than 0, device auto means cuda.",
)  # fmt: skip
@json_option
def command(
    sweep: str,
    dry_run: bool,
    on: str,
    jobs: int | None,
    runs: Path,
    data: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Run every spec of SWEEP, a TOML file. Finished runs are never run
    again, stopped ones continue, and one that fails does not stop the others."""
    refuse_torchrun("a sweep")
    refuse_what_belongs_elsewhere(on, RAY, ("jobs",))
    specs = expand(read_sweep(sweep))
    console = text_console(stderr=as_json)
    todo, runner = plan(specs, on, runs, data, jobs, given)
    if dry_run:
        return show_plan(todo, as_json, console)
    from metasp.sweeps.board import Board

    board = Board(todo, runner.at_once(todo))
    unfinished = [job for job in todo if job.stored != "finished"]
    follow(board, runner.run(unfinished, stop_on_signal()), console)
    if as_json:
        print(json.dumps(summary(board, runs)))
    if board.of("stopped"):
        again = shlex.join(["metasp", "sweep", sweep, *typed_again(*AGAIN, *RAY)])
        console.print(f"stopped; continue with: {again}", soft_wrap=True)
        return 130
    return 1 if board.of("failed") else 0


def plan(
    specs: list[RunSpec],
    on: str,
    runs: Path,
    data: Path | None,
    jobs: int | None,
    given: dict[str, Any],
) -> "tuple[list[Job], Runner]":
    """The jobs, and who will carry them out."""
    from metasp.sweeps.jobs import jobs_of
    from metasp.sweeps.local import Local

    if on == "local":
        return jobs_of(specs, runs, data), Local(data, given["checkpoint_seconds"], jobs)
    guard_own_cluster(given["address"])
    from metasp.sweeps.on_ray import OnRay

    device = "cuda" if given["gpus_per_run"] else "cpu"
    return jobs_of(specs, runs, data, device), OnRay(data, **given)


def show_plan(todo: "list[Job]", as_json: bool, console: Console) -> int:
    if as_json:
        rows = [{"run": job.name, "stored": job.stored, "spec": job.spec.as_dict()} for job in todo]
        print(json.dumps({"runs": rows}))
    else:
        console.print(listing(todo))
        done = sum(job.stored == "finished" for job in todo)
        console.print(f"{len(todo)} runs, {done} of them finished", highlight=False)
    return 0

"""python -m benchmarks NAME: speed as ratios, measured interleaved in one process."""

import contextlib
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.timing import Told
from metasp.cli.options import data_option, json_option
from metasp.cli.terminal import typed

NAMES = (
    "engine",
    "tally",
    "step",
    "herding",
    "judge",
    "analytic",
    "influence",
    "total",
    "parallel",
    "optimizers",
    "frozen",
    "precision",
    "libraries",
    "cleanlab",
    "counts",
    "corrected",
    "peers",
    "startup",
    "reports",
    "lazy",
    "growth",
    "truth",
)
# Those that measure on data sets:
OF_DATA = ("libraries", "cleanlab", "counts", "corrected", "peers", "lazy", "truth")


@click.command()
@click.argument("name", type=click.Choice(NAMES), metavar="NAME")
@data_option
@click.option("--size", type=click.IntRange(min=20), help="cleanlab: train examples per class.")
@click.option("--seeds", help="cleanlab: such as 301,302.")
@click.option("--only", metavar="AXIS", help="growth: data, tasks, classes, memory ... alone.")
@json_option
def command(
    name: str,
    data: Path | None,
    size: int | None,
    seeds: str | None,
    only: str | None,
    as_json: bool,
) -> None:
    """Measure NAME on this machine:

    \b
      engine     our ER step against a bare hand-written PyTorch loop
      tally      an ER step that notes how each example fares against one that does not
      step       one step of every method against one of ER
      herding    a memory chosen by features, in seconds
      judge      judging the labels of examples against evaluating them
      analytic   analytic heads: learning features, and forgetting one example
      influence  the influence step against ER and against the authors' code
      total      a whole run of MetaSP against one of ER
      parallel   a weighted step split over processes
      optimizers an influence with the pseudo step of AdamW and others against SGD's
      frozen     a task on a frozen encoder's features against training through it
      precision  a step in bfloat16 and compiled, with influence and without
      libraries  our influence against captum, Kronfluence and pyDVL
      cleanlab   wrong labels found by our scores and by cleanlab, same network
      counts     how many labels are said to be wrong, on forty streams
      corrected  what helps most once suspects are listed
      peers      nine methods beside Avalanche's: accuracy and time
      startup    a run from its command to its first step, and each run of a sweep, in seconds
      reports    tables of hundreds and thousands of runs, in seconds
      lazy       pictures decoded as they are needed: peak memory, and how long a step waits
      growth     time and memory by data, tasks, classes, memory, |B|, |V|, width, pages, processes
      truth      what influence predicts against what happens when examples are left out
    """
    if name not in OF_DATA and typed("data"):
        raise click.UsageError(f"--data is for {', '.join(OF_DATA)}: leave it out.")
    asked: dict[str, Any] = {"data": data} if name in OF_DATA else {}
    if name == "cleanlab":
        asked |= {} if size is None else {"size": size}
        asked |= {} if seeds is None else {"seeds": [int(seed) for seed in seeds.split(",")]}
    elif size is not None or seeds is not None:
        raise click.UsageError("--size and --seeds are for cleanlab: leave them out.")
    if only is not None and name != "growth":
        raise click.UsageError("--only is for growth: leave it out.")
    try:
        bench = importlib.import_module(f"benchmarks.{name}")
        if only is not None:
            if only not in bench.AXES:
                raise click.UsageError(f"unknown axis {only!r}: use {', '.join(bench.AXES)}.")
            asked["only"] = only
        with measuring(name) as told:
            rows = bench.measure(**asked, told=told)
    except ImportError as error:
        needs = "see benchmarks/README.md" if name == "peers" else "pip install -e '.[libraries]'"
        raise click.ClickException(f"this comparison needs {error.name}: {needs}.") from error
    if as_json:
        print(json.dumps(bench.as_json(rows)))
    else:
        print("\n".join(bench.render(rows)))


@contextlib.contextmanager
def measuring(name: str) -> Iterator[Told]:
    """Show how far a measurement is, to a person at a terminal."""
    console = Console(stderr=True)
    with Progress(
        console=console,
        disable=not console.is_terminal,
        transient=True,
        speed_estimate_period=600.0,  # a turn of the longest takes half a minute
    ) as bar:
        line = bar.add_task(f"measuring {name}", total=1.0)
        yield lambda done: bar.update(line, completed=done)


if __name__ == "__main__":
    command(prog_name="python -m benchmarks")

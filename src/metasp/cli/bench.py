"""metasp bench: speed as ratios, measured interleaved in one process on this machine."""

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from metasp.cli.options import data_option, json_option
from metasp.cli.terminal import typed
from metasp.errors import UserError, unknown

Told = Callable[[float], None]
Measured = tuple[list[str], dict[str, Any]]

EXAMPLES = """
\b
Examples:
  metasp bench engine
  metasp bench influence --json
  metasp bench libraries --data DIR
"""


@click.command(epilog=EXAMPLES)
@click.argument("what")
@data_option
@json_option
def command(what: str, data: Path | None, as_json: bool) -> None:
    """Measure WHAT:

    \b
      engine     our ER step against a bare hand-written PyTorch loop
      step       one step of every method against one of ER
      influence  the influence step against ER and against the released way
      total      a whole run of MetaSP against one of ER
      parallel   a weighted step split over processes
      libraries  our influence against captum, Kronfluence and pyDVL
    """
    benches: dict[str, Callable[[Told], Measured]] = {
        **{name: partial(module, name) for name in ("engine", "step", "total", "parallel")},
        "influence": influence,
        "libraries": partial(libraries, data),
    }
    if what not in benches:
        raise unknown("benchmark", what, benches)
    if what != "libraries" and typed("data"):
        raise UserError("--data is for `metasp bench libraries`: leave it out.")
    with measuring(what) as told:
        lines, numbers = benches[what](told)
    if as_json:
        print(json.dumps(numbers))
    else:
        print("\n".join(lines))


@contextlib.contextmanager
def measuring(what: str) -> Iterator[Told]:
    """Show how far a measurement is, to a person at a terminal."""
    console = Console(stderr=True)
    with Progress(
        console=console,
        disable=not console.is_terminal,
        transient=True,
        speed_estimate_period=600.0,  # a turn of the longest takes half a minute
    ) as bar:
        line = bar.add_task(f"measuring {what}", total=1.0)
        yield lambda done: bar.update(line, completed=done)


def module(name: str, told: Told) -> Measured:
    """A benchmark module that measures, renders and gives its numbers by those names."""
    bench = importlib.import_module(f"metasp.bench.{name}")
    rows = bench.measure(told=told)
    return bench.render(rows), bench.as_json(rows)


def influence(told: Told) -> Measured:
    from metasp.bench.influence import influence_bench, render

    found = influence_bench(told=told)
    return render(found), {"influence": asdict(found)}


def libraries(data: Path | None, told: Told) -> Measured:
    from metasp.cli.influence_check import examples

    try:
        from metasp.bench.libraries import compare, render

        _, (x, y, goal_x, goal_y) = examples(data)
        rivals = compare((x.flatten(1), y), (goal_x.flatten(1), goal_y), told=told)
    except ImportError as error:
        raise UserError(
            f"this comparison needs {error.name}: pip install -e '.[libraries]' in the clone."
        ) from error
    return render(rivals), {"libraries": [asdict(rival) for rival in rivals]}

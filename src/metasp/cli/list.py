"""metasp list: what there is to choose from, and what has been run."""

import json
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from metasp.cli.options import data_option, import_option, json_option, runs_option
from metasp.cli.terminal import typed
from metasp.config import declared
from metasp.console import text_console
from metasp.errors import UserError, unknown

Rows = list[dict[str, str]]
SHOWN = {
    "methods": {
        "name": "name",
        "stores": "stores",
        "weighs": "weighs",
        "influence": "influence",
        "ER steps": "cost",
    }
}
"""What fits a terminal of 80 columns, where not all does, and its heading; --json has the rest."""

ABOUT_METHODS = (
    "* to begin with, with selection {selection}: --method best. influence: the examples that "
    "--influence weighs, of methods with several loss terms those of which. cost: of a step, in "
    "steps of er. Settings: metasp list methods NAME."
)

EXAMPLES = """
\b
Examples:
  metasp list methods
  metasp list methods der
  metasp list benchmarks --data DIR
  metasp list runs --runs runs --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("what")
@click.argument("name", required=False)
@import_option
@runs_option
@data_option
@json_option
def command(what: str, name: str | None, runs: Path, data: Path | None, as_json: bool) -> None:
    """List WHAT: methods, benchmarks, backbones, selections or runs; or the settings of the method
    NAME."""
    listings: dict[str, Callable[[], Rows]] = {
        "methods": methods,
        "benchmarks": lambda: benchmarks(data),
        "backbones": backbones,
        "selections": selections,
        "runs": lambda: stored(runs),
    }
    if what not in listings:
        raise unknown("list", what, listings)
    for option, of in (("runs", "runs"), ("data", "benchmarks")):
        if what != of and typed(option):
            raise UserError(f"--{option} only applies to `metasp list {of}`: leave it out.")
    console = text_console()
    if name is not None:
        if what != "methods":
            raise UserError(f"`metasp list {what}` takes no name: leave {name!r} out.")
        show_method(name, as_json, console)
        return
    rows = listings[what]()
    if as_json:
        print(json.dumps({what: rows}))
        return
    if not rows:
        console.print(f"no {what} in {runs}")
        return
    shown = SHOWN.get(what, {name: name for name in rows[0]})
    table = Table(caption_justify="left")
    for heading in shown.values():
        table.add_column(heading, overflow="fold")
    for row in rows:
        first, *others = (row[name] for name in shown)
        table.add_row(f"{first} *" if row.get("recommended") else first, *others)
    if what == "methods":
        from metasp.methods import RECOMMENDED

        table.caption = ABOUT_METHODS.format(selection=RECOMMENDED.selection)
    console.print(table)


def show_method(name: str, as_json: bool, console: Console) -> None:
    """Print what a method does and its settings."""
    from metasp.methods import method_named

    recipe = method_named(name)
    rows = [
        {
            "setting": key,
            "type": field.type_name,
            "default": "" if default is None else str(default),
            "bounds": field.bounds,
            "what": field.help,
        }
        for (key, field), default in zip(
            declared(recipe.Settings).items(), recipe.settings.values()
        )
    ]
    if as_json:
        print(json.dumps({"method": name, "what": recipe.what, "settings": rows}))
        return
    console.print(recipe.what, highlight=False)
    if not rows:
        console.print(f"method {name} has no settings of its own")
        return
    table = Table(caption="metasp run --set NAME=VALUE", caption_justify="left")
    for heading in rows[0]:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)


def methods() -> Rows:
    from metasp.methods import METHODS, RECOMMENDED

    return [
        {
            "name": name,
            "recommended": "yes" if name == RECOMMENDED.method else "",
            "stores": recipe.stores,
            "weighs": recipe.weighs,
            "influence": recipe.influence,
            "ER steps": recipe.cost,
            "what": recipe.what,
            "memory": recipe.selection or "none",
            "settings": ", ".join(f"{k}={v}" for k, v in recipe.settings.items()),
        }
        for name, recipe in METHODS.items()
    ]


def benchmarks(data: Path | None) -> Rows:
    from metasp.data.catalogue import listing, row
    from metasp.plugins import IMPORTED

    rows = listing(data)
    if IMPORTED:
        from metasp.data import BENCHMARKS

        for name in BENCHMARKS.keys() - {row["name"] for row in rows}:
            rows.append(row(name, "its own", "--tasks", "its own", "imported", "yes"))
    return rows


def backbones() -> Rows:
    from metasp.backbones import BACKBONES

    return [
        {"name": name, "default width": str(entry.width), "what": entry.help}
        for name, entry in BACKBONES.items()
    ]


def selections() -> Rows:
    from metasp.memory import SELECTIONS

    return [
        {"name": name, "decides at each": entry.at, "what": entry.help}
        for name, entry in SELECTIONS.items()
    ]


def stored(runs: Path) -> Rows:
    from metasp.metrics import METRICS
    from metasp.store import runs_in

    rows, score = [], f"class-IL {METRICS['A_inf'].name}"
    for run in runs_in(runs):
        try:
            result = run.outcome()
        except UserError as error:
            rows.append({"run": run.path.name, "state": "damaged", score: str(error)})
            continue
        value = f"{100 * result['class_il']['A_inf']:.2f}" if result else ""
        state = "finished" if result else "unfinished"
        rows.append({"run": run.path.name, "state": state, score: value})
    return rows

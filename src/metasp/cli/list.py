"""metasp list: what there is to choose from, and what has been run."""

import json
from collections.abc import Callable
from pathlib import Path

import click
from rich.table import Table

from metasp.cli.options import data_option, import_option, json_option, runs_option
from metasp.cli.terminal import typed
from metasp.config import declared
from metasp.console import text_console
from metasp.errors import UserError, unknown

Rows = list[dict[str, str]]
HIDDEN = ("what", "recommended", "memory", "settings")
ABOUT_METHODS = (
    "* is where to begin: --method best stands for it with selection {}. ER steps: what a step "
    "costs, in steps of er. influence: the examples that --influence weighs. "
    "`metasp list methods NAME` lists settings."
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
    about, note = "", ""
    if name is not None and what != "methods":
        raise UserError(f"`metasp list {what}` takes no name: leave {name!r} out.")
    if name is not None:
        from metasp.methods import method_named

        about, rows = method_named(name).what, settings(name)
        note = "give them as --set NAME=VALUE" if rows else "it has no settings of its own"
    else:
        rows = listings[what]()
    if as_json:
        answer = {"method": name, "what": about, "settings": rows}
        print(json.dumps(answer if name is not None else {what: rows}))
        return
    if what == "methods" and name is None:
        from metasp.methods import RECOMMENDED

        note = ABOUT_METHODS.format(RECOMMENDED.selection)
    if not rows and name is None:
        note = f"no {what} in {runs}"
    console = text_console()
    for part in filter(None, (about, definitions(rows) if rows else None, note)):
        console.print(part)


def definitions(rows: Rows) -> Table:
    """Return a name and a text for each row: what it is, and its other values by their names."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    for row in rows:
        name, *_ = row.values()
        values = [f"{k}: {v}" for k, v in row.items() if v and v != name and k not in HIDDEN]
        texts = [row.get("what", ""), "; ".join(values)]
        grid.add_row(
            f"{name} *" if row.get("recommended") else name, "\n".join(filter(None, texts))
        )
    return grid


def settings(method: str) -> Rows:
    """Return the settings of a method."""
    from metasp.methods import method_named

    recipe, rows = method_named(method), []
    for key, field in declared(recipe.Settings).items():
        default = recipe.settings[key]
        about = {"type": field.type_name, "default": "" if default is None else str(default)}
        rows.append({"setting": key, **about, "bounds": field.bounds, "what": field.help})
    return rows


def methods() -> Rows:
    """Return the methods with what they store and weigh, and what a step costs."""
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
    """Return the benchmarks, and whether their data is here."""
    from metasp.data.registry import listing, row
    from metasp.plugins import IMPORTED

    rows = listing(data)
    if IMPORTED:
        from metasp.data import BENCHMARKS

        for name in BENCHMARKS.keys() - {row["name"] for row in rows}:
            rows.append(row(name, "its own", "--tasks", "its own", "imported", "yes"))
    return rows


def backbones() -> Rows:
    """Return the networks."""
    from metasp.backbones import BACKBONES

    return [
        {"name": name, "default width": str(choice.width), "what": choice.help}
        for name, choice in BACKBONES.items()
    ]


def selections() -> Rows:
    """Return the rules for what a memory keeps."""
    from metasp.memory import SELECTIONS

    return [
        {"name": name, "decides at each": choice.at, "what": choice.help}
        for name, choice in SELECTIONS.items()
    ]


def stored(runs: Path) -> Rows:
    """Return the runs in a folder."""
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

"""Tables and figures of runs beside what the paper has."""

from pathlib import Path

import click

from metasp.cli.options import OneOf, json_option
from metasp.cli.report import files_of, show, tell, usable
from metasp.errors import UserError, unknown
from metasp.reports.figures import Kind, draw
from metasp.reports.groups import group
from metasp.reports.notes import Comparison
from metasp.reports.runs import Gathered
from metasp.reports.scores import difference_tables
from metasp.reports.tables import FORMATS
from reproduce.influence_table import influence_table
from reproduce.published import published_tables
from reproduce.rehearsal_table import rehearsal_tables
from reproduce.time_table import time_tables

TABLES = ("scores", "time", "rehearsal", "influence")
EFFECTS = {
    name: Kind(f"reproduce.effects:{name.replace('-', '_')}", f"effect of the {name}")
    for name in ("validation-size", "influence-epochs", "pseudo-steps")
}


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--table", type=OneOf(TABLES), default="scores", show_default=True,
              help="Which table to make.")  # fmt: skip
@click.option("--format", "form", type=OneOf(["terminal", *FORMATS]), default="terminal",
              show_default=True, help="Format of the output.")  # fmt: skip
@click.option("--against", help="Row or method that the others are tested against.")
@click.option("--check", type=click.Path(path_type=Path),
              help="File of a stored influence-check, for --table influence.")  # fmt: skip
def report(
    runs: tuple[Path, ...], table: str, form: str, against: str | None, check: Path | None
) -> None:
    """Set tables of RUNS beside the published figures: scores, times, what the memory keeps, and
    how often approximations of influence have the right sign."""
    if check is not None and table != "influence":
        raise UserError("--check only applies to --table influence: leave it out.")
    if against is not None and table != "scores":
        raise UserError("--against only applies to --table scores: leave it out.")
    if table == "influence":
        if runs:
            raise UserError("the influence table shows a stored check (--check): leave out RUNS.")
        show([influence_table(check)], form, Gathered([]))
        return
    found = usable(runs)
    if table == "time":
        tables = time_tables(group(found.records))
    elif table == "rehearsal":
        tables = rehearsal_tables(group(found.records))
    else:
        how, groups = Comparison(against), group(found.records)
        tables = published_tables(groups, how)
        tables += [] if form in ("csv", "json") else difference_tables(groups, how)
    show(tables, form, found)


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("figures"), show_default=True,
              help="Folder for the files.")  # fmt: skip
@click.option("--only", multiple=True, help=f"A figure ({', '.join(EFFECTS)}); may be repeated.")
@json_option
def figures(runs: tuple[Path, ...], out: Path, only: tuple[str, ...], as_json: bool) -> None:
    """Draw the effect of one setting on the scores and on the time of RUNS."""
    for name in only:
        if name not in EFFECTS:
            raise unknown("figure", name, EFFECTS)
    groups = group(usable(runs).records)
    drawn = {name: draw(EFFECTS[name], groups) for name in only or EFFECTS}
    written = {name: files_of(drawings, out) for name, drawings in drawn.items()}
    missing = {
        name: f"`python -m reproduce {name}-small` makes its runs"
        for name, drawings in drawn.items()
        if not drawings
    }
    tell(written, missing, as_json)

"""metasp report: tables of stored runs."""

import sys
from pathlib import Path

import click

from metasp.cli.options import OneOf
from metasp.console import text_console
from metasp.errors import UserError
from metasp.folders import default_runs
from metasp.paper.influence_table import influence_table
from metasp.paper.published import published_scores
from metasp.paper.rehearsal_table import rehearsal_tables
from metasp.paper.time_table import time_tables
from metasp.reports.configurations import group
from metasp.reports.matrix import matrix_tables
from metasp.reports.records import Gathered, gather
from metasp.reports.render import FORMATS, as_json, terminal
from metasp.reports.scores import Comparison, score_tables
from metasp.reports.table import Table

TABLES = ("scores", "time", "rehearsal", "influence", "matrix")
EXAMPLES = """
\b
Examples:
  metasp report runs
  metasp report runs --against er --holm
  metasp report runs --paper --format latex > table.tex
  metasp report runs --table time
  metasp report runs/split-digits-er-m200-s1231-0123456789ab --table matrix
"""


ONLY_FOR = {  # options that other tables would ignore
    "against": ("scores",),
    "holm": ("scores",),
    "paper": ("scores", "time", "rehearsal"),
    "check": ("influence",),
}


@click.command(epilog=EXAMPLES)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--table", type=OneOf(TABLES), default="scores", show_default=True)
@click.option("--format", "form", type=OneOf(["terminal", *FORMATS]), default="terminal",
              show_default=True)  # fmt: skip
@click.option("--against", help="Row or method that the others are tested against "
              "[default: metasp-rehsel].")  # fmt: skip
@click.option("--holm", is_flag=True, help="Correct the tests of each column for their number.")
@click.option("--paper", is_flag=True, help="Add the published figures and the difference.")
@click.option("--check", type=click.Path(path_type=Path), help="Influence table: a stored check.")
@click.option("--json", "as_json_", is_flag=True, help="The same as --format json.")
def command(
    runs: tuple[Path, ...],
    table: str,
    form: str,
    against: str | None,
    holm: bool,
    paper: bool,
    check: Path | None,
    as_json_: bool,
) -> None:
    """Tables of RUNS: run directories, or folders of them. Scores are in percent, over seeds."""
    for name, tables_ in ONLY_FOR.items():
        if table not in tables_ and click.get_current_context().params[name]:
            raise UserError(f"--{name} is for --table {' or '.join(tables_)}: leave it out.")
    if as_json_ and form not in ("terminal", "json"):
        raise UserError(f"--json and --format {form} are two forms: give one.")
    form = "json" if as_json_ else form
    if table == "influence" and runs:
        raise UserError("the influence table is of a stored check (--check), not of runs: "
                        "leave those out.")  # fmt: skip
    found = Gathered([]) if table == "influence" else usable(runs)
    if table == "influence":
        tables = [influence_table(check)]
    elif table == "matrix":
        if len(found.records) != 1:
            raise UserError(f"the matrix is of one run, not of {len(found.records)}: name one.")
        tables = matrix_tables(found.records[0])
    elif table == "time":
        tables = time_tables(group(found.records), paper)
    elif table == "rehearsal":
        tables = rehearsal_tables(group(found.records), paper)
    else:
        published = published_scores() if paper else None
        tables = score_tables(group(found.records), Comparison(against, holm, published))
    show(tables, form, found)


def usable(runs: tuple[Path, ...]) -> Gathered:
    """The finished runs; what cannot be used is said on stderr and counted."""
    found = gather(runs or (default_runs(),))
    for words in found.damaged:
        print(f"warning: skipped a damaged run, {words}", file=sys.stderr)
    for kind, names in (("damaged", found.damaged), ("unfinished", found.unfinished)):
        if names:
            print(f"{len(names)} {kind} run{'s' * (len(names) > 1)} left out", file=sys.stderr)
    if not found.records and found.unfinished:
        raise UserError("none of these runs is finished: `metasp resume RUN` continues one.")
    if not found.records:
        raise UserError("all of these runs are damaged: make them again with `metasp run`.")
    return found


def show(tables: list[Table], form: str, found: Gathered) -> None:
    if form == "terminal":
        console = text_console(width=None if sys.stdout.isatty() else 160)
        console.print(terminal(tables), soft_wrap=False)
    elif form == "json":
        print(as_json(tables, damaged=found.damaged, unfinished=found.unfinished))
    else:
        sys.stdout.write(FORMATS[form](tables))

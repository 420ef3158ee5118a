"""metasp report: tables of stored runs."""

import sys
from pathlib import Path

import click

from metasp.cli.options import OneOf, import_option
from metasp.config import default_runs
from metasp.console import text_console
from metasp.errors import UserError, or_user_error, unknown
from metasp.metrics import METRICS
from metasp.reports.groups import STREAM, group
from metasp.reports.notes import Comparison
from metasp.reports.runs import TABLE, Gathered, export, gather
from metasp.reports.scores import (
    REPORTS,
    difference_tables,
    frame_of,
    matrix_tables,
    score_tables,
    tidy_matrix,
)
from metasp.reports.suspects import stream_tables
from metasp.reports.tables import FORMATS, Table, as_json, of_frame, terminal

TABLES = ("scores", "stream", "matrix")
EXAMPLES = """
\b
Examples:
  metasp report runs
  metasp report runs --against er --holm
  metasp report runs --by memory --metric A_inf
  metasp report runs --by stream --against "metasp-robust, 10 verified"
  metasp report runs --format latex > table.tex
  metasp report runs --table stream
  metasp report runs --table matrix --format csv > accuracies.csv
  metasp report runs --export sweep.parquet
  metasp report sweep.parquet runs
"""


ONLY_FOR = {  # options that other tables would ignore
    "against": ("scores",),
    "holm": ("scores",),
    "by": ("scores",),
    "metric": ("scores",),
}


@click.command(epilog=EXAMPLES)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--table", default="scores", show_default=True,
              help="Which table to make: scores, stream, matrix, or one of your own.")  # fmt: skip
@click.option("--format", "form", type=OneOf(["terminal", *FORMATS]), default="terminal",
              show_default=True, help="Format of the output.")  # fmt: skip
@click.option("--against", help="Row or method that the others are tested against "
              "[default: metasp-robust or metasp-rehsel].")  # fmt: skip
@click.option(
    "--holm",
    is_flag=True,
    help="Mark significant differences by their p-values after Holm's correction.",
)
@click.option("--by", metavar="FIELD", help="One table for each metric, with a column for each "
              f"value of a field, such as memory; {STREAM!r} puts the streams of a benchmark side "
              "by side.")  # fmt: skip
@click.option("--metric", type=OneOf(METRICS), multiple=True,
              help="Show this metric alone; may be repeated.")  # fmt: skip
@click.option("--export", "export_to", type=click.Path(path_type=Path), metavar="FILE.parquet",
              help="Write the runs as one table instead; `metasp report` and `metasp figures` read "
              "it like a folder of runs.")  # fmt: skip
@import_option
@click.option("--json", "as_json_", is_flag=True, help="The same as --format json.")
def command(
    runs: tuple[Path, ...],
    table: str,
    form: str,
    against: str | None,
    holm: bool,
    by: str | None,
    metric: tuple[str, ...],
    export_to: Path | None,
    as_json_: bool,
) -> None:
    """Show tables of RUNS, which are run directories, tables of exported runs, or folders of them.
    Scores are percent, as means over seeds. Several seeds also give standard deviations and
    p-values."""
    if table not in (*TABLES, *REPORTS):
        raise unknown("--table", table, (*TABLES, *REPORTS))
    for name, tables_ in ONLY_FOR.items():
        if table not in tables_ and click.get_current_context().params[name]:
            only = " or ".join(tables_)
            raise UserError(f"--{name} only applies to --table {only}: leave it out.")
    if as_json_ and form not in ("terminal", "json"):
        raise UserError(f"--json and --format {form} ask for two formats: give one of them.")
    form = "json" if as_json_ else form
    found = usable(runs)
    if export_to is not None:
        export_runs(found, export_to)
        return
    tidy = form in ("csv", "json")  # for programs, which want each number once
    if table == "matrix":
        tables = [tidy_matrix(found.records)] if tidy else matrix_tables(found.records)
    elif table in REPORTS:
        tables = [of_frame(table, REPORTS[table](frame_of(group(found.records))))]
    elif table == "stream":
        damaged: list[str] = []
        tables = stream_tables(group(found.records), damaged)
        for words in damaged:
            print(f"warning: left out of the table, {words}", file=sys.stderr)
    else:
        how = Comparison(against, holm, metrics=metric)
        tables = compared(found, how, by, tidy)
    show(tables, form, found)


def export_runs(found: Gathered, path: Path) -> None:
    if path.suffix != TABLE:
        raise UserError(f"--export writes a Parquet table: name it {path.stem}{TABLE}.")
    with or_user_error(f"cannot write {path}"):
        export(found.records, path)
    print(f"{len(found.records)} runs: {path}")


def compared(found: Gathered, how: Comparison, by: str | None, tidy: bool) -> list[Table]:
    """Return the tables of scores and, for people, those of differences with their p-values, which
    programs find beside the scores."""
    groups = group(found.records, by or "")
    several = [each for each in groups if each.variant]
    if several and not by and not tidy:
        print(f"{len(several)} tables are of streams of one benchmark: --by {STREAM} sets them "
              "side by side.", file=sys.stderr)  # fmt: skip
    tables = score_tables(groups, how)
    return tables if tidy else tables + difference_tables(groups, how)


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
        text_console().print(terminal(tables), soft_wrap=True, end="")
    elif form == "json":
        print(as_json(tables, damaged=found.damaged, unfinished=found.unfinished))
    else:
        sys.stdout.write(FORMATS[form](tables))

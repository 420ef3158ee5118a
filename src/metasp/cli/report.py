"""metasp report and metasp figures: tables and figures of stored runs."""

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metasp.cli.options import OneOf, import_option, json_option
from metasp.config import default_runs
from metasp.console import text_console
from metasp.errors import UserError, or_user_error, unknown
from metasp.metrics import METRICS
from metasp.reports.figures import ALONG, FIGURES, draw
from metasp.reports.groups import STREAM, Configuration, group
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
from metasp.reports.significance import DEFAULT_REFERENCE, check_reference
from metasp.reports.suspect_tables import stream_tables
from metasp.reports.tables import FORMATS, Table, as_json, of_frame, terminal

if TYPE_CHECKING:
    from metasp.reports.figures import Drawing

TABLES = ("scores", "stream", "matrix")
COMPARES = "differences"  # the figure that takes --against
REPORT_EXAMPLES = """
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
FIGURE_EXAMPLES = """
\b
Examples:
  metasp figures runs --out figures
  metasp figures runs --only front --only accuracy
  metasp figures runs --only differences --against er
  metasp figures runs --by memory --metric A_inf
"""
runs_argument = click.argument("runs", nargs=-1, type=click.Path(path_type=Path))


@click.command(epilog=REPORT_EXAMPLES)
@runs_argument
@click.option("--table", default="scores", show_default=True,
              help="Which table to make: scores, stream, matrix, or one of your own.")  # fmt: skip
@click.option("--format", "form", type=OneOf(["terminal", *FORMATS]), default="terminal",
              show_default=True, help="Format of the output.")  # fmt: skip
@click.option("--against", help="Row or method that the others are tested against "
              "[default: metasp-robust or metasp-rehsel].")  # fmt: skip
@click.option("--holm", is_flag=True, help="Mark significant differences by their p-values after "
              "Holm's correction.")  # fmt: skip
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
def report(
    runs: tuple[Path, ...],
    table: str,
    form: str,
    export_to: Path | None,
    as_json_: bool,
    **scores: Any,
) -> None:
    """Show tables of RUNS, which are run directories, tables of exported runs, or folders of them.
    Scores are percent, as means over seeds. Several seeds also give standard deviations and
    p-values."""
    if table not in (*TABLES, *REPORTS):
        raise unknown("--table", table, (*TABLES, *REPORTS))
    for name, value in scores.items():
        if value and table != "scores":
            raise UserError(f"--{name} only applies to --table scores: leave it out.")
    if as_json_ and form not in ("terminal", "json"):
        raise UserError(f"--json and --format {form} ask for two formats: give one of them.")
    form = "json" if as_json_ else form
    gathered = usable(runs)
    records = gathered.records
    if export_to is not None:
        if export_to.suffix != TABLE:
            raise UserError(f"--export writes a Parquet table: name it {export_to.stem}{TABLE}.")
        with or_user_error(f"cannot write {export_to}"):
            export(records, export_to)
        print(f"{len(records)} runs: {export_to}")
        return
    tidy = form in ("csv", "json")  # for programs, which want each number once
    if table == "matrix":
        tables = [tidy_matrix(records)] if tidy else matrix_tables(records)
    elif table in REPORTS:
        tables = [of_frame(table, REPORTS[table](frame_of(group(records))))]
    elif table == "stream":
        damaged: list[str] = []
        tables = stream_tables(group(records), damaged)
        warn_of("the table", damaged)
    else:
        groups = group(records, scores["by"] or "")
        how = Comparison(scores["against"], scores["holm"], metrics=scores["metric"])
        tables = score_tables(groups, how)
        tables += [] if tidy else difference_tables(groups, how)
    show(tables, form, gathered)


def usable(runs: tuple[Path, ...]) -> Gathered:
    """Return the finished runs; what cannot be used is named on stderr and counted."""
    gathered = gather(runs or (default_runs(),))
    for reason in gathered.damaged:
        print(f"warning: skipped a damaged run, {reason}", file=sys.stderr)
    for kind, names in (("damaged", gathered.damaged), ("unfinished", gathered.unfinished)):
        if names:
            print(f"{len(names)} {kind} run{'s' * (len(names) > 1)} left out", file=sys.stderr)
    if not gathered.records and gathered.unfinished:
        raise UserError("none of these runs is finished: `metasp resume RUN` continues one.")
    if not gathered.records:
        raise UserError("all of these runs are damaged: make them again with `metasp run`.")
    return gathered


def warn_of(what: str, damaged: Sequence[str]) -> None:
    """Name what was left out of a table or figure, each once."""
    for reason in dict.fromkeys(damaged):
        print(f"warning: left out of {what}, {reason}", file=sys.stderr)


def show(tables: list[Table], form: str, gathered: Gathered) -> None:
    """Print tables in a format."""
    if form == "terminal":
        text_console().print(terminal(tables), soft_wrap=True, end="")
    elif form == "json":
        print(as_json(tables, damaged=gathered.damaged, unfinished=gathered.unfinished))
    else:
        sys.stdout.write(FORMATS[form](tables))


@click.command(epilog=FIGURE_EXAMPLES)
@runs_argument
@click.option("--out", type=click.Path(path_type=Path), default=Path("figures"), show_default=True,
              help="Folder for the files.")  # fmt: skip
@click.option("--only", type=OneOf(FIGURES), multiple=True,
              help=f"A figure ({', '.join(FIGURES)}); may be repeated.")  # fmt: skip
@click.option("--against", help="Row or method that `differences` are from "
              f"[default: {DEFAULT_REFERENCE}].")  # fmt: skip
@click.option("--by", metavar="FIELD", help="Draw the scores against a field instead, such as "
              "memory, or against the streams of a benchmark (stream).")  # fmt: skip
@click.option("--metric", type=OneOf(METRICS), multiple=True,
              help="With --by: draw this metric; may be repeated [default: A_inf].")  # fmt: skip
@import_option
@json_option
def figures(
    runs: tuple[Path, ...],
    out: Path,
    only: tuple[str, ...],
    against: str | None,
    by: str | None,
    metric: tuple[str, ...],
    as_json: bool,
) -> None:
    """Draw RUNS (run directories, or folders of them) as PNG and SVG, with the data of each
    figure beside it as CSV."""
    if against is not None and only and COMPARES not in only:
        raise UserError(
            f"--against only applies to the figure {COMPARES!r}: add --only {COMPARES}."
        )
    if by is not None and (only or against is not None):
        raise UserError("--by draws one figure of its own: leave out --only and --against.")
    if metric and by is None:
        raise UserError("--metric only applies with --by: add --by FIELD, or leave --metric out.")
    records = usable(runs).records
    if by is not None:
        drawings = draw(ALONG, group(records, by), metrics=metric or ("A_inf",))
        missing = {} if drawings else {by: f"it takes runs with two values of {by} or more"}
        tell({by: files_of(drawings, out)}, missing, as_json)
        return
    groups = group(records)
    rows: list[Configuration] = []
    for one in groups:
        rows += one.rows
    check_reference(rows, against)
    written: dict[str, list[str]] = {}
    missing = {}
    damaged: list[str] = []
    for name in only or FIGURES:
        kind = FIGURES[name]
        options: dict[str, Any] = {"against": against} if name == COMPARES else {}
        if kind.reads_tables:
            options["damaged"] = damaged
        drawings = draw(kind, groups, **options)  # matplotlib comes with it
        if not drawings:
            missing[name] = kind.needs
        written[name] = files_of(drawings, out)
    warn_of("a figure", damaged)
    tell(written, missing, as_json)


def files_of(drawings: "list[Drawing]", out: Path) -> list[str]:
    """Write what was drawn. Returns the names of the files."""
    from metasp.reports.figures import save

    paths = chain.from_iterable(save(drawing, out) for drawing in drawings)
    return [*map(str, paths)]


def tell(written: Mapping[str, list[str]], missing: Mapping[str, str], as_json: bool) -> None:
    """Name the files and what could not be drawn."""
    if as_json:
        print(json.dumps({"figures": written, "missing": missing}))
        return
    for name, paths in written.items():
        for path in paths:
            if path.endswith(".png"):
                print(f"{name}: {path} (and .svg, .csv)")
    for name, reason in missing.items():
        print(f"{name}: nothing to draw; {reason}", file=sys.stderr)

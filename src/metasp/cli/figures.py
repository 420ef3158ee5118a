"""metasp figures: figures of stored runs, each with its data."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metasp.cli.options import OneOf, import_option, json_option
from metasp.cli.report import usable
from metasp.errors import UserError, unknown
from metasp.metrics import METRICS
from metasp.reports.figures import ALONG, FIGURES, draw
from metasp.reports.groups import Group, group
from metasp.reports.significance import DEFAULT_REFERENCE, check_reference

if TYPE_CHECKING:
    from metasp.reports.figures import Drawing

COMPARES = "differences"
EXAMPLES = """
\b
Examples:
  metasp figures runs --out figures
  metasp figures runs --only front --only accuracy
  metasp figures runs --only differences --against er
  metasp figures runs --by memory --metric A_inf
"""


@click.command(epilog=EXAMPLES)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("figures"), show_default=True,
              help="Folder for the files.")  # fmt: skip
@click.option("--only", multiple=True, help=f"A figure ({', '.join(FIGURES)}); may be repeated.")
@click.option("--against", help="Row or method that `differences` are from "
              f"[default: {DEFAULT_REFERENCE}].")  # fmt: skip
@click.option("--by", metavar="FIELD", help="Draw the scores against a field instead, such as "
              "memory, or against the streams of a benchmark (stream).")  # fmt: skip
@click.option("--metric", type=OneOf(METRICS), multiple=True,
              help="With --by: draw this metric; may be repeated [default: A_inf].")  # fmt: skip
@import_option
@json_option
def command(
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
    for name in only:
        if name not in FIGURES:
            raise unknown("figure", name, FIGURES)
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
        tell(*against_field(group(records, by), by, metric or ("A_inf",), out), as_json)
        return
    groups = group(records)
    check_reference([row for each in groups for row in each.rows], against)
    written: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    damaged: list[str] = []
    for name in only or FIGURES:
        kind = FIGURES[name]
        options: dict[str, Any] = {"against": against} if name == COMPARES else {}
        if kind.reads_tables:
            options["damaged"] = damaged
        drawings = draw(kind, groups, **options)  # matplotlib comes with it
        if not drawings:
            missing[name] = kind.needs
            if name == COMPARES:
                missing[name] = (
                    f"it takes one row of {against or DEFAULT_REFERENCE} and others: see --against"
                )
        written[name] = files_of(drawings, out)
    for words in dict.fromkeys(damaged):
        print(f"warning: left out of a figure, {words}", file=sys.stderr)
    tell(written, missing, as_json)


def against_field(
    groups: list[Group], by: str, metrics: tuple[str, ...], out: Path
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """What was drawn of the scores against a field, and why nothing was."""
    drawings = draw(ALONG, groups, metrics=metrics)
    written = {by: files_of(drawings, out)}
    missing = {} if drawings else {by: f"it takes runs with two values of {by} or more"}
    return written, missing


def files_of(drawings: "list[Drawing]", out: Path) -> list[str]:
    """Write what was drawn; the names of the files."""
    from metasp.reports.figures import save

    return [str(path) for drawing in drawings for path in save(drawing, out)]


def tell(written: dict[str, list[str]], missing: dict[str, str], as_json: bool) -> None:
    """Name the files and what could not be drawn."""
    if as_json:
        print(json.dumps({"figures": written, "missing": missing}))
        return
    for name, paths in written.items():
        for path in paths:
            if path.endswith(".png"):
                print(f"{name}: {path} (and .svg, .csv)")
    for name, words in missing.items():
        print(f"{name}: nothing to draw; {words}", file=sys.stderr)

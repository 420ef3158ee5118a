"""metasp figures: figures of stored runs, each with its data."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from metasp.cli.options import json_option
from metasp.cli.report import usable
from metasp.errors import UserError, unknown
from metasp.paper.figures import EFFECTS
from metasp.reports.configurations import group
from metasp.reports.figures import FIGURES, draw
from metasp.reports.scores import REFERENCE, check_reference

ALL = {**FIGURES, **EFFECTS}
COMPARES = "differences"
EXAMPLES = """
\b
Examples:
  metasp figures runs --out figures
  metasp figures runs --only front --only accuracy
  metasp figures runs --only differences --against er
"""


@click.command(epilog=EXAMPLES)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("figures"), show_default=True,
              help="Folder for the files.")  # fmt: skip
@click.option("--only", multiple=True, help=f"A figure ({', '.join(ALL)}); may be repeated.")
@click.option("--against", help="Row or method that `differences` are from "
              f"[default: {REFERENCE}].")  # fmt: skip
@json_option
def command(
    runs: tuple[Path, ...], out: Path, only: tuple[str, ...], against: str | None, as_json: bool
) -> None:
    """Draw RUNS (run directories, or folders of them) as PNG and SVG, with the data of each
    figure beside it as CSV."""
    for name in only:
        if name not in ALL:
            raise unknown("figure", name, ALL)
    if against is not None and only and COMPARES not in only:
        raise UserError(f"--against is for the figure {COMPARES!r}: add --only {COMPARES}.")
    from metasp.reports.figures import save  # matplotlib comes with it

    groups = group(usable(runs).records)
    check_reference(groups, against)
    written: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    damaged: list[str] = []
    for name in only or ALL:
        kind = ALL[name]
        options: dict[str, Any] = {"against": against} if name == COMPARES else {}
        if kind.reads:
            options["damaged"] = damaged
        drawings = draw(kind, groups, **options)
        if not drawings:
            missing[name] = f"`metasp sweep {kind.sweep}` (or {kind.sweep}-small) makes its runs"
            if name == COMPARES:
                missing[name] = (
                    f"it takes one row of {against or REFERENCE} and others: see --against"
                )
        written[name] = [str(path) for drawing in drawings for path in save(drawing, out)]
    for words in dict.fromkeys(damaged):
        print(f"warning: left out of the influence figures, {words}", file=sys.stderr)
    if as_json:
        print(json.dumps({"figures": written, "missing": missing}))
        return
    for name, paths in written.items():
        for path in paths:
            if path.endswith(".png"):
                print(f"{name}: {path} (and .svg, .csv)")
    for name, words in missing.items():
        print(f"{name}: nothing to draw; {words}", file=sys.stderr)

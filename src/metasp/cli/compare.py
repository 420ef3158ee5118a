"""metasp compare: what changed from one run to another on the same data."""

import sys
from pathlib import Path

import click

from metasp.cli.options import OneOf
from metasp.console import text_console
from metasp.errors import UserError
from metasp.reports.changes import compare_tables
from metasp.reports.tables import FORMATS, as_json, terminal
from metasp.store import open_run

EXAMPLES = """
\b
Examples:
  metasp compare RUN_A RUN_B
  metasp compare RUN_A RUN_B --format csv
  metasp explore RUN_A RUN_B
"""


@click.command(epilog=EXAMPLES)
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--format", "form", type=OneOf(["terminal", *FORMATS]), default="terminal",
              show_default=True)  # fmt: skip
@click.option("--json", "as_json_", is_flag=True, help="The same as --format json.")
def command(run_a: Path, run_b: Path, form: str, as_json_: bool) -> None:
    """What changed from RUN_A to RUN_B, two runs on the same data: corrections, scores, and the
    accuracy on each task. With one seed a difference may be chance; `metasp report` compares
    many seeds."""
    if as_json_ and form not in ("terminal", "json"):
        raise UserError(f"--json and --format {form} ask for two formats: give one of them.")
    tables = compare_tables([open_run(path) for path in (run_a, run_b)])
    if as_json_ or form == "json":
        print(as_json(tables))
    elif form == "terminal":
        text_console().print(terminal(tables), soft_wrap=True, end="")
    else:
        sys.stdout.write(FORMATS[form](tables))

"""metasp what-if: make a run again without some of its examples."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any, Literal

import click
from rich.table import Table

from metasp.cli.options import OneOf, data_option, import_option, json_option
from metasp.console import text_console
from metasp.corrections import read_rows
from metasp.errors import UserError
from metasp.store import open_run

MOST = 10_000_000  # rows of a file of ids
EXAMPLES = """
\b
Examples:
  metasp run --keep-checkpoints task
  metasp what-if RUN --without suspects.csv
  metasp what-if RUN --without withdrawn.csv --as never
"""


@click.command(epilog=EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--without", "file", type=click.Path(path_type=Path), required=True, metavar="FILE.csv",
    help="CSV file with a column id: the training examples to leave out.",
)  # fmt: skip
@click.option(
    "--as", "way", type=OneOf(["weight", "never"]), default="weight", show_default=True,
    help="weight: keep the rows, order and memory of RUN and let the examples count nothing. "
    "never: as if they had never come; order, draws and memory follow.",
)  # fmt: skip
@import_option
@data_option
@json_option
def command(
    run: Path, file: Path, way: Literal["weight", "never"], data: Path | None, as_json: bool
) -> int:
    """Make RUN again without some of its examples, beside it, and compare the final losses. It
    starts from the last kept checkpoint before the first task that has any of them, and ends in the
    same bits as from the start. The new run keeps a report of the deletion."""
    original = open_run(run)
    ids = list(read_rows(file, MOST))
    if not ids:
        raise UserError(f"{file} names no examples: give it rows with an id.")
    from metasp.cli.run import stop_on_signal
    from metasp.experiment import Interrupted
    from metasp.progress import follow
    from metasp.whole_run.counterfactual import compare, prepare_without

    made = prepare_without(original, ids, way, data)
    experiment = made.experiment
    if not experiment.finished:
        experiment.stop = stop_on_signal()
        try:
            follow(experiment.events(), experiment, text_console(quiet=as_json))
        except Interrupted:
            again = shlex.join(["metasp", "resume", str(experiment.directory.path)])
            print(f"stopped; continue with: {again}", file=sys.stderr)
            return 130
    changes = compare(made, data)
    if as_json:
        print(json.dumps(changes))
        return 0
    console = text_console(width=80)
    console.print(changes_table(changes))
    tasks = changes["tasks_taken_over"]
    console.print(f"{len(ids)} examples left out; {tasks} tasks taken over from {run}")
    console.print(f"stored in {changes['run']}, with the report what-if.json", soft_wrap=True)
    return 0


def changes_table(changes: dict[str, Any]) -> Table:
    """Return the changes of the final losses, task by task."""
    table = Table(title="change of the final test loss (class-IL)", title_justify="left")
    for name in ("task", "predicted", "measured"):
        table.add_column(name, justify="right")
    columns = [changes[name] for name in ("predicted", "measured")]
    for task in changes["measured"]["tasks"]:
        values = [None if column is None else column["tasks"][task] for column in columns]
        table.add_row(str(task), *map(signed, values))
    means = [None if column is None else column["total"] for column in columns]
    table.add_row("mean", *map(signed, means))
    return table


def signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"

"""metasp memory: look into a run's memory, and take examples back."""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from metasp.cli.options import data_option, json_option
from metasp.console import text_console
from metasp.corrections import LAST, read_rows, words
from metasp.errors import UserError
from metasp.store import RunDir, open_run

EXAMPLES = """
\b
Examples:
  metasp memory list RUN
  metasp memory list RUN --label 3 --json
  metasp memory forget RUN 17 1203
  metasp memory forget RUN --label 3
  metasp memory forget RUN --from withdrawn.csv
"""
MOST = 10_000_000  # rows of a file of ids
run_argument = click.argument("run", type=click.Path(path_type=Path))
label_option = click.option("--label", type=int, help="Only examples of this class.")
task_option = click.option(
    "--task", type=click.IntRange(min=1), help="Only examples of this task; tasks count from 1."
)


@click.group(epilog=EXAMPLES)
def command() -> None:
    """List what the memory of a run holds, or forget examples."""


@command.command("list", epilog=EXAMPLES)
@run_argument
@label_option
@task_option
@json_option
def list_(run: Path, label: int | None, task: int | None, as_json: bool) -> None:
    """List what the memory of RUN holds as of its last checkpoint: what it is, since which task
    and in which order it entered, and why it stays (mean influence; negative is helpful)."""
    stored = open_run(run)
    held = rows_of(stored)
    rows = only(held, label, task)
    gone = stored.forgotten()
    if as_json:
        print(json.dumps({"run": str(run), "memory": rows, "forgotten": gone}))
        return
    console = text_console()
    console.print(memory_table(rows, len(held)))
    if gone:
        console.print(f"{len(gone)} examples were forgotten", highlight=False)


@command.command("forget", epilog=EXAMPLES)
@run_argument
@click.argument("ids", type=click.IntRange(min=0), nargs=-1)
@label_option
@task_option
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path),
    help="CSV file with a column id: forget the examples that it names.",
)
@data_option
@json_option
def forget(
    run: Path,
    ids: tuple[int, ...],
    label: int | None,
    task: int | None,
    file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Forget examples of RUN, which is finished: those with the given IDS, those of a file, or all
    that the memory holds of a label or task. Nothing of them stays in the run's tables and
    checkpoint but their ids. What the network has learned from them stays learned: a new run
    without them takes --exclude FILE."""
    where = open_run(run)
    picked = label is not None or task is not None
    if [bool(ids), picked, file is not None].count(True) != 1:
        raise UserError(
            "name what to forget in one way: by ids, by --from, or by --label and --task."
        )
    if file is not None:
        ids = tuple(read_rows(file, MOST))
    strange = unknown_ids(where, set(ids), data)
    if strange:
        raise UserError(f"{run} has no example with {words(strange)}: nothing was forgotten.")
    held = {row["id"] for row in only(rows_of(where), label, task)}
    if picked and not held:
        raise UserError("the memory holds no such example: see `metasp memory list RUN`.")
    gone = where.forget(list(ids) if ids else sorted(held))
    freed = len(held.intersection(gone))
    if as_json:
        print(json.dumps({"run": str(run), "forgotten": gone, "from_memory": freed}))
    else:
        print(f"forgot {len(gone)} examples, {freed} of them from the memory; see {run}")


def unknown_ids(run: RunDir, ids: set[int], data: Path | None) -> list[int]:
    """Return those that are no train examples of a run: neither its tables nor its data know
    them."""
    tables = [*run.memory_tables().values(), *run.scores().values()]
    tables += [table for table in (run.influence(), run.noise(), run.trusted()) if table]
    left = ids.difference(run.forgotten(), *(table["id"] for table in tables))
    if not left or max(left) > LAST:  # the store says what is no id at all
        return []
    from metasp.data import load_benchmark  # torch comes with it

    spec = run.spec()
    try:
        benchmark = load_benchmark(spec.with_(exclude=(), relabel=(), verified=()), data)
    except UserError:  # it is not here any more, or was given in Python
        return sorted(left)
    return sorted(left.difference(*(task.ids.tolist() for task in benchmark.tasks)))


def rows_of(run: RunDir) -> list[dict[str, Any]]:
    """What the memory holds, one row per example, in plain values."""
    columns = run.memory()
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    for row in rows:
        value = row["influence"]
        row["influence"] = None if value != value else float(f"{value:.6g}")
    return rows


def only(rows: list[dict[str, Any]], label: int | None, task: int | None) -> list[dict[str, Any]]:
    """Those of a class, of a task, or of both."""
    return [
        row for row in rows if label in (None, row["label"]) and task in (None, row["task"] + 1)
    ]


def memory_table(rows: list[dict[str, Any]], held: int) -> Table:
    count = str(held) if len(rows) == held else f"{len(rows)} of {held}"
    table = Table(title=f"{count} examples in memory", title_justify="left")
    for name in ("slot", "id", "label", "since task", "entered as", "influence"):
        table.add_column(name, justify="right")
    for row in rows:
        value = row["influence"]
        cells = (row["slot"], row["id"], row["label"], row["task"] + 1, row["entered"] + 1)
        table.add_row(*map(str, cells), "–" if value is None else f"{value:.4g}")
    return table

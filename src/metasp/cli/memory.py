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
    rows, forgotten = rows_of(stored, label, task), stored.forgotten()
    if as_json:
        print(json.dumps({"run": str(run), "memory": rows, "forgotten": forgotten}))
        return
    count, console = len(stored.memory()["id"]), text_console()
    number = str(count) if len(rows) == count else f"{len(rows)} of {count}"
    table = Table(title=f"{number} examples in memory", title_justify="left")
    for name in ("slot", "id", "label", "since task", "entered as", "influence"):
        table.add_column(name, justify="right")
    for row in rows:
        influence = "–" if row["influence"] is None else f"{row['influence']:.4g}"
        cells = (row["slot"], row["id"], row["label"], row["task"] + 1, row["entered"] + 1)
        table.add_row(*map(str, cells), influence)
    console.print(table)
    if forgotten:
        console.print(f"{len(forgotten)} examples were forgotten")


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
    stored, by_trait = open_run(run), label is not None or task is not None
    if [bool(ids), by_trait, file is not None].count(True) != 1:
        raise UserError(
            "name what to forget in one way: by ids, by --from, or by --label and --task."
        )
    if file is not None:
        ids = tuple(read_rows(file, MOST))
    strange = unknown_ids(stored, set(ids), data)
    if strange:
        raise UserError(f"{run} has no example with {words(strange)}: nothing was forgotten.")
    in_memory = {row["id"] for row in rows_of(stored, label, task)}
    if by_trait and not in_memory:
        raise UserError("the memory holds no such example: see `metasp memory list RUN`.")
    forgotten = stored.forget(list(ids) if ids else sorted(in_memory))
    freed = len(in_memory.intersection(forgotten))
    if as_json:
        print(json.dumps({"run": str(run), "forgotten": forgotten, "from_memory": freed}))
    else:
        print(f"forgot {len(forgotten)} examples, {freed} of them from the memory; see {run}")


def unknown_ids(run: RunDir, ids: set[int], data: Path | None) -> list[int]:
    """Return those that are no train examples of a run: neither its tables nor its data know
    them."""
    tables = [*run.memory_tables().values(), *run.scores().values()]
    tables += [table for table in (run.influence(), run.noise(), run.trusted()) if table]
    unseen = ids.difference(run.forgotten(), *(table["id"] for table in tables))
    if not unseen or max(unseen) > LAST:  # the store says what is no id at all
        return []
    from metasp.data import load_benchmark  # torch comes with it

    spec = run.spec()
    try:
        benchmark = load_benchmark(spec.with_(exclude=(), relabel=(), verified=()), data)
    except UserError:  # it is not here any more, or was given in Python
        return sorted(unseen)
    return sorted(unseen.difference(*(task.ids.tolist() for task in benchmark.tasks)))


def rows_of(run: RunDir, label: int | None, task: int | None) -> list[dict[str, Any]]:
    """Return what the memory holds of a class, a task or both, a row for each example in plain
    values."""
    columns, rows = run.memory(), []
    for values in zip(*columns.values()):
        row = dict(zip(columns, values))
        value = row["influence"]
        row["influence"] = None if value != value else float(f"{value:.6g}")
        if label in (None, row["label"]) and task in (None, row["task"] + 1):
            rows.append(row)
    return rows

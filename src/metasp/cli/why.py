"""metasp why: which examples of a run raised or lowered its final losses."""

import csv
import json
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from metasp.cli.options import OneOf, data_option, import_option, json_option
from metasp.console import text_console
from metasp.errors import UserError
from metasp.store import open_run

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from metasp.whole_run.answer import Answer

WIDTH = 80

EXAMPLES = """
\b
Examples:
  metasp why RUN
  metasp why RUN --query validation --top 20
  metasp why RUN --format csv > why.csv
  metasp why RUN --check 20
"""


@click.command(epilog=EXAMPLES)
@click.argument("runs", metavar="RUN...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--query",
    default="test",
    show_default=True,
    metavar="test|validation|FILE",
    help="Ask about each task's test or held-out examples, or about the training examples that a "
    "CSV file names by id. To choose data by the answer, ask about validation.",
)
@click.option("--task-il", is_flag=True, help="Losses among the classes of a task alone.")
@click.option(
    "--top", type=click.IntRange(min=1), default=8, show_default=True,
    help="Examples to show from either end of the list.",
)  # fmt: skip
@click.option(
    "--check", type=click.IntRange(min=3), default=None, metavar="N",
    help="Leave N random groups of examples really out, and compare.",
)  # fmt: skip
@click.option(
    "--format", "form", type=OneOf(["table", "csv", "json"]), default="table",
    show_default=True, help="Format of the output.",
)  # fmt: skip
@import_option
@data_option
@json_option
def command(
    runs: tuple[Path, ...],
    query: str,
    task_il: bool,
    top: int,
    check: int | None,
    form: str,
    data: Path | None,
    as_json: bool,
) -> None:
    """List how each training example of a finished RUN changed its final losses, by one exact walk
    backwards through the run: derivatives with respect to the example's weight (1 in training) of
    the mean final loss of older tasks (stability), of its own task (plasticity) and of all tasks
    (total = direct, as new data, + through the memory). Negative helps. Of several runs on the same
    data the means are listed."""
    if as_json and form == "csv":
        raise UserError("--json and --format csv ask for two formats: give one of them.")
    directories = [open_run(run) for run in runs]
    from metasp.progress import bar_on
    from metasp.whole_run.answer import why

    answers = []
    for directory in directories:
        with bar_on(text_console(stderr=True)) as bar:
            line = bar.add_task("walking back", total=1.0, eta="")
            tell = partial(advance, bar, line)
            answers.append(why(directory, data, query, task_il, check or 0, tell))
    rows = mean_rows(answers)
    if as_json or form == "json":
        print(json.dumps({"runs": [*map(str, runs)], **about(answers), "examples": rows}))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        show(answers, rows, top)


def advance(bar: "Progress", line: "TaskID", done: float) -> None:
    """Show the share of the work that is done."""
    bar.update(line, completed=done)


def mean_rows(answers: "list[Answer]") -> list[dict[str, Any]]:
    """Return the rows of all runs as one list of means, the most harmful first."""
    if len(answers) == 1:
        return answers[0].records()
    from metasp.whole_run.answer import COLUMNS

    tables = [
        answer.rows.select(COLUMNS).to_pandas().set_index(["id", "task"]) for answer in answers
    ]
    if any(not table.index.equals(tables[0].index) for table in tables):
        raise UserError("these runs do not have the same examples in the same tasks: name one.")
    mean = sum(tables[1:], tables[0]) / len(tables)
    mean = mean.sort_values("total", ascending=False, kind="stable").reset_index()
    rows = mean.astype(object).where(mean.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def about(answers: "list[Answer]") -> dict[str, Any]:
    """Return what is said of the answer as a whole."""
    first = answers[0]
    checks = [answer.check for answer in answers if answer.check is not None]
    check_facts = [
        {"lds": c.lds, "interval": c.interval, "groups": c.measured.shape[1]} for c in checks
    ]
    return {
        "query": first.query,
        "held": first.held,
        "growth": [answer.growth for answer in answers],
        "agreement": [answer.agreement for answer in answers],
        "trusted": all(answer.trusted for answer in answers),
        "check": check_facts,
        "notes": [*chain.from_iterable(answer.notes for answer in answers)],
    }


def show(answers: "list[Answer]", rows: list[dict[str, Any]], top: int) -> None:
    """Print both ends of the list, and how far to trust it."""
    from metasp.whole_run.answer import ADVICE
    from metasp.whole_run.retraining import LIMIT

    console = text_console(width=WIDTH)
    facts = about(answers)
    console.print(
        f"How the final losses ({facts['query']}) change with the weight of a training example; "
        "negative helps. stability: mean loss of older tasks; plasticity: of its own; total: of "
        "all tasks = direct (as new data) + through memory (as replayed data)."
    )
    harmful = [row for row in rows if row["total"] > 0]
    helpful = [row for row in rows if row["total"] < 0]
    console.print(ends_table("most harmful", harmful[:top], len(harmful)))
    console.print(ends_table("most helpful", helpful[: -top - 1 : -1], len(helpful)))
    console.print(f"held as the run decided it: {'; '.join(facts['held'])}.")
    agreement = min(facts["agreement"])
    numbers = f"agreement {agreement:.2f} (limit {LIMIT}), growth {max(facts['growth']):.2g}"
    if facts["trusted"]:
        console.print(f"trust: {numbers}: what happens follows these scores.")
    else:
        console.print(f"DO NOT BELIEVE SINGLE SCORES OF THIS RUN: {numbers}; {ADVICE}.")
    for check in facts["check"]:
        low, high = check["interval"]
        console.print(
            f"check: {check['groups']} random groups really left out: rank correlation (LDS) "
            f"{check['lds']:.2f} (95% interval {low:.2f} to {high:.2f})."
        )
    for note in facts["notes"]:
        console.print(f"note: {note}")


def ends_table(title: str, rows: list[dict[str, Any]], count: int) -> Table:
    """Return one end of the list as a table."""
    table = Table(title=f"{title} ({count} in all)", title_justify="left")
    names = ("id", "task", "stability", "plasticity", "total", "direct", "through memory")
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        values = (row[name.replace(" ", "_")] for name in names[2:])
        cells = ["–" if value is None else f"{value:+.2e}" for value in values]
        table.add_row(str(row["id"]), str(row["task"] + 1), *cells)
    return table

"""metasp suspects: the examples of a run most likely mislabelled."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from metasp.cli.options import json_option
from metasp.console import text_console
from metasp.errors import UserError, unknown
from metasp.reports.suspects import WAYS, Scores, quality, score_examples
from metasp.store import open_run

EXAMPLES = """
\b
Examples:
  metasp run --method metasp --label-noise 0.3
  metasp suspects runs/split-digits-metasp-m200-s1231-0123456789ab --top 50
  metasp suspects RUN --by loss --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--by", default="both", show_default=True, help=" | ".join(WAYS))
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@json_option
def command(run: Path, by: str, top: int, as_json: bool) -> None:
    """List the examples of RUN most likely mislabelled: those that hurt what the model should
    know (influence), and those it cannot fit (loss). If labels were made wrong on purpose, also
    say how well they are found."""
    if by not in WAYS:
        raise unknown("way to rank", by, WAYS)
    columns, noise = tables(run)
    scores = score_examples(columns)
    wrong = {} if noise is None else dict(zip(noise["id"], noise["true_label"]))
    rows = [row_of(scores, int(place), wrong, noise) for place in scores.order(by)[:top]]
    found = None if noise is None else {way: quality(scores, way, wrong) for way in WAYS}
    if as_json:
        print(json.dumps({"run": str(run), "by": by, "suspects": rows, "quality": found}))
        return
    console = text_console()
    console.print(suspects_table(rows, by, len(scores.ids)))
    if found is not None:
        console.print(quality_table(found, len(wrong)))


def tables(run: Path) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The influence table of a run, and its table of wrong labels if it has one."""
    directory = open_run(run)
    columns = directory.influence()
    if columns is None or not len(columns["id"]):
        raise UserError(
            f"{run} has no influence table: its method records none, or no task is finished; "
            "run a metasp method, or er, mir, gss or gmed with --observe 1."
        )
    return columns, directory.noise()


def row_of(
    scores: Scores, place: int, wrong: Mapping[int, int], noise: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One suspect in plain values; numbers that are not known are None."""
    identity = int(scores.ids[place])
    row: dict[str, Any] = {
        "id": identity,
        "task": int(scores.tasks[place]),
        "label": int(scores.labels[place]),
    }
    for way in WAYS:
        value = float(scores.ways[way][place])
        row[way] = None if value != value else round(value, 6)
    if noise is not None:
        row["true_label"] = wrong.get(identity, row["label"])
    return row


def suspects_table(rows: list[dict[str, Any]], by: str, total: int) -> Table:
    table = Table(
        title=f"{len(rows)} of {total} examples, the most suspect first (by {by})",
        title_justify="left",
        caption="influence > 0 hurts; influence and loss are relative to the mean of their task",
        caption_justify="left",
    )
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        shown = {**row, "task": row["task"] + 1}  # people count tasks from 1
        cells = [f"{v:.3f}" if isinstance(v, float) else "–" if v is None else str(v)
                 for v in shown.values()]  # fmt: skip
        odd = row.get("true_label", row["label"]) != row["label"]
        table.add_row(*cells, style="bold" if odd else None)
    return table


def quality_table(found: Mapping[str, Mapping[str, float | None]], wrong: int) -> Table:
    table = Table(title=f"finding the {wrong} wrong labels", title_justify="left")
    for name in ("by", "precision, %", "area under ROC", "of them scored, %"):
        table.add_column(name, justify="left" if name == "by" else "right")
    for way, entry in found.items():
        precision, area, scored = (entry[key] for key in ("precision", "area", "scored"))
        table.add_row(
            way,
            "–" if precision is None else f"{100 * precision:.1f}",
            "–" if area is None else f"{area:.3f}",
            "–" if scored is None else f"{100 * scored:.1f}",
        )
    return table

"""metasp look: what a data set of pictures holds, from its first rows, without downloading it."""

import json
from pathlib import Path

import click

from metasp.cli.options import data_option, json_option
from metasp.console import text_console
from metasp.errors import UserError

EXAMPLES = """
\b
Examples:
  metasp look hub:uoft-cs/cifar10
  metasp look hub:uoft-cs/cifar100 --label-column coarse_label --rows 500
  metasp look folder:PATH --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("data_set", metavar="hub:OWNER/NAME|folder:PATH")
@click.option("--rows", type=click.IntRange(1, 1_000_000), default=100, show_default=True,
              help="Rows of each split to look at.")  # fmt: skip
@click.option("--label-column", help="Column of the table that holds the label.")
@data_option
@json_option
def command(
    data_set: str, rows: int, label_column: str | None, data: Path | None, as_json: bool
) -> None:
    """Look at the first rows of a data set before running on it: its columns, classes and labels,
    and the size of its pictures. A data set of the hub is streamed, not downloaded."""
    from metasp.benchmarks.hub import first_look
    from metasp.benchmarks.places import own_place
    from metasp.benchmarks.request import Request

    kind, _, place = data_set.partition(":")
    if kind not in ("hub", "folder") or not place:
        raise UserError(f"{data_set!r} cannot be looked at: give hub:OWNER/NAME or folder:PATH.")
    folder = own_place(place, data, Path.is_dir) if kind == "folder" else None
    found = first_look(place, folder, rows, Request(label_column=label_column))
    if as_json:
        print(json.dumps(found))
        return
    console = text_console()
    channels, height, width = found["shape"]
    colour = "grey" if channels == 1 else "colour"
    columns = ", ".join(f"{name} ({kind})" for name, kind in found["columns"].items())
    names = found["class_names"]
    lines = [
        f"columns: {columns}",
        f"pictures: {found['pictures']}, the first {width}×{height} in {colour}",
        f"labels: {found['labels']}" + (f", {len(names)} classes" if names else ""),
    ]
    for split, labels in found["splits"].items():
        seen = ", ".join(f"{label} {count}" for label, count in labels.items())
        lines.append(f"first {sum(labels.values())} rows of {split}: {seen}")
    lines.append(f"run on it: metasp run --benchmark {data_set}")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

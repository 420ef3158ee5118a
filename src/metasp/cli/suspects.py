"""metasp suspects: the examples of a run most likely mislabelled."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from metasp.cli.options import OWN_FILES, OneOf, data_option, import_option, json_option
from metasp.cli.terminal import typed_again
from metasp.config import default_runs
from metasp.console import text_console
from metasp.errors import UserError, or_user_error
from metasp.label_scores import WAYS
from metasp.reports.suspect_tables import (
    DEFINITIONS,
    Row,
    RunScores,
    as_csv,
    class_rows,
    class_table,
    cleaned_csv,
    cleaned_parquet,
    cleaned_rows,
    count_sentence,
    memory_at_end,
    place_words,
    read_scores,
)
from metasp.reports.tables import terminal
from metasp.spec import RunSpec
from metasp.store import RunDir, open_run
from metasp.store.files import write_atomic
from metasp.store.run_tables import TABLES

CLEANED = (".csv", ".parquet")
SHOWN = 20  # rows on a terminal, unless asked for another number

EXAMPLES = """
\b
Examples:
  metasp run --label-noise 0.3
  metasp suspects runs/split-digits-metasp-robust-m200-s1231-0123456789ab --top 50
  metasp suspects RUN --folds 5
  metasp suspects RUN --format csv > suspects.csv
  metasp suspects RUN --cleaned cleaned.parquet
  metasp run --spec RUN/spec.toml --exclude suspects.csv
"""


@click.command(epilog=EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--by", metavar="WAY", help=f"Rank by {' | '.join(WAYS)} [default: the first that RUN has]."
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    help="How many examples to list [default: as many as are expected to be wrong].",
)
@click.option(
    "--format", "form", type=OneOf(["terminal", "csv", "json"]), default="terminal",
    show_default=True, help="Format of the output.",
)  # fmt: skip
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    metavar="K",
    help="First train K networks, each without a part of the examples, which judges that part. RUN "
    "keeps what they say.",
)
@click.option(
    "--cleaned",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write all examples with what is thought of their labels to FILE (.csv or .parquet).",
)
@import_option
@data_option
@json_option
def command(
    run: Path,
    by: str | None,
    top: int | None,
    form: str,
    folds: int | None,
    cleaned: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """List the examples of RUN that are most likely mislabelled, the most suspect first. They are
    ranked by the odds that a label is right. Runs with very many classes have no odds; they are
    ranked by the score of a method that judges labels, by the mean margin or by the mean loss in
    training. The command also says how many labels of each class look wrong, what the memory holds
    and, if it is known which labels are wrong, how well they are found. With --folds networks that
    did not train on an example judge it too, and tell how many labels are wrong."""
    if as_json and form == "csv":
        raise UserError("--json and --format csv ask for two formats: give one of them.")
    if cleaned is not None and cleaned.suffix not in CLEANED:
        raise UserError(f"--cleaned {cleaned} must end in {' or '.join(CLEANED)}.")
    directory = open_run(run)
    if folds is not None:
        judge_by_folds(directory, data, folds)
    run_scores = read_scores(directory)
    way = run_scores.way(by)
    places = run_scores.scores.suspects(way, top)
    total = run_scores.scores.total(way)
    expected = run_scores.scores.expected(way)
    if cleaned is not None:
        write_cleaned(directory, run_scores, way, data, cleaned)
    rows = [run_scores.row(int(place)) for place in places]
    why = add_origins(rows, directory.spec(), data)
    if as_json or form == "json":
        about = {"run": str(run), "by": way, "examples": len(run_scores.scores.ids)}
        interval = total.interval if total.known else None
        count = {"expected": expected, "interval": interval, "between": total.interval}
        listed = {**count, "suspects": rows, "quality": run_scores.found()}
        stream = {
            "classes": class_rows(run_scores, way),
            "memory": memory_at_end(directory, run_scores),
        }
        print(json.dumps({**about, **listed, **stream}))
    elif form == "csv":
        sys.stdout.write(as_csv(rows, way))
    else:
        show(run_scores, rows, way, top)
        classes = class_table(run_scores, way, memory_at_end(directory, run_scores))
        text_console().print(terminal([classes]), soft_wrap=True, end="")
        if rows:
            print(next_steps(run, directory.spec().method, run_scores))
    if why is not None:
        print(f"note: the files are not named: {why}", file=sys.stderr)


def judge_by_folds(run: RunDir, data: Path | None, folds: int) -> None:
    """Let networks judge the examples that did not train on them, and store what they say."""
    import pyarrow as pa
    import torch

    from metasp.data import load_benchmark
    from metasp.train.cross_fit import cross_fit

    spec = run.spec()
    stream = load_benchmark(spec, data)
    if stream.source.digest != spec.data_digest:
        raise UserError(f"the data of {run.path} is no longer what the run was trained on.")
    torch.set_num_threads(spec.threads)

    def show_fold(fold: int) -> None:
        print(f"training network {fold + 1} of {folds}", file=sys.stderr)

    columns = cross_fit(spec, stream, folds, show_fold)
    run.attach("held_out.parquet", pa.table(columns, schema=TABLES["held_out.parquet"]))


def write_cleaned(
    run: RunDir, run_scores: RunScores, way: str, data: Path | None, target: Path
) -> None:
    """Write all examples with what is thought of their labels."""
    from metasp.data.loading import origins_of

    rows = cleaned_rows(run, run_scores, way)
    origins, _ = origins_of(run.spec(), data, [row["id"] for row in rows])
    for row in rows:
        row["file"], row["row"] = origins.get(row["id"], (None, None))
    content = cleaned_csv(rows) if target.suffix == ".csv" else cleaned_parquet(rows)
    with or_user_error(f"cannot write {target}", "choose another place."):
        write_atomic(target, content, private=True)
    print(f"cleaned list: {target}", file=sys.stderr)


def next_steps(run: Path, method: str, run_scores: RunScores) -> str:
    """Return the commands that train again without the suspects, and those to verify some first.

    On pictures, tables and texts with one task or several (benchmarks/corrected.txt, one seed)
    plain replay without the suspects has the highest mean, level with `metasp-robust` and ahead of
    relabelling by 2 points; verdicts beside it neither add nor cost."""
    where, again = shlex.quote(str(run)), typed_again("data")
    runs = [] if run.parent == default_runs() else ["--runs", str(run.parent)]
    by_replay = [] if method == "er" else ["--method", "er"]
    spec = ["--spec", str(run / "spec.toml")]
    steps = {}
    if run_scores.scores.held_out is None and not run_scores.scores.of_numbers:
        steps["count them"] = shlex.join(["metasp", "suspects", str(run), "--folds", "5", *again])
    steps |= {
        "train better": f"metasp suspects {where} --format csv > suspects.csv",
        "": shlex.join(
            ["metasp", "run", *by_replay, *spec, *runs, *again, "--exclude", "suspects.csv"]
        ),
        "verify some": shlex.join(["metasp", "explore", str(run), "--serve", *again]),
    }
    return "\n".join(f"{what + ':' * bool(what):<15}{line}" for what, line in steps.items())


def add_origins(rows: list[Row], spec: RunSpec, data: Path | None) -> str | None:
    """Name the file or row of each suspect; or one sentence about why that cannot be done."""
    if not rows or not (spec.benchmark.startswith(OWN_FILES) or data is not None):
        return None
    from metasp.data.loading import origins_of  # torch comes with it

    origins, why = origins_of(spec, data, [row["id"] for row in rows])
    for row in rows:
        if row["id"] in origins:
            row["file"], row["row"] = origins[row["id"]]
    return why


def show(run_scores: RunScores, rows: list[Row], way: str, top: int | None) -> None:
    console = text_console()
    shown = rows if top is not None else rows[:SHOWN]
    if shown:
        console.print(suspects_table(run_scores, shown, way))
    console.print(count_sentence(run_scores.scores, way), soft_wrap=True)
    if len(shown) < len(rows):
        console.print(f"{len(rows) - len(shown)} more: --top N, or --format csv.")
    quality = run_scores.found()
    if quality is not None:
        console.print(quality_table(quality, len(run_scores.wrong or ())))


def suspects_table(run_scores: RunScores, rows: list[Row], way: str) -> Table:
    table = Table(
        title=f"the {len(rows)} most suspect of {len(run_scores.scores.ids)} examples, by {way}",
        title_justify="left",
        caption=f"{way}: {WAYS[way]}",
        caption_justify="left",
    )
    placed = any("file" in row for row in rows)
    file = only_file(rows)
    if file is not None:
        table.caption = f"{table.caption}\nrow: in {file}"
    names = ["id", "task", "label", "the model says", way]
    names += ["row" if file is not None else "where"] * placed
    names += ["true label"] * (run_scores.wrong is not None)
    for name in names:
        right = name in ("id", "task", "row", way)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        value = row[way]
        cells = [
            str(row["id"]),
            str(row["task"] + 1),  # people count tasks from 1
            str(row["label_name"]),
            row["predicted_name"] or "–",
            "–" if value is None else f"{value:.3f}",
        ]
        if placed:
            cells.append(where(row) if file is None else str(row["row"]))
        if run_scores.wrong is not None:
            cells.append(row["true_name"])
        odd = row.get("true_label", row["label"]) != row["label"]
        table.add_row(*cells, style="bold" if odd else None)
    return table


def only_file(rows: list[Row]) -> str | None:
    """The file that all are rows of, if there is one."""
    files = {row.get("file") for row in rows if row.get("row") is not None}
    return files.pop() if len(files) == 1 and all("file" in row for row in rows) else None


def where(row: Row) -> str:
    return place_words((row["file"], row["row"])) if "file" in row else "–"


def quality_table(quality: Mapping[str, Mapping[str, Any]], wrong: int) -> Table:
    table = Table(
        title=f"finding the {wrong} wrong labels",
        title_justify="left",
        caption=DEFINITIONS,
        caption_justify="left",
    )
    columns = {
        "precision at N, %": "precision",
        "area": "area",
        "listed": "listed",
        "precision, %": "listed_precision",
        "recall, %": "listed_recall",
        "scored, %": "scored",
    }
    for name in ("by", *columns):
        table.add_column(name, justify="left" if name == "by" else "right")
    for way, row in quality.items():
        cells = []
        for name, key in columns.items():
            value = row[key]
            as_percent = name.endswith("%")
            words = f"{100 * value:.1f}" if value is not None and as_percent else value
            cells.append("–" if value is None else f"{words:.3f}" if key == "area" else str(words))
        table.add_row(way, *cells)
    return table

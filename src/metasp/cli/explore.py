"""metasp explore: look at the examples of a run in the browser."""

import json
import shlex
import sys
import webbrowser
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from metasp.cli.options import OWN_FILES, data_option, import_option, json_option
from metasp.cli.terminal import typed, typed_again
from metasp.console import text_console
from metasp.errors import UserError, or_user_error
from metasp.reports.explorer import Examples, Material, Missing, Texts, build_page
from metasp.reports.explorer.desk import Desk, Drawer
from metasp.reports.explorer.html import SURE, Built, Place, embedded
from metasp.reports.explorer.serve import HOST, server_of
from metasp.reports.suspect_tables import place_words
from metasp.spec import RunSpec
from metasp.store import RunDir, open_run
from metasp.store.files import write_atomic

EXAMPLES = """
\b
Examples:
  metasp explore runs/split-digits-metasp-robust-m200-s1231-0123456789ab
  metasp explore RUN --serve
  metasp explore RUN RUN_B --out compared.html
"""


@click.command(epilog=EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path), required=False)
@click.option("--serve", is_flag=True, help=f"Serve the page on {HOST} and open the browser.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; default: a free one.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write the page."
)
@click.option(
    "--max-examples",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Most examples that the page shows; the rest are only counted.",
)
@click.option(
    "--sure",
    type=click.IntRange(min=0),
    default=SURE,
    show_default=True,
    help="Examples of each class that are likely right, to verify among the suspects.",
)
@import_option
@data_option
@json_option
def command(
    run: Path,
    run_b: Path | None,
    serve: bool,
    port: int,
    out: Path | None,
    max_examples: int,
    sure: int,
    data: Path | None,
    as_json: bool,
) -> None:
    """Write one page that shows which examples of RUN help the model remember, which help it
    learn, which hurt both, and what the memory kept. On the page you can also verify labels. With
    RUN_B it shows which examples moved from one of these groups to another between the two runs.
    The page needs no network and can be mailed. With --serve it saves what you verify as
    RUN/verified.csv, which `metasp run --verified` takes."""
    if typed("port") and not serve:
        raise UserError("--port only applies with --serve: add --serve, or leave --port out.")
    runs = [open_run(path) for path in (run, run_b) if path is not None]
    gone = [each.forgotten() for each in runs]
    material, names = examples_of(runs[0].spec(), data)
    typed_paths = [path for path in (run, run_b) if path is not None]
    places = [Place(str(path), command_again(path)) for path in typed_paths]
    origins = {} if isinstance(material, Missing) else origins_in_words(runs, data)
    built = build_page(runs, material, names, max_examples, places, origins, sure)
    target = out or runs[0].page(*runs[1:])
    write_page(target, built.content)
    if [each.forgotten() for each in runs] != gone:
        target.unlink(missing_ok=True)
        raise UserError("examples were forgotten while the page was made: make it again.")
    why = material.why if isinstance(material, Missing) else None
    if as_json:
        told = {"page": str(target), "bytes": len(built.content), "without_pictures": why}
        print(json.dumps({**told, "examples": built.examples, "shown": built.shown}))
    else:
        if why is not None:
            print_note(f"the page has no pictures: {why}")
        if built.shown < built.examples:
            print_note(
                f"the page shows {built.shown:,} of {built.examples:,} examples; "
                "see --max-examples."
            )
        print(target)
    if serve:
        drawers = {
            each.path.name: drawer_of(each, path, built) for each, path in zip(runs, typed_paths)
        }
        serve_page(built, Desk(drawers), port, sys.stderr if as_json else sys.stdout)


def command_again(run: Path) -> str:
    """What runs a run again beside the old one, but for what was verified since."""
    runs = [] if run.parent == Path("runs") else ["--runs", str(run.parent)]
    spec = ["--spec", str(run / "spec.toml")]
    return shlex.join(["metasp", "run", *spec, *runs, *typed_again("data")])


def drawer_of(run: RunDir, path: Path, built: Built) -> Drawer:
    """Where the verdicts about a run are kept."""
    drawer = Drawer(run.verdicts, built.labels[run.path.name], built.names(),
                    str(path / run.verdicts.name))  # fmt: skip
    drawer.saved()  # a file that cannot be read is told of now, not when all is verified
    return drawer


def examples_of(spec: RunSpec, data: Path | None) -> tuple[Material, tuple[str, ...]]:
    """What the run's examples look like and the names of their classes, if the data is there."""
    from metasp.data import load_benchmark
    from metasp.encoded import LazyRows
    from metasp.trees import in_one

    try:
        benchmark = load_benchmark(spec, data)
        if benchmark.source.digest != spec.data_digest:
            raise UserError("The data is no longer what the run was trained on.")
    except UserError as error:
        return Missing(str(error)), ()
    parts = [task.train for task in benchmark.tasks]
    ids, rows = (
        np.concatenate([getattr(part, name).numpy() for part in parts]) for name in ("ids", "rows")
    )
    source = parts[0].source
    inputs: Any = (source if isinstance(source, LazyRows) else in_one(source)).numpy()
    texts = benchmark.source.texts
    if texts is not None and len(texts) == len(inputs):
        words = {identity: texts[row] for identity, row in zip(ids.tolist(), rows.tolist())}
        return Texts(words), benchmark.source.class_names
    return Examples(ids, rows, inputs), benchmark.source.class_names


def origins_in_words(runs: Sequence[RunDir], data: Path | None) -> dict[int, str]:
    """The file or the row of each scored example, where it is in a file of the user's."""
    from metasp.data.loading import origins_of

    spec = runs[0].spec()
    if not spec.benchmark.startswith(OWN_FILES):
        return {}
    tables = chain.from_iterable(run.scores().values() for run in runs)
    ids = set(chain.from_iterable(table["id"] for table in tables))
    found, _ = origins_of(spec, data, sorted(ids))
    return {identity: place_words(origin) for identity, origin in found.items()}


def write_page(target: Path, content: bytes) -> None:
    with or_user_error(f"cannot write {target}", "choose another place with --out."):
        write_atomic(target, content, private=True)


def print_note(sentence: str) -> None:
    text_console(stderr=True).print(f"note: {sentence}")


def serve_page(built: Built, desk: Desk, port: int, out: TextIO) -> None:
    """Until Ctrl-C."""
    before, after = built.served()
    try:
        server = server_of(lambda: before + embedded(desk.told()).encode() + after, port, desk)
    except OSError as error:
        raise UserError(
            f"port {port} of {HOST} is taken ({error.strerror}): leave --port out."
        ) from error
    print(f"{server.address} (Ctrl-C ends it)", file=out, flush=True)
    webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(file=out)
    finally:
        server.server_close()

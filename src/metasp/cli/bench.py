"""metasp bench: speed as ratios, measured interleaved in one process on this machine."""

import importlib
import json

import click
from rich.console import Console

from metasp.cli.options import json_option
from metasp.errors import unknown

BENCHES = {
    "engine": "our ER step against a bare hand-written PyTorch loop",
    "parallel": "a weighted step split over processes",
}

EXAMPLES = """
\b
Examples:
  metasp bench engine
  metasp bench engine --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("what")
@json_option
def command(what: str, as_json: bool) -> None:
    """Measure WHAT: engine (our step against a bare loop), parallel (a step over processes)."""
    if what not in BENCHES:
        raise unknown("benchmark", what, BENCHES)
    bench = importlib.import_module(f"metasp.bench.{what}")
    console = Console(stderr=True)
    with console.status(f"measuring {BENCHES[what]} …"):
        measured = bench.measure()
    if as_json:
        print(json.dumps(bench.as_json(measured)))
    else:
        for line in bench.render(measured):
            print(line)

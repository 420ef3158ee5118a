"""What a person sees of a finished run: the scores."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from metasp.config import default_runs
from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.spec import RunSpec


def score_table(result: Mapping[str, Any]) -> Table:
    """Return every metric of the scenarios, in percent."""
    table = Table(title="scores, %", title_justify="left")
    table.add_column("scenario")
    for metric in METRICS.values():
        table.add_column(metric.name, justify="right")
    for scenario, name in SCENARIO_WORDS.items():
        cells = [result[scenario][metric] for metric in METRICS]
        table.add_row(name, *("–" if c is None else f"{100 * c:z.2f}" for c in cells))
    return table


def balance_table(result: Mapping[str, Any]) -> Table:
    """Return Stability (mean over the old tasks) and Plasticity of each task, in percent."""
    table = Table(title="Stability and Plasticity per task, %", title_justify="left")
    table.add_column("task")
    for name in SCENARIO_WORDS.values():
        table.add_column(f"{name} S", justify="right")
        table.add_column(f"{name} P", justify="right")
    for task in range(len(result["class_il"]["P"])):
        cells = []
        for scenario in SCENARIOS:
            changes = result[scenario]["S"][task]
            cells.append(f"{100 * sum(changes) / len(changes):z.1f}" if changes else "–")
            gained = result[scenario]["P"][task]
            cells.append("–" if gained is None else f"{100 * gained:z.1f}")
        table.add_row(str(task + 1), *cells)
    return table


def next_steps(run: Path, method: str, again: Sequence[str] = ()) -> str:
    """Return a command for each thing that a person may do with a finished run; `again` are options
    that its stream needs once more."""
    runs = shlex.quote(str(run.parent))
    method = "er" if method != "er" else RunSpec().method
    folder = "" if run.parent == default_runs() else f" --runs {runs}"
    same_stream = shlex.join(["--spec", str(run / "spec.toml"), *again])
    steps = {
        "wrong labels": shlex.join(["metasp", "suspects", str(run), *again]),
        "look at it": shlex.join(["metasp", "explore", str(run), "--serve", *again]),
        "compare": f"metasp run {same_stream} --method {method}{folder} && metasp report {runs}",
        "your own data": "metasp run --benchmark folder:PATH",
    }
    return "\n".join(f"{what + ':':<15}{command}" for what, command in steps.items())

"""What a person sees of a finished run: the scores."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS


def score_table(result: Mapping[str, Any]) -> Table:
    """Every metric of both scenarios, in percent."""
    table = Table(title="scores, %", title_justify="left")
    table.add_column("scenario")
    for metric in METRICS.values():
        table.add_column(metric.name, justify="right")
    for scenario, words in SCENARIO_WORDS.items():
        cells = [result[scenario][name] for name in METRICS]
        table.add_row(words, *("–" if c is None else f"{100 * c:.2f}" for c in cells))
    return table


def balance_table(result: Mapping[str, Any]) -> Table:
    """Stability (mean over the old tasks) and Plasticity of each task, in percent."""
    table = Table(title="Stability and Plasticity per task, %", title_justify="left")
    table.add_column("task")
    for words in SCENARIO_WORDS.values():
        table.add_column(f"{words} S", justify="right")
        table.add_column(f"{words} P", justify="right")
    for task in range(len(result["class_il"]["P"])):
        cells = []
        for scenario in SCENARIOS:
            changes = result[scenario]["S"][task]
            cells.append(f"{100 * sum(changes) / len(changes):.1f}" if changes else "–")
            gained = result[scenario]["P"][task]
            cells.append("–" if gained is None else f"{100 * gained:.1f}")
        table.add_row(str(task + 1), *cells)
    return table


def next_steps(run: Path) -> str:
    """What a person may do with a finished run, a command each."""
    steps = {
        "look at it": f"metasp explore {shlex.quote(str(run))}",
        "compare": f"metasp run --method er && metasp report {shlex.quote(str(run.parent))}",
        "your own data": "metasp run --benchmark folder:PATH",
    }
    return "\n".join(f"{what + ':':<15}{command}" for what, command in steps.items())

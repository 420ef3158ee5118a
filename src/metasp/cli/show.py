"""What a person sees of a run: one bar with a true ETA, a row per task, the scores."""

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from metasp.cli.terminal import printable
from metasp.engine.clock import Clock
from metasp.events import Evaluated, Event, StepTaken
from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS


def follow(events: Iterator[Event], run: Any, console: Console) -> None:
    """Consume the events of an experiment, showing them as they come."""
    tasks, clock = len(run.benchmark.tasks), Clock()
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[eta]}"),
    )
    hidden = console.quiet or not console.is_terminal  # a quiet bar would swallow warnings too
    with Progress(*columns, console=console, disable=hidden, expand=True) as bar:
        line = bar.add_task("starting", total=1.0, eta="")
        shown = 0.0
        for event in events:
            for warning in run.warnings:
                print(f"warning: {printable(warning)}", file=sys.stderr)
            run.warnings.clear()
            if isinstance(event, Evaluated) and not event.before:
                console.print(task_row(event, tasks), markup=True, highlight=False)
            if not isinstance(event, StepTaken):
                continue
            clock.saw(event)
            if console.is_terminal and (now := time.monotonic()) - shown > 0.2:
                shown = now
                left = clock.left(run.trainer.remaining())
                spent = clock.spending(now)
                bar.update(
                    line,
                    completed=spent / (spent + left) if spent + left else 0.0,
                    description=f"task {event.task + 1}/{tasks} · {event.kind}",
                    eta=f"{duration(left)} left",
                )
        bar.update(line, completed=1.0, description="done", eta="")


def task_row(event: Evaluated, tasks: int) -> str:
    def percent(values: tuple[float, ...]) -> str:
        each = " ".join(f"{100 * value:5.1f}" for value in values)
        return f"[bold]{100 * sum(values) / len(values):5.1f}[/] ({each})"

    return (
        f"after task {event.task + 1}/{tasks}  class-IL {percent(event.class_il)}  "
        f"task-IL {percent(event.task_il)}"
    )


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
            cells.append(f"{100 * result[scenario]['P'][task]:.1f}")
        table.add_row(str(task + 1), *cells)
    return table


def duration(seconds: float) -> str:
    """1:02:03, 2:03 or 3 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""What a person sees of a run: one bar with a true ETA, a row per task."""

import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from metasp.console import duration, printable
from metasp.engine.clock import Clock
from metasp.events import Evaluated, Event, Noted, StepTaken
from metasp.experiment import Experiment


def follow(events: Iterator[Event], run: Experiment, console: Console) -> None:
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
            if isinstance(event, Noted):
                note = f"task {event.task + 1}/{tasks}  {printable(event.text)}"
                console.print(note, markup=False, highlight=False)
            if isinstance(event, Evaluated) and not event.before:
                console.print(task_row(event, tasks), markup=True, highlight=False)
            if not isinstance(event, StepTaken):
                continue
            clock.saw(event)
            if console.is_terminal and run.trainer and (now := time.monotonic()) - shown > 0.2:
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

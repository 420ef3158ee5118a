"""What a person sees of a run: one bar with a true ETA, a row per task."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from metasp.console import duration, printable
from metasp.events import Evaluated, Event, Noted, StepTaken
from metasp.experiment import Experiment
from metasp.metrics import SCENARIOS
from metasp.store import RunDir
from metasp.train.clock import Clock

if TYPE_CHECKING:
    from metasp.sweeps.jobs import Update


def bar_on(console: Console) -> Progress:
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[eta]}"),
    )
    hidden = console.quiet or not console.is_terminal  # a quiet bar would swallow warnings too
    return Progress(*columns, console=console, disable=hidden, expand=True)


def follow(events: Iterator[Event], run: Experiment, console: Console) -> None:
    """Consume the events of an experiment, showing them as they come."""
    tasks, clock = len(run.benchmark.tasks), Clock()
    with bar_on(console) as bar:
        line = bar.add_task("starting", total=1.0, eta="")
        shown = 0.0
        for event in events:
            for warning in run.warnings:
                print(f"warning: {printable(warning)}", file=sys.stderr)
            run.warnings.clear()
            tell(event, tasks, console)
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


def follow_elsewhere(updates: "Iterator[Update]", run: Experiment, console: Console) -> "Update":
    """Consume what is heard of a run that happens elsewhere, whose files arrive in its directory;
    the last word on it."""
    shown = set() if run.force else {*rows_of(run.directory)}  # not once more
    log, read = run.directory.path / "events.jsonl", 0
    with bar_on(console) as bar:
        line, done = bar.add_task("starting", total=1.0, eta=""), 0.0
        for update in updates:
            if log.stat().st_mtime_ns != read:  # it may be long
                read = log.stat().st_mtime_ns
                for event in rows_of(run.directory):
                    if event not in shown:
                        shown.add(event)
                        tell(event, len(run.benchmark.tasks), console)
            left = "" if update.left is None else f"{duration(update.left)} left"
            done = max(done, update.fraction)  # a try that begins anew says nothing of it
            bar.update(line, completed=done, description=update.note or update.state, eta=left)
            last = update
    return last


def rows_of(directory: RunDir) -> Iterator[Evaluated | Noted]:
    """What a person is told of the events in a run's log."""
    for record in directory.events() if (directory.path / "events.jsonl").exists() else ():
        kind = record.pop("event")
        if kind == "Noted":
            yield Noted(**record)
        if kind == "Evaluated" and not record["before"]:
            lists = {name: tuple(record[name]) for name in ("on", *SCENARIOS)}
            yield Evaluated(record["task"], before=False, **lists)


def tell(event: Event, tasks: int, console: Console) -> None:
    """A note, or the row of a task that has been tested."""
    if isinstance(event, Noted):
        note = f"task {event.task + 1}/{tasks}  {printable(event.text)}"
        console.print(note, markup=False, highlight=False)
    if isinstance(event, Evaluated) and not event.before:
        console.print(task_row(event, tasks), markup=True, highlight=False)


def task_row(event: Evaluated, tasks: int) -> str:
    def percent(values: tuple[float, ...]) -> str:
        accuracies = " ".join(f"{100 * value:5.1f}" for value in values)
        return f"[bold]{100 * sum(values) / len(values):5.1f}[/] ({accuracies})"

    return (
        f"after task {event.task + 1}/{tasks}  class-IL {percent(event.class_il)}  "
        f"task-IL {percent(event.task_il)}"
    )

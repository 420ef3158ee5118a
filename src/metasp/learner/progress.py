"""One bar on a terminal while a task is learned; nothing where there is no terminal."""

import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from metasp.engine import Trainer
from metasp.events import Event, StepTaken, TaskStarted


def shown(events: Iterator[Event], trainer: Trainer) -> Iterator[Event]:
    """The same events, with a bar of the steps on standard error."""
    console = Console(stderr=True)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as bar:
        line, seen = bar.add_task("starting", total=None), 0.0
        for event in events:
            if isinstance(event, TaskStarted):
                steps = sum(count for count, _ in trainer.remaining().values())
                bar.update(line, total=steps)
            elif isinstance(event, StepTaken):
                bar.advance(line)
                if (now := time.monotonic()) - seen > 0.2:
                    seen = now
                    words = f"task {event.task + 1} · {event.kind} · loss {event.loss:.3f}"
                    bar.update(line, description=words)
            yield event

"""What a person sees of a sweep: one live table, or plain lines when nobody watches."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from metasp.console import duration

if TYPE_CHECKING:
    from metasp.sweeps.board import Board
    from metasp.sweeps.jobs import Job, Update

NAMED = {
    "benchmark",
    "method",
    "influence",
    "memory",
    "seed",
    "data_digest",
}  # a run's name says these


def follow(board: "Board", updates: "Iterator[Update]", console: Console) -> None:
    """Consume a sweep's updates, showing them as they come."""
    if not console.is_terminal:
        console.print(headline(board), highlight=False)
        started: set[str] = set()
        for update in updates:
            board.saw(update)
            if update.state != "running":
                console.print(line(update, board), highlight=False, markup=False, soft_wrap=True)
            elif update.name not in started:
                started.add(update.name)
                console.print(f"started  {update.name}", highlight=False, soft_wrap=True)
        console.print(headline(board), highlight=False)
        return
    with Live(picture(board), console=console, refresh_per_second=4) as live:
        for update in updates:
            board.saw(update)
            live.update(picture(board))
        live.update(picture(board))


def headline(board: "Board") -> str:
    parts = [f"{len(board.of('done'))} of {len(board.jobs)} runs done"]
    for state in ("running", "waiting", "stopped", "failed"):
        if board.of(state):  # type: ignore[arg-type]
            parts.append(f"{len(board.of(state))} {state}")  # type: ignore[arg-type]
    left = board.left()
    if left is not None and (board.of("running") or board.of("waiting")):
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def line(update: "Update", board: "Board") -> str:
    """One event of a sweep as one line."""
    count = f"{len(board.of('done'))}/{len(board.jobs)}"
    took = board.took.get(update.name)
    tail = f" in {duration(took)}" if update.state == "done" and took is not None else ""
    note = f": {update.note}" if update.note else ""
    return f"{update.state:8} {update.name}{tail} ({count} done){note}"


def picture(board: "Board") -> Group:
    """Running runs with their progress, failed ones with the reason, then the sum of it all."""
    table = Table(expand=True)
    table.add_column("run", ratio=4, overflow="fold")
    table.add_column("state")
    table.add_column("progress", ratio=2)
    table.add_column("left", justify="right")
    table.add_column("", ratio=3, overflow="fold")
    for update in board.of("running"):
        bar = ProgressBar(total=1.0, completed=update.fraction)
        left = duration(update.left) if update.left is not None else ""
        table.add_row(update.name, "running", bar, left, update.note)
    for update in board.of("failed"):
        table.add_row(update.name, Text("failed", style="red"), "", "", Text(update.note))
    whole = Table.grid(expand=True)  # a bar alone would not end its line
    whole.add_row(ProgressBar(total=len(board.jobs), completed=len(board.of("done"))))
    return Group(table, whole, Text(headline(board)))


def listing(jobs: "list[Job]") -> Table:
    """The runs of a sweep: what varies among them, and what the runs folder holds of each."""
    table = Table()
    for name in ("run", "with", "stored"):
        table.add_column(name, overflow="fold")
    flat = [job.spec.flat() for job in jobs]
    common = {key for key in varied(flat) if "." not in key} - NAMED
    own = {
        name: varied([values for job, values in zip(jobs, flat) if whose(job) == name])
        for name in {whose(job) for job in jobs}
    }
    for job, every in zip(jobs, flat):
        names = common | {key for key in own[whose(job)] if "." in key}
        values = {key: value for key, value in every.items() if key in names}
        if values.get("rehearse_last") == job.spec.epochs:  # all of them: no schedule
            del values["rehearse_last"]
        words = (f"{shown(key)} {value}" for key, value in values.items())
        table.add_row(job.name, ", ".join(words), job.stored)
    return table


def shown(key: str) -> str:
    """Return the name of a setting in words."""
    return key.rpartition(".")[2].replace("_", " ")


def whose(job: "Job") -> tuple[str, str]:
    """Whose settings a run has."""
    return job.spec.method, job.spec.influence


def varied(entries: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys whose values are not the same everywhere."""
    keys = {key for entry in entries for key in entry}
    return {key for key in keys if len({repr(entry.get(key)) for entry in entries}) > 1}


def summary(board: "Board", runs: Path) -> dict[str, Any]:
    """How a sweep ended, as plain values."""
    rows = [
        {"run": str(runs / u.name), "state": u.state, **({"reason": u.note} if u.note else {})}
        for u in board.latest.values()
    ]
    return {"runs": rows, **{s: len(board.of(s)) for s in ("done", "failed", "stopped")}}

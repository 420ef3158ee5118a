"""The state of a whole sweep, from the updates of its runs: pure bookkeeping, nothing shown."""

import time
from dataclasses import dataclass, field
from statistics import fmean

from metasp.sweeps.jobs import Job, State, Update


@dataclass
class Board:
    """Every run's latest update, and the time the rest will take."""

    jobs: list[Job]
    at_once: int = 1
    latest: dict[str, Update] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for job in self.jobs:
            state: State = "done" if job.stored == "finished" else "waiting"
            self.latest[job.name] = Update(job.name, state)

    def saw(self, update: Update) -> None:
        now = time.monotonic()
        if update.state == "running":
            self.began.setdefault(update.name, now)
        elif update.state == "done":
            self.took[update.name] = now - self.began.get(update.name, now)
        self.latest[update.name] = update

    def of(self, state: State) -> list[Update]:
        return [update for update in self.latest.values() if update.state == state]

    def left(self) -> float | None:
        """Seconds left: what the running ones say, and for the waiting ones the mean time of
        the runs of their method (or of any); none while nothing is known."""
        now = time.monotonic()
        known: dict[str, list[float]] = {}
        method = {job.name: job.spec.method for job in self.jobs}
        running = 0.0
        for update in self.of("running"):
            if update.left is not None:
                running += update.left
                spent = now - self.began[update.name]
                known.setdefault(method[update.name], []).append(spent + update.left)
        for name, seconds in self.took.items():
            known.setdefault(method[name], []).append(seconds)
        if not known:
            return None
        anyone = fmean(second for seconds in known.values() for second in seconds)
        waiting = sum(
            fmean(known[method[update.name]]) if method[update.name] in known else anyone
            for update in self.of("waiting")
        )
        open_runs = len(self.of("running")) + len(self.of("waiting"))
        return (running + waiting) / max(1, min(self.at_once, open_runs))

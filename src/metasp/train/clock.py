"""How long a run still takes, from what its steps have cost so far."""

import time
from collections.abc import Mapping

from metasp.events import StepTaken


class Clock:
    """Seconds left, from the steps left of each kind and the measured time of each kind. A kind
    not met yet is taken at its nominal cost relative to those met."""

    def __init__(self) -> None:
        self.started: float | None = None  # when the first step was
        self.spent: dict[str, list[float]] = {}

    def saw(self, event: StepTaken) -> None:
        if self.started is None:
            self.started = time.monotonic() - event.seconds
        entry = self.spent.setdefault(event.kind, [0.0, 0])
        entry[0] += event.seconds
        entry[1] += 1

    def spending(self, now: float) -> float:
        """Seconds since the first step began."""
        return 0.0 if self.started is None else now - self.started

    def left(self, remaining: Mapping[str, tuple[int, float]]) -> float:
        stepping = sum(seconds for seconds, _ in self.spent.values())
        if not stepping:
            return 0.0
        nominal = sum(self.spent[k][1] * remaining[k][1] for k in self.spent if k in remaining)
        unit = stepping / nominal if nominal else 0.0
        # Testing and storing come on top of the steps.
        overhead = self.spending(time.monotonic()) / stepping
        seconds = 0.0
        for kind, (steps, cost) in remaining.items():
            total, count = self.spent.get(kind, (0.0, 0))
            seconds += steps * (total / count if count else cost * unit)
        return seconds * overhead

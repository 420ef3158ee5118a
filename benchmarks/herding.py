"""What choosing a memory by features costs, in seconds and beside the features themselves."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.timing import Told, interleave, machine, silent
from metasp.memory import SELECTIONS, Memory, Offer
from metasp.types import Streams

EXAMPLES, FEATURES, MEMORY = 10_000, 512, 250
LIMITS = {"herding": 2.0}  # seconds
NAMES = ("class-balanced", "herding", "kmeans-features")


@dataclass(frozen=True)
class Row:
    """One selection on so many classes: median seconds with quartiles, and its limit."""

    selection: str
    classes: int
    seconds: float
    low: float
    high: float
    limit: float | None


def measure(rounds: int = 5, told: Told = silent) -> list[Row]:
    """Each selection on one class and on ten, in turn, by one thread."""
    torch.set_num_threads(1)
    features = torch.rand(EXAMPLES, FEATURES, generator=Streams(0)["features"])
    calls = {
        (name, classes): deciding(name, classes, features) for name in NAMES for classes in (1, 10)
    }
    by_name = {f"{name} {classes}": call for (name, classes), call in calls.items()}
    timings = interleave(by_name, rounds, told=told)
    return [
        Row(name, classes, found.median, found.low, found.high, LIMITS.get(name))
        for (name, classes), found in zip(calls, timings.values())
    ]


def deciding(name: str, classes: int, features: torch.Tensor) -> Callable[[], object]:
    """A call that decides what an empty memory keeps of a task."""
    chosen, ids = SELECTIONS[name], torch.arange(EXAMPLES)
    offer = Offer(ids % classes, ids, 0, 1, points=lambda rows: features[rows])
    return lambda: chosen.decide(Memory(MEMORY, chosen.columns), offer, Streams(0)["selection"])


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'selection':<18}{'classes':>8}{'seconds':>9}  {'quartiles':<12}{'limit':>6}"]
    for row in rows:
        span, limit = f"{row.low:.2f}–{row.high:.2f}", f"{row.limit:.1f}" if row.limit else ""
        over = "  OVER" if row.limit is not None and row.seconds > row.limit else ""
        lines.append(
            f"{row.selection:<18}{row.classes:>8}{row.seconds:>9.2f}  {span:<12}{limit:>6}{over}"
        )
    lines.append(f"{EXAMPLES} examples of {FEATURES} features into a memory of {MEMORY}.")
    lines.append(machine())
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"herding": [asdict(row) for row in rows]}

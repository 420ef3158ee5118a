"""What the page tells of one run, read from its directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metasp.metrics import SCENARIOS, scores
from metasp.reports.explorer.history import ids_in, memory_history
from metasp.reports.explorer.points import NEEDED, Points, helped, histograms, side_counts
from metasp.spec import RunSpec
from metasp.store import RunDir, open_run

Array = np.ndarray[Any, Any]

EMPTY: Mapping[str, Sequence[Any]] = dict.fromkeys((*NEEDED, "loss", "predicted"), ())


@dataclass(frozen=True)
class Record:
    """A run as read: its spec, its points, and what else the page says of it."""

    name: str
    spec: RunSpec
    points: Points
    remembered: Array  # ids that were ever in memory
    class_names: tuple[str, ...]  # empty: not recorded
    told: dict[str, Any]


def read_run(run: RunDir) -> Record:
    """All the explorer needs of a run, or one sentence about what is amiss."""
    open_run(run.path)
    spec, result, events = run.spec(), run.outcome(), run.events()
    influence, tables = run.influence(), run.memory_tables()
    points = Points.of(EMPTY if influence is None else influence, run.path / "influence.parquet")
    tasks = [e for e in events if e.get("event") == "TaskStarted"]
    told = {
        "finished": result is not None,
        "tasks": [{"classes": e["classes"], "examples": e["examples"]} for e in tasks],
        "scenarios": scenarios(result, events),
        "seconds": result["seconds"]["total"] if result else None,
        "sides": side_counts(points),
        "measurements": len(points),
        "measured": len(np.unique(points.id)),
        "helped": helped(points),
        "histograms": histograms(points),
        "memory": memory_history(tables, points, run.path / "memory"),
    }
    names = tuple(str(name) for name in (result or {}).get("class_names") or ())
    return Record(run.path.name, spec, points, ids_in(tables), names, told)


def scenarios(
    result: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Scores of both scenarios; of an unfinished run, those of its finished tasks."""
    if result is None:
        return {name: so_far(events, name) for name in SCENARIOS}
    return {name: result[name] for name in SCENARIOS}


def so_far(events: Sequence[Mapping[str, Any]], scenario: str) -> dict[str, Any] | None:
    tests = [e for e in events if e.get("event") == "Evaluated"]
    after = [e[scenario] for e in tests if not e["before"]]
    before = [e[scenario][0] for e in tests if e["before"]][: len(after)]
    if not after:
        return None
    matrix = [[*row, *[None] * (len(after) - len(row))] for row in after]
    return {"matrix": matrix, "before": before, **scores(matrix, before)}

"""Trackers: consumers of a run's events that show it in another tool. TRACKERS is a dictionary
you can read."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metasp.errors import UserError, unknown
from metasp.events import Event, TaskFinished, as_record
from metasp.store import RunDir
from metasp.trackers.numbers import heat_map, scalars_of, scores_of, spread_of

TRACKERS = {"tensorboard": "TensorBoard", "mlflow": "MLflow"}


class Tracker(ABC):
    """What a tool must be able to take. Everything is told by step, from the beginning each time
    a run is resumed: a tracker keeps each number once."""

    def __init__(self, run: RunDir, resumed: bool) -> None:
        self.run, self.resumed = run, resumed

    @abstractmethod
    def scalars(self, values: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def histograms(self, values: Mapping[str, Sequence[float]], step: int) -> None: ...

    @abstractmethod
    def figure(self, name: str, figure: Any, step: int) -> None: ...

    @abstractmethod
    def close(self, finished: bool) -> None: ...


@dataclass
class Track:
    """Several trackers that are told the same."""

    trackers: list[Tracker]
    step: int = 0

    def tell(self, record: Mapping[str, Any], influence: Mapping[str, Sequence[Any]]) -> None:
        """One record of the log, and the influences that belong to it."""
        self.step += record["event"] == "StepTaken"
        values, spread = scalars_of(record), spread_of(influence)
        for tracker in self.trackers:
            if values:
                tracker.scalars(values, self.step)
            if spread:
                tracker.histograms(spread, self.step)

    def finish(self, result: Mapping[str, Any]) -> None:
        """The scores of a finished run, and its accuracies as pictures."""
        for tracker in self.trackers:
            tracker.scalars(scores_of(result), self.step)
            for scenario in ("class_il", "task_il"):
                figure = heat_map(result[scenario]["matrix"], scenario)
                tracker.figure(f"{scenario}_matrix", figure, self.step)


def tracked(
    events: Iterator[Event], run: RunDir, kinds: Sequence[type[Tracker]]
) -> Iterator[Event]:
    """The same events, each told to a tracker of each kind. What the run's log held before
    is told first, so that a resumed run goes on in the same track without a gap."""
    track: Track | None = None
    try:
        for event in events:
            if track is None:  # the log is open now, and cut to where the run goes on
                earlier = run.events()[:-1]
                track = Track([kind(run, bool(earlier)) for kind in kinds])
                replay(track, earlier, run)
            columns = event.influence if isinstance(event, TaskFinished) else {}
            track.tell(as_record(event), columns)
            yield event
    finally:
        result = run.result() if track is not None else None
        if track is not None and result is not None:
            track.finish(result)
        for tracker in track.trackers if track is not None else ():
            tracker.close(finished=result is not None)


def replay(track: Track, records: Sequence[Mapping[str, Any]], run: RunDir) -> None:
    stored = run.influence() if records else None
    for record in records:
        columns: Mapping[str, Sequence[Any]] = {}
        if stored is not None and record["event"] == "TaskFinished":
            rows = [row for row, task in enumerate(stored["task"]) if task == record["task"]]
            columns = {name: [column[row] for row in rows] for name, column in stored.items()}
        track.tell(record, columns)


def tracker_kind(name: str) -> type[Tracker]:
    """A tracker by its name, or one sentence on what to install."""
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    try:
        module = importlib.import_module(f"metasp.trackers.{name}")
    except ImportError as error:
        raise UserError(
            f"--track {name} needs packages that are not installed ({error.name or error}): "
            "pip install 'metasp[track]'."
        ) from error
    kind: type[Tracker] = module.Tracker
    return kind

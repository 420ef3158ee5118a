"""Trackers: consumers of a run's events that show it in another tool. TRACKERS is a dictionary
you can read."""

import importlib
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from metasp.errors import UserError, unknown
from metasp.events import Event, TaskFinished, as_record
from metasp.metrics import SCENARIOS
from metasp.store import RunDir
from metasp.trackers.numbers import heat_map, scalars_of, scores_of, spread_of
from metasp.trackers.pictures import pictures_of

TRACKERS = {"tensorboard": "TensorBoard", "mlflow": "MLflow"}


class Lost(UserError):
    """A tool that cannot be reached: one sentence with the remedy."""


class Tracker(ABC):
    """What a tool must be able to take. Everything is told by step, from the beginning each time
    a run is resumed: a tracker keeps each number once."""

    def __init__(self, run: RunDir, resumed: bool) -> None:
        self.run, self.resumed = run, resumed

    @classmethod
    @abstractmethod
    def check(cls, run: RunDir) -> None:
        """Raise Lost if the tool cannot be reached, before anything is trained."""

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
    """Several trackers that are told the same. One that is lost on the way is told nothing more:
    the run goes on without it, and what it missed can be told when the run is resumed or done."""

    trackers: list[Tracker]
    step: int = 0

    def tell(self, record: Mapping[str, Any], influence: Mapping[str, Sequence[Any]]) -> None:
        """One record of the log, and the influences that belong to it."""
        self.step += record["event"] == "StepTaken"
        values, spread = scalars_of(record), spread_of(influence)
        if values:
            self._each(methodcaller("scalars", values, self.step))
        if spread:
            self._each(methodcaller("histograms", spread, self.step))

    def finish(self, run: RunDir, result: Mapping[str, Any]) -> None:
        """The scores of a finished run, and the figures that one run is enough for."""
        scores, figures = scores_of(result), pictures_of(run, result)
        for scenario in SCENARIOS:
            figures[f"{scenario}_matrix"] = heat_map(result[scenario]["matrix"], scenario)
        self._each(methodcaller("scalars", scores, self.step))
        for name, figure in figures.items():
            self._each(methodcaller("figure", name, figure, self.step))

    def close(self, finished: bool) -> None:
        self._each(methodcaller("close", finished))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                tell(tracker)
            except (Lost, OSError) as error:
                self.trackers.remove(tracker)
                name = tracker.__module__.rsplit(".", 1)[-1]
                again = shlex.join(["metasp", "resume", str(tracker.run.path), "--track", name])
                on_stderr(
                    f"{str(error).rstrip('.')}; the run goes on without it, and `{again}` tells it "
                    "the rest."
                )


def on_stderr(words: str) -> None:
    print(f"warning: {words}", file=sys.stderr)


def tracked(
    events: Iterator[Event], run: RunDir, kinds: Sequence[type[Tracker]]
) -> Iterator[Event]:
    """The same events, each told to a tracker of each kind. What the run's log held before
    is told first, so that a resumed run goes on in the same track without a gap. A tool that
    vanishes on the way costs one warning and no work: the run goes on without it."""
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
        if track is not None:
            end(track, run)


def retold(run: RunDir, kinds: Sequence[type[Tracker]]) -> None:
    """Tell a stored run to trackers from beginning to end, as far as they have not got it."""
    track = Track([kind(run, True) for kind in kinds])
    replay(track, run.events(), run)
    end(track, run)


def end(track: Track, run: RunDir) -> None:
    result = run.outcome()
    if result is not None:
        track.finish(run, result)
    track.close(finished=result is not None)


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
            "pip install -e '.[track]' in the clone."
        ) from error
    kind: type[Tracker] = module.Tracker
    return kind

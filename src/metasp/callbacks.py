"""Callbacks over a run's events that show it in TensorBoard or MLflow.

Each is told the whole log from the beginning whenever a run is resumed, and shows each number once.
A tool that vanishes on the way costs one warning and no work: the run goes on without it."""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from metasp.errors import UserError, unknown
from metasp.events import Event, TaskFinished, as_record
from metasp.metrics import METRICS, SCENARIOS
from metasp.store import RunDir

QUANTITIES = ("stability", "plasticity", "fused")
NO_SCALAR = {"event", "task", "epoch", "step", "kind", "seconds"}
Columns = Mapping[str, Sequence[Any]]


class Lost(UserError):
    """A tool that cannot be reached: one sentence with the remedy."""


class Callback(Protocol):
    """Show numbers by name and step."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Show numbers of a step."""

    def histograms(self, values: Mapping[str, Sequence[float]], step: int) -> None:
        """Show how numbers are spread at a step, where the tool can."""

    def close(self, step: int, result: Mapping[str, Any] | None) -> None:
        """End, with the result where the run is finished."""


Make = Callable[[RunDir, bool], Callback]


def callbacks_named(names: Sequence[str], run: RunDir) -> list[Make]:
    """Return what makes the callbacks of these names. Raises one sentence where a package is not
    installed, or a server does not answer."""
    made: list[Make] = []
    for name in dict.fromkeys(names):
        if name not in CALLBACKS:
            raise unknown("tracker", name, CALLBACKS)
        try:
            CALLBACKS[name].check(run)
        except ImportError as error:
            raise UserError(
                f"--track {name} needs packages that are not installed ({error.name or error}): "
                "pip install -e '.[track]' in the clone."
            ) from error
        made.append(CALLBACKS[name])
    return made


class Callbacks:
    """Several callbacks that are shown the same. One that is lost is shown nothing more."""

    def __init__(self, run: RunDir, makes: Sequence[Make], resumed: bool) -> None:
        self.run, self.step = run, 0
        self.callbacks = [make(run, resumed) for make in makes]

    def record(self, record: Mapping[str, Any], influence: Columns) -> None:
        """Show one record of the log, and the influences that belong to it."""
        self.step += record["event"] == "StepTaken"
        if values := scalars_of(record):
            self._each(lambda callback: callback.scalars(values, self.step))
        if spread := spread_of(influence):
            self._each(lambda callback: callback.histograms(spread, self.step))

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Show what the run has stored so far."""
        stored = self.run.influence() if records else None
        for record in records:
            influence: Columns = {}
            if stored is not None and record["event"] == "TaskFinished":
                rows = [row for row, task in enumerate(stored["task"]) if task == record["task"]]
                influence = {name: [column[row] for row in rows] for name, column in stored.items()}
            self.record(record, influence)

    def close(self) -> None:
        """Show the final scores of a finished run, and end."""
        result = self.run.outcome()
        scores = {} if result is None else scores_of(result)
        self._each(lambda callback: callback.scalars(scores, self.step))
        self._each(lambda callback: callback.close(self.step, result))

    def _each(self, show: Callable[[Callback], None]) -> None:
        for callback in list(self.callbacks):
            try:
                show(callback)
            except (Lost, OSError) as error:
                self.callbacks.remove(callback)
                name = type(callback).__name__.lower()
                again = shlex.join(["metasp", "resume", str(self.run.path), "--track", name])
                print(
                    f"warning: {str(error).rstrip('.')}; the run goes on without it, and "
                    f"`{again}` tells it the rest.",
                    file=sys.stderr,
                )


def tracked(events: Iterator[Event], run: RunDir, makes: Sequence[Make]) -> Iterator[Event]:
    """Yield the same events, each shown by every callback. What the log held before is shown first,
    so that a resumed run goes on without a gap."""
    callbacks: Callbacks | None = None
    try:
        for event in events:
            if callbacks is None:  # the log is open now, and cut to where the run goes on
                earlier = run.events()
                callbacks = Callbacks(run, makes, bool(earlier))
                callbacks.log(earlier)
            influence = event.influence if isinstance(event, TaskFinished) else {}
            callbacks.record(as_record(event), influence)
            yield event
    finally:
        if callbacks is not None:
            callbacks.close()


def retold(run: RunDir, makes: Sequence[Make]) -> None:
    """Show a stored run from beginning to end, as far as a tool has not got it."""
    callbacks = Callbacks(run, makes, True)
    callbacks.log(run.events())
    callbacks.close()


def scalars_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of one record of the log: loss, learning rate, gamma and what else a step
    has; the loss on held-out examples; accuracies per task."""
    if record["event"] == "StepTaken":
        return {f"train/{k}": float(v) for k, v in record.items() if k not in NO_SCALAR}
    if record["event"] == "Validated":
        return {"validation/loss": float(record["loss"])}
    values = {}
    for scenario in SCENARIOS if record["event"] == "Evaluated" else ():
        if record["before"]:
            values[f"before/{scenario}"] = float(record[scenario][0])
            continue
        for task, accuracy in zip(record["on"], record[scenario]):
            values[f"{scenario}/task_{task + 1}"] = float(accuracy)
        values[f"{scenario}/mean"] = sum(record[scenario]) / len(record[scenario])
    return values


def scores_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the final scores that are known: every metric of both scenarios."""
    scores: dict[str, float] = {}
    for scenario in SCENARIOS:
        stored = {name: result[scenario][name] for name in METRICS}
        scores |= {f"{scenario}/{k}": float(v) for k, v in stored.items() if v is not None}
    return scores


def spread_of(influence: Columns) -> dict[str, list[float]]:
    """Return the influences of a finished task by quantity, of new examples and of the memory's."""
    spread: dict[str, list[float]] = {}
    for quantity in QUANTITIES:
        pairs = zip(influence.get(quantity, ()), influence.get("source", ()))
        for value, source in pairs:
            spread.setdefault(f"influence/{quantity}_{source}", []).append(value)
    return spread


class TensorBoard:
    """Event files in the run's own folder `tensorboard`."""

    @staticmethod
    def check(run: RunDir) -> None:
        """Raise ImportError where TensorBoard is not installed."""
        import torch.utils.tensorboard  # noqa: F401

    def __init__(self, run: RunDir, resumed: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier process wrote is replaced: some of it may be lost, if it was killed.
        folder = run.path / "tensorboard"
        purge = 0 if folder.exists() else None
        wait_for_a_later_name(folder)
        self.run = run
        self.writer: Any = SummaryWriter(str(folder), purge_step=purge)  # type: ignore[no-untyped-call]

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def histograms(self, values: Mapping[str, Sequence[float]], step: int) -> None:
        for name, column in values.items():
            self.writer.add_histogram(name, np.asarray(column), step)

    def close(self, step: int, result: Mapping[str, Any] | None) -> None:
        """Add the figures that one run is enough for, where it is finished."""
        from metasp.reports.figures import FIGURES, draw
        from metasp.reports.groups import group
        from metasp.reports.runs import record_of

        groups = [] if result is None else group([record_of(self.run.path, result)])
        for name, kind in FIGURES.items() if groups else ():
            for drawing in draw(kind, groups):
                self.writer.add_figure(name, drawing.figure, step)
        self.writer.close()


def wait_for_a_later_name(folder: Path) -> None:
    """TensorBoard reads event files by name, and a name begins with the second it was made in: a
    file of the same second could come before the one it replaces."""
    while any(f".{int(time.time())}." in path.name for path in folder.glob("events.*")):
        time.sleep(0.02)


class MLflow:
    """One run of its own for each run, on the server that MLFLOW_TRACKING_URI names, or in
    `mlflow.db` beside the runs. A server that does not answer is noticed before training begins."""

    EXPERIMENT = "metasp"
    AT_ONCE = 500  # metrics in one message
    LONGEST = 500  # characters of a parameter: there may be thousands of corrections
    NAME = "metasp.run"  # the tag by which a run is recognised
    # MLflow's own defaults make a run wait some four minutes for each message to a lost server.
    ENVIRONMENT: Mapping[str, str] = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    }

    @classmethod
    def check(cls, run: RunDir) -> None:
        """Raise Lost where the server does not answer."""
        where, client = cls.client_of(run)
        if not where.startswith("sqlite:"):  # a file of ours is made when the run begins
            with reaching(where):
                client.get_experiment_by_name(cls.EXPERIMENT)

    @classmethod
    def client_of(cls, run: RunDir) -> tuple[str, Any]:
        """Return where a run is tracked, and MLflow's client for that."""
        import logging

        for name, value in cls.ENVIRONMENT.items():  # read when MLflow is imported
            os.environ.setdefault(name, value)
        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        from mlflow.tracking import MlflowClient

        where = address_of(run)
        with reaching(where):
            return where, MlflowClient(tracking_uri=where)

    def __init__(self, run: RunDir, resumed: bool) -> None:
        self.run = run
        self.where, self.client = self.client_of(run)
        self.waiting: list[Any] = []
        self.steps: dict[str, set[int]] = {}  # the steps of each metric that the tool already has
        with reaching(self.where):
            earlier = self._earlier(resumed)
            self.id = earlier or self._start()
            for name in self.client.get_run(self.id).data.metrics if earlier else ():
                history = self.client.get_metric_history(self.id, name)
                self.steps[name] = {metric.step for metric in history}

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        for name, value in values.items():
            if step not in self.steps.setdefault(name, set()):
                self.steps[name].add(step)
                self.waiting.append(Metric(name, value, now, step))
        if len(self.waiting) >= self.AT_ONCE:
            self._send()

    def histograms(self, values: Mapping[str, Sequence[float]], step: int) -> None:
        """Do nothing: MLflow has no histograms."""

    def close(self, step: int, result: Mapping[str, Any] | None) -> None:
        self._send()
        with reaching(self.where):
            self.client.set_terminated(self.id, "KILLED" if result is None else "FINISHED")

    def _send(self) -> None:
        with reaching(self.where):
            for start in range(0, len(self.waiting), self.AT_ONCE):
                part = self.waiting[start : start + self.AT_ONCE]
                self.client.log_batch(self.id, metrics=part)
        self.waiting = []

    def _start(self) -> str:
        from mlflow.entities import Param

        spec, name = self.run.spec(), self.run.path.name
        tags = {self.NAME: name, "metasp.digest": spec.digest}
        made = self.client.create_run(self._experiment(), run_name=name, tags=tags)
        params = [Param(key, str(value)[: self.LONGEST]) for key, value in spec.flat().items()]
        self.client.log_batch(made.info.run_id, params=params)
        return str(made.info.run_id)

    def _experiment(self) -> str:
        stored = self.client.get_experiment_by_name(self.EXPERIMENT)
        if stored is not None:
            return str(stored.experiment_id)
        return str(self.client.create_experiment(self.EXPERIMENT))

    def _earlier(self, resumed: bool) -> str | None:
        """Return the run that was tracked before, to go on with it: also one that was killed before
        its first checkpoint, and so begins anew. A run made again (--force) is a new one."""
        tag = f"tags.`{self.NAME}` = '{self.run.path.name}'"
        stored = self.client.search_runs([self._experiment()], tag, max_results=1)
        if not stored or (not resumed and stored[0].info.status == "FINISHED"):
            return None
        self.client.update_run(stored[0].info.run_id, status="RUNNING")
        return str(stored[0].info.run_id)


def address_of(run: RunDir) -> str:
    """Return the server, or the file beside the runs, as an address: there a ? begins something
    else."""
    file = str(run.path.resolve().parent / "mlflow.db")
    beside = f"sqlite:///{file.replace('%', '%25').replace('?', '%3F')}"
    return os.environ.get("MLFLOW_TRACKING_URI") or beside


@contextlib.contextmanager
def reaching(where: str) -> Iterator[None]:
    """Turn a server or file that does not answer into one sentence."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise Lost(
            f"MLflow does not answer at {where} ({reason}): start it there, set "
            "MLFLOW_TRACKING_URI to where it is, or leave out --track mlflow."
        ) from error


CALLBACKS: dict[str, type[TensorBoard] | type[MLflow]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
}

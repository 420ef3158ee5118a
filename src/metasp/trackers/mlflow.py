"""MLflow: one run of its own for each run, on the server that MLFLOW_TRACKING_URI names, or in
`mlflow.db` beside the runs.

A server that does not answer is found before training begins. One that vanishes in the middle is
given up after a few seconds (see RETRIES): the run goes on, and `metasp resume RUN --track mlflow`
tells the server what it missed, whether the run is finished by then or not."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

# Its own defaults make a run wait some four minutes for each message to a server that is gone.
RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
# Before the import: neither news of its tables nor reports to its makers.
for _name, _value in {"MLFLOW_DISABLE_TELEMETRY": "true", **RETRIES}.items():
    os.environ.setdefault(_name, _value)
for _noisy in ("mlflow", "alembic"):
    logging.getLogger(_noisy).setLevel(logging.WARNING)

import numpy as np  # noqa: E402
from mlflow.entities import Metric, Param  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.tracking import MlflowClient  # noqa: E402
from sqlalchemy.exc import SQLAlchemyError  # noqa: E402

from metasp import trackers  # noqa: E402
from metasp.store import RunDir  # noqa: E402

EXPERIMENT = "metasp"
AT_ONCE = 500  # metrics in one message
NAME = "metasp.run"  # the tag that finds a run again
QUANTILES = (5, 25, 50, 75, 95)


@final
class Tracker(trackers.Tracker):
    @classmethod
    def check(cls, run: RunDir) -> None:
        where = place_of(run)
        if where.startswith("sqlite:"):
            return  # a file of ours, made when the run begins
        with reaching(where):
            MlflowClient(tracking_uri=where).get_experiment_by_name(EXPERIMENT)

    def __init__(self, run: RunDir, resumed: bool) -> None:
        super().__init__(run, resumed)
        folder = run.path.resolve().parent
        self.where = place_of(run)
        self.waiting: list[Metric] = []
        with reaching(self.where):
            self.client = MlflowClient(tracking_uri=self.where)
            found = self._find(folder)
            self.id = found or self._start(folder)
            self.known: dict[str, set[int]] = self._told() if found else {}

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        for name, value in values.items():
            if step not in self.known.setdefault(name, set()):
                self.known[name].add(step)
                self.waiting.append(Metric(name, value, now, step))
        if len(self.waiting) >= AT_ONCE:
            self._send()

    def histograms(self, values: Mapping[str, Sequence[float]], step: int) -> None:
        """MLflow has no histograms: quantiles as metrics, and a picture of each."""
        from matplotlib.figure import Figure

        for name, column in values.items():
            found = np.percentile(np.asarray(column), QUANTILES)
            self.scalars({f"{name}_p{q}": float(v) for q, v in zip(QUANTILES, found)}, step)
            figure = Figure(figsize=(5, 3), layout="constrained")
            axes = figure.subplots()
            axes.hist(column, bins=40)
            axes.set(xlabel=f"{name} (negative is helpful)", ylabel="examples")
            self.figure(f"{name}_{step:08d}", figure, step)

    def figure(self, name: str, figure: Any, step: int) -> None:
        with reaching(self.where):
            self.client.log_figure(self.id, figure, f"figures/{name}.png")

    def close(self, finished: bool) -> None:
        self._send()
        with reaching(self.where):
            self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")

    def _send(self) -> None:
        with reaching(self.where):
            for start in range(0, len(self.waiting), AT_ONCE):
                self.client.log_batch(self.id, metrics=self.waiting[start : start + AT_ONCE])
        self.waiting = []

    def _start(self, folder: Any) -> str:
        spec = self.run.spec()
        tags = {NAME: self.run.path.name, "metasp.digest": spec.digest}
        made = self.client.create_run(
            self._experiment(folder), run_name=self.run.path.name, tags=tags
        )
        values: dict[str, Any] = spec.as_dict()
        for name in vars(spec.corrections):  # may be thousands: how many there are
            if name in values:
                values[name] = len(values[name])
        values |= {f"settings.{key}": value for key, value in values.pop("settings").items()}
        params = [Param(key, str(value)) for key, value in values.items()]
        self.client.log_batch(made.info.run_id, params=params)
        return str(made.info.run_id)

    def _experiment(self, folder: Any) -> str:
        found = self.client.get_experiment_by_name(EXPERIMENT)
        if found is not None:
            return str(found.experiment_id)
        local = not os.environ.get("MLFLOW_TRACKING_URI")
        place = (folder / "mlflow-artifacts").as_uri() if local else None
        return str(self.client.create_experiment(EXPERIMENT, artifact_location=place))

    def _find(self, folder: Any) -> str | None:
        """The run that was tracked before, to go on with it: also one that was killed before its
        first checkpoint, and so begins anew. A run made again (--force) is a new one."""
        found = self.client.search_runs(
            [self._experiment(folder)], f"tags.`{NAME}` = '{self.run.path.name}'", max_results=1
        )
        if not found or (not self.resumed and found[0].info.status == "FINISHED"):
            return None
        self.client.update_run(found[0].info.run_id, status="RUNNING")
        return str(found[0].info.run_id)

    def _told(self) -> dict[str, set[int]]:
        """The steps of each metric that the tool already has."""
        metrics = self.client.get_run(self.id).data.metrics
        return {
            name: {metric.step for metric in self.client.get_metric_history(self.id, name)}
            for name in metrics
        }


def place_of(run: RunDir) -> str:
    """The server, or the file beside the runs, as an address: there a ? begins something else."""
    file = str(run.path.resolve().parent / "mlflow.db")
    own = f"sqlite:///{file.replace('%', '%25').replace('?', '%3F')}"
    return os.environ.get("MLFLOW_TRACKING_URI") or own


@contextlib.contextmanager
def reaching(where: str) -> Iterator[None]:
    """Turn a server or file that does not answer into one sentence."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise trackers.Lost(
            f"MLflow does not answer at {where} ({reason}): start it there, set "
            "MLFLOW_TRACKING_URI to where it is, or leave out --track mlflow."
        ) from error

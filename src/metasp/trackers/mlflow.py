"""MLflow: one run of its own for each run, on the server that MLFLOW_TRACKING_URI names, or in
`mlflow.db` beside the runs."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

# Before the import: neither news of its tables nor reports to its makers.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
for _noisy in ("mlflow", "alembic"):
    logging.getLogger(_noisy).setLevel(logging.WARNING)

import numpy as np  # noqa: E402
from mlflow.entities import Metric, Param  # noqa: E402
from mlflow.tracking import MlflowClient  # noqa: E402

from metasp import trackers  # noqa: E402
from metasp.store import RunDir  # noqa: E402

EXPERIMENT = "metasp"
AT_ONCE = 500  # metrics in one message
NAME = "metasp.run"  # the tag that finds a run again
QUANTILES = (5, 25, 50, 75, 95)


@final
class Tracker(trackers.Tracker):
    def __init__(self, run: RunDir, resumed: bool) -> None:
        super().__init__(run, resumed)
        folder = run.path.resolve().parent
        where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        self.client = MlflowClient(tracking_uri=where)
        found = self._find(folder) if resumed else None
        self.id = found or self._start(folder)
        self.known: dict[str, set[int]] = self._told() if found else {}
        self.waiting: list[Metric] = []

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
        self.client.log_figure(self.id, figure, f"figures/{name}.png")

    def close(self, finished: bool) -> None:
        self._send()
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")

    def _send(self) -> None:
        for start in range(0, len(self.waiting), AT_ONCE):
            self.client.log_batch(self.id, metrics=self.waiting[start : start + AT_ONCE])
        self.waiting = []

    def _start(self, folder: Any) -> str:
        spec = self.run.spec()
        tags = {NAME: self.run.path.name, "metasp.digest": spec.digest}
        made = self.client.create_run(
            self._experiment(folder), run_name=self.run.path.name, tags=tags
        )
        values = spec.as_dict()
        values |= {f"settings.{key}": value for key, value in values.pop("settings").items()}
        params = [Param(key, str(value)) for key, value in values.items()]
        self.client.log_batch(made.info.run_id, params=params)
        return str(made.info.run_id)

    def _experiment(self, folder: Any) -> str:
        found = self.client.get_experiment_by_name(EXPERIMENT)
        if found is not None:
            return str(found.experiment_id)
        local = "MLFLOW_TRACKING_URI" not in os.environ
        place = (folder / "mlflow-artifacts").as_uri() if local else None
        return str(self.client.create_experiment(EXPERIMENT, artifact_location=place))

    def _find(self, folder: Any) -> str | None:
        """The run that was tracked before, to go on with it."""
        found = self.client.search_runs(
            [self._experiment(folder)], f"tags.`{NAME}` = '{self.run.path.name}'", max_results=1
        )
        if not found:
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

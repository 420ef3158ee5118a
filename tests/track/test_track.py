"""Trackers, by reading back what the real libraries wrote."""

import io
import json

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from PIL import Image
from sqlalchemy import make_url
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from metasp.callbacks import address_of, callbacks_named, tracked
from metasp.cli import main
from metasp.errors import UserError
from metasp.experiment import Interrupted
from metasp.store import RunDir
from tests.helpers import finish

METHOD = {"method": "metasp", "memory": 30, "limit_per_class": 20, "epochs": 2}


def follow(experiment, tool) -> None:
    run = experiment.directory
    for _ in tracked(experiment.events(), run, callbacks_named([tool], run)):
        pass


def expected(directory) -> dict[str, list[tuple[int, float]]]:
    """What the log says, made with no help of the trackers: name to (step, value) pairs."""
    wanted: dict[str, list[tuple[int, float]]] = {}
    step = 0
    for record in directory.events():
        if record["event"] == "StepTaken":
            step += 1
            for name in ("loss", "lr", "gamma"):
                if name in record:
                    wanted.setdefault(f"train/{name}", []).append((step, record[name]))
        elif record["event"] == "Evaluated" and not record["before"]:
            for task, value in zip(record["on"], record["class_il"]):
                wanted.setdefault(f"class_il/task_{task + 1}", []).append((step, value))
    return wanted


def in_tensorboard(directory) -> EventAccumulator:
    found = EventAccumulator(str(directory.path / "tensorboard"), {"scalars": 0, "histograms": 0})
    return found.Reload()


def in_mlflow(directory) -> tuple[MlflowClient, list]:
    client = MlflowClient(tracking_uri=f"sqlite:///{directory.path.parent / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "metasp"]
    return client, list(client.search_runs([experiment.experiment_id]))


def stopped_then_resumed(tiny, tool) -> object:
    """Stopped by the process (its writer closed), continued, killed without a word, continued."""
    for steps in (6, 11):
        taken = iter(range(10**6))
        experiment = tiny(options={"checkpoint_seconds": 0.0}, **METHOD)
        experiment.stop = lambda taken=taken, steps=steps: next(taken) >= steps
        with pytest.raises(Interrupted):
            follow(experiment, tool)
    untracked = tiny(options={"checkpoint_seconds": 0.0}, **METHOD)
    taken = iter(range(10**6))
    untracked.stop = lambda: next(taken) >= 4  # steps that no tracker was told of
    with pytest.raises(Interrupted):
        finish(untracked)
    last = tiny(**METHOD)
    follow(last, tool)
    return last.directory


def test_tensorboard_holds_the_run_once_though_it_was_stopped(tiny):
    directory = stopped_then_resumed(tiny, "tensorboard")
    found = in_tensorboard(directory)
    wanted = expected(directory)
    assert len(wanted["train/loss"]) == 20
    assert wanted["train/gamma"]
    for name, points in wanted.items():
        own = [(event.step, event.value) for event in found.Scalars(name)]
        assert [step for step, _ in own] == [step for step, _ in points], name
        assert [v for _, v in own] == pytest.approx([v for _, v in points], rel=1e-6), name
    influence = directory.influence()
    for quantity in ("stability", "plasticity", "fused"):
        for source in ("new", "memory"):
            events = found.Histograms(f"influence/{quantity}_{source}")
            assert len(events) == 4  # all tasks but the first
            counts = [
                sum(
                    t == task and s == source
                    for t, s in zip(influence["task"], influence["source"])
                )
                for task in (1, 2, 3, 4)
            ]
            assert [event.histogram_value.num for event in events] == counts
    for name in ("accuracy", "matrix", "influence-counts", "influence-histogram"):
        (image,) = found.Images(name)
        shown = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
        assert shown.std() > 10, name  # something is drawn
    result = directory.result()
    assert found.Scalars("class_il/A_inf")[0].value == pytest.approx(result["class_il"]["A_inf"])


@pytest.mark.slow
def test_mlflow_holds_the_run_once_though_it_was_stopped(tiny, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    directory = stopped_then_resumed(tiny, "mlflow")
    client, runs = in_mlflow(directory)
    (run,) = runs
    assert run.info.run_name == directory.path.name
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "metasp"
    assert run.data.params["method.pseudo_steps"] == "1"
    for name, points in expected(directory).items():
        history = client.get_metric_history(run.info.run_id, name)
        own = sorted((metric.step, metric.value) for metric in history)
        assert [step for step, _ in own] == [step for step, _ in points], name
        assert [v for _, v in own] == pytest.approx([v for _, v in points]), name


@pytest.mark.slow
def test_on_the_command_line_both_at_once(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    flags = ["--method", "er", "--epochs", "1", "--limit-per-class", "10", "--threads", "1",
             "--memory", "20", "--runs", str(tmp_path)]  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        main(["run", *flags, "--track", "tensorboard", "--track", "mlflow", "--json",
              "--track", "tensorboard"])  # fmt: skip
    assert stop.value.code == 0
    (path,) = tmp_path.glob("*/result.json")
    assert json.loads(capsys.readouterr().out)["run"] == str(path.parent)
    steps = [event.step for event in in_tensorboard(RunDir(path.parent)).Scalars("train/loss")]
    assert steps == sorted({*steps})  # each once, though it was asked for twice
    assert len(in_mlflow(RunDir(path.parent))[1]) == 1


def test_a_tracker_that_is_not_there(tmp_path, capsys):
    with pytest.raises(UserError, match="did you mean 'tensorboard'"):
        callbacks_named(["tensorbord"], RunDir(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["run", "--track", "wandb", "--runs", str(tmp_path)])
    assert stop.value.code == 2
    assert "unknown tracker 'wandb'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_mlflow_beside_runs_in_a_folder_of_any_name(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = RunDir(tmp_path / "what? 100%41" / "run")
    file = make_url(address_of(run)).database
    assert file == str(tmp_path / "what? 100%41" / "mlflow.db")

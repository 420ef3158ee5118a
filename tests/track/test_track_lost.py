"""Trackers when something dies: the process that trains, or the server that is told."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from metasp.callbacks import TensorBoard, callbacks_named, tracked
from metasp.cli import main
from metasp.store import RunDir
from tests.helpers import ROOT, assert_same_run, finish
from tests.track.test_track import expected, in_mlflow, in_tensorboard

FLAGS = ["--method", "metasp", "--epochs", "3", "--limit-per-class", "40", "--memory", "30",
         "--threads", "1", "--checkpoint-seconds", "0.2"]  # fmt: skip
BOTH = ["--track", "mlflow", "--track", "tensorboard"]


def killed_when(arguments: list[str], ripe) -> None:
    """Start the command line in a process of its own, and kill it once `ripe()` holds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-m", "metasp", *arguments], env=environment, stdout=subprocess.DEVNULL
    ) as run:
        until = time.monotonic() + 300
        while run.poll() is None and not ripe() and time.monotonic() < until:
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, "it was over before it could be killed"


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main([*arguments])
    return int(stop.value.code or 0)


@pytest.mark.slow
def test_killed_twice_and_resumed_it_is_one_track(tmp_path, monkeypatch):
    """SIGKILL before anything is stored, SIGKILL in the middle, then to the end: each tool has
    every step once, in one run."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = ["run", *FLAGS, "--runs", str(tmp_path)]
    killed_when([*run, *BOTH], lambda: list(tmp_path.glob("*/tensorboard/*")))
    (path,) = tmp_path.glob("*-metasp-*")
    assert len(in_mlflow(RunDir(path))[1]) == 1
    killed_when([*run, *BOTH], (path / "memory" / "task-001.parquet").exists)
    assert RunDir(path).result() is None
    assert command("resume", str(path), *BOTH, "--json") == 0
    directory = RunDir(path)
    wanted = expected(directory)
    steps = [step for step, _ in wanted["train/loss"]]
    assert steps == [*range(1, len(steps) + 1)]
    board = in_tensorboard(directory)
    client, (stored,) = in_mlflow(directory)
    assert stored.info.status == "FINISHED"
    for name, points in wanted.items():
        shown = [(event.step, event.value) for event in board.Scalars(name)]
        history = client.get_metric_history(stored.info.run_id, name)
        for own in (shown, sorted((metric.step, metric.value) for metric in history)):
            assert [step for step, _ in own] == [step for step, _ in points], name
            assert [v for _, v in own] == pytest.approx([v for _, v in points], rel=1e-6), name


def test_a_run_taken_up_within_the_same_second_replaces_what_was_told(tmp_path):
    """Files are read by name, a name holds the second: the file of a killed process, cut within a
    record, would come after the one that replaces it."""
    run = RunDir(tmp_path)
    killed = TensorBoard(run, False)
    for step in (1, 2, 3):
        killed.scalars({"train/loss": 9.0}, step)
    killed.close(0, None)
    (path,) = (tmp_path / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    *start, second, _ = path.name.split(".", 4)
    path.rename(path.with_name(".".join([*start, second, "zzz.1.0"])))
    resumed = TensorBoard(run, True)
    for step in range(1, 6):
        resumed.scalars({"train/loss": 1.0}, step)
    resumed.close(0, None)
    shown = in_tensorboard(run).Scalars("train/loss")
    assert [(event.step, event.value) for event in shown] == [(n, 1.0) for n in range(1, 6)]


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_server_that_is_not_there_is_found_before_training(tmp_path, capsys, monkeypatch):
    where = f"http://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    assert command("run", *FLAGS, "--runs", str(tmp_path), "--track", "mlflow") == 2
    words = capsys.readouterr().err
    assert f"MLflow does not answer at {where}" in words
    assert "set MLFLOW_TRACKING_URI" in words
    assert len(words.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


class Server(BaseHTTPRequestHandler):
    """As much of MLflow's interface as one run needs, since the real server is not installed with
    the client; `told` keeps the metrics by (name, step)."""

    told: dict[tuple[str, int], float]
    runs: list[dict]

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        call = self.path.split("?")[0].rsplit("/mlflow/", 1)[-1]
        run = {"info": {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING",
                        "artifact_uri": "file:///nowhere"}, "data": {}}  # fmt: skip
        answers = {
            "experiments/get-by-name": {"experiment": {"experiment_id": "1", "name": "metasp"}},
            "runs/create": {"run": run},
            "runs/search": {"runs": self.runs},
            "runs/get": {"run": run},
            "runs/update": {"run_info": run["info"]},
        }
        if call == "runs/create":
            self.runs.append(run)
        for metric in body.get("metrics", ()):
            self.told[metric["key"], int(metric.get("step", 0))] = metric["value"]
        content = json.dumps(answers.get(call, {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.mark.slow
def test_a_server_that_vanishes_costs_no_work(tiny, capsys, monkeypatch):
    Server.told, Server.runs = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setattr("metasp.callbacks.MLflow.AT_ONCE", 10)
    experiment = tiny("lost", method="er", epochs=2)
    makes = callbacks_named(["mlflow"], experiment.directory)
    steps = 0
    for event in tracked(experiment.events(), experiment.directory, makes):
        steps += type(event).__name__ == "StepTaken"
        if steps == 8 and Server.told:
            server.shutdown()
            server.server_close()
            steps += 10**6  # once
    words = capsys.readouterr().err.strip()
    assert words.startswith("warning: MLflow does not answer at http://127.0.0.1:")
    assert f"metasp resume {experiment.directory.path} --track mlflow" in words
    assert len(words.splitlines()) == 1
    assert_same_run(experiment.directory, finish(tiny("untracked", method="er", epochs=2)))
    every = sum(len(points) for points in expected(experiment.directory).values())
    assert 0 < len(Server.told) < every


@pytest.mark.slow
def test_a_finished_run_can_be_told_afterwards(tiny, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    directory = finish(tiny(method="er"))
    for _ in range(2):  # and once only
        assert command("resume", str(directory.path), *BOTH, "--json") == 0
    wanted = expected(directory)["train/loss"]
    shown = in_tensorboard(directory).Scalars("train/loss")
    client, (stored,) = in_mlflow(directory)
    history = client.get_metric_history(stored.info.run_id, "train/loss")
    assert [event.step for event in shown] == [step for step, _ in wanted]
    assert sorted(metric.step for metric in history) == [step for step, _ in wanted]
    assert stored.info.status == "FINISHED"

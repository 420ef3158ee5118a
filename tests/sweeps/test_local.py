"""Sweeps as real processes: killed, interrupted, failing, and always the same results."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from metasp.experiment import prepare
from metasp.spec import RunSpec
from metasp.store import runs_in
from metasp.sweeps import local
from metasp.sweeps.grid import expand, read_sweep
from metasp.sweeps.jobs import Job, Update, jobs_of
from metasp.sweeps.local import Child, Local, last_update

SOURCE = Path(__file__).parents[2] / "src"
SWEEP = """
threads = 1
width = 4
limit_per_class = 60
memory = 40
epochs = {epochs}
[grid]
method = ["er", "finetune"]
"""
FAILING = SWEEP.replace('"finetune"', '{{ method = "er", lr = 1e18 }}')


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from metasp.cli import main; main()", "sweep", *arguments]


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        command(*arguments),
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def results(folder: Path) -> dict:
    """What each run came to, without the times."""
    return {
        run.path.name: {key: run.result()[key] for key in ("spec", "class_il", "task_il")}
        for run in runs_in(folder)
        if run.result()
    }


def plain(specs, folder: Path) -> dict:
    """The same specs, run one by one in this process."""
    for spec in specs:
        for _ in prepare(spec, folder).events():
            pass
    return results(folder)


def wait_for(question, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not question():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def checkpoints(folder: Path) -> set[Path]:
    return {path.parent.parent for path in folder.glob("*/checkpoint/*.safetensors")}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs_of(pid: int) -> list[int]:
    """The processes that the forkserver of a sweep has forked."""
    return [run for child in children_of(pid) for run in children_of(child)]


@pytest.fixture
def sweep(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP.format(epochs=12))
    return file


@pytest.mark.slow
def test_killed_and_started_again_it_comes_to_the_same_results(sweep, tmp_path):
    runs = tmp_path / "runs"
    options = (str(sweep), "--runs", str(runs), "--jobs", "2", "--checkpoint-seconds", "0.1")
    process = start(*options)
    wait_for(lambda: len(checkpoints(runs)) == 2)
    children = [int((path / "lock").read_text()) for path in checkpoints(runs)]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(alive(pid) for pid in children), 20)
    assert not results(runs), "the sweep was over before it was killed: give it more to do"
    code, out, err = run(*options, "--json")
    assert code == 0, err
    assert json.loads(out)["done"] == 2
    assert results(runs) == plain(expand(read_sweep(str(sweep))), tmp_path / "plain")
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}
    code, out, _ = run(*options)
    assert code == 0
    assert "started" not in out
    assert before == {path: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}


@pytest.mark.slow
def test_one_failing_run_does_not_stop_the_others(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(FAILING.format(epochs=1))
    code, out, err = run(str(file), "--runs", str(tmp_path / "runs"), "--json")
    assert code == 1
    summary = json.loads(out)
    assert (summary["done"], summary["failed"]) == (1, 1)
    (failed,) = [entry for entry in summary["runs"] if entry["state"] == "failed"]
    assert "NaN or infinite" in failed["reason"]
    assert "Traceback" not in err


@pytest.mark.slow
def test_ctrl_c_stores_a_checkpoint_of_every_run_and_says_how_to_go_on(tmp_path):
    sweep, runs = tmp_path / "sweep.toml", tmp_path / "runs"
    sweep.write_text(SWEEP.format(epochs=100))
    process = start(str(sweep), "--runs", str(runs), "--jobs", "2", "--checkpoint-seconds", "900")
    wait_for(lambda: len(list(runs.glob("*/lock"))) == 2)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    again = out.split("continue with: ")[1].split("\n")[0]
    given = ["--jobs", "2", "--runs", str(runs), "--checkpoint-seconds", "900.0"]
    assert shlex.split(again) == ["metasp", "sweep", str(sweep), *given]
    assert len(checkpoints(runs)) == 2


@pytest.mark.slow
def test_a_child_that_is_killed_is_a_failure_and_the_next_sweep_completes_it(sweep, tmp_path):
    runs = tmp_path / "runs"
    options = (str(sweep), "--runs", str(runs), "--jobs", "1", "--checkpoint-seconds", "0.1")
    process = start(*options, "--json")
    wait_for(lambda: checkpoints(runs))
    (first,) = checkpoints(runs)
    os.kill(int((first / "lock").read_text()), signal.SIGKILL)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    states = {Path(entry["run"]).name: entry for entry in json.loads(out)["runs"]}
    assert states[first.name]["state"] == "failed"
    assert "SIGKILL" in states[first.name]["reason"]
    code, _, _ = run(*options)
    assert code == 0
    assert len(results(runs)) == 2


def test_without_ray_one_sentence_says_what_to_install(sweep, tmp_path, monkeypatch, capsys):
    from metasp.cli import main

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "metasp.sweeps.on_ray", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(sweep), "--runs", str(tmp_path / "runs"), "--on", "ray"])
    assert ended.value.code == 2
    assert "pip install -e '.[cluster]'" in capsys.readouterr().err


def specs(count, **more):
    common = {"limit_per_class": 30, "memory": 20, "epochs": 1, **more}
    return [RunSpec(seed=seed, **common) for seed in range(count)]


def told(folder, given):
    """The log of each run, without its times, after a sweep of one at a time."""
    jobs = jobs_of(given, folder, None)
    assert [update.state for update in Local(jobs=1).run(jobs, lambda: False)][-1] == "done"
    logs = {}
    for job in jobs:
        lines = (job.path / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        logs[job.name] = [{k: v for k, v in e.items() if k != "seconds"} for e in events]
    return logs


@pytest.mark.slow
def test_a_forked_run_has_the_bits_of_a_fresh_process(tmp_path, monkeypatch):
    given = specs(2, method="metasp-rehsel", backbone="convnet", width=8, threads=2)
    forked = told(tmp_path / "forked", given)
    monkeypatch.setattr(local.sys, "platform", "another")
    assert forked == told(tmp_path / "fresh", given)
    assert all(len(log) > 20 for log in forked.values())


@pytest.mark.slow
def test_a_mistake_of_ours_is_one_line_for_the_table_and_a_whole_trace_for_the_log(tmp_path):
    (job,) = jobs_of(specs(1, method="er"), tmp_path, None)
    (*_, last) = Local(jobs=1, checkpoint_seconds=None).run([job], lambda: False)
    log = tmp_path / f"{job.name}.failed.log"
    assert last.state == "failed"
    assert last.note.startswith("TypeError: ")
    assert last.note.endswith(f"; see {log}")
    assert "Traceback" in log.read_text()


@pytest.mark.slow
def test_a_run_whose_name_changed_under_the_sweep_says_so(tmp_path):
    """As after an update of metasp: the sweep knows it by the name of before."""
    (job,) = jobs_of(specs(1, method="er"), tmp_path, None)
    before = Job(job.spec, tmp_path / "as-before", "new")
    (*_, last) = Local(jobs=1).run([before], lambda: False)
    assert (last.name, last.state) == ("as-before", "failed")
    assert "start the same command again" in last.note
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("code", [0, 1])
def test_a_trace_that_cannot_be_stored_does_not_end_the_sweep(tmp_path, code):
    (tmp_path / "runs" / "a-run.failed.log").mkdir(parents=True)  # where the trace would go
    (tmp_path / "printed").write_text("it broke")
    process = SimpleNamespace(join=lambda: None, exitcode=code)
    job = Job(RunSpec(), tmp_path / "runs" / "a-run", "new")
    last = Update("a-run", "done") if code == 0 else None
    updates = SimpleNamespace(close=lambda: None)
    last = last_update(Child(job, process, updates, tmp_path / "printed", last))
    assert last.state == ("done" if code == 0 else "failed")
    if code:
        assert last.note.startswith("it broke; its trace could not be stored in ")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a-run.failed.log"]

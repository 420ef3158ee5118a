import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from metasp.errors import UserError
from metasp.events import TaskFinished
from metasp.experiment import Interrupted
from metasp.metrics import SCENARIOS
from metasp.reports.runs import gather
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store.manifest import read_manifest
from tests.helpers import assert_same_run, finish, list_anew, metasp


def interrupted(experiment, steps):
    """Stop after the given number of steps, as Ctrl-C does."""
    count = iter(range(10**9))
    experiment.stop = lambda: next(count) >= steps
    with pytest.raises(Interrupted):
        finish(experiment)
    return experiment.directory


def test_what_a_run_leaves(tiny):
    run = finish(tiny(method="metasp-rehsel"))
    names = {path.name for path in run.path.iterdir()}
    files = {"spec.toml", "result.json", "events.jsonl", "influence.parquet", "lock"}
    files.add("manifest.json")
    assert names == {*files, "memory", "scores", "checkpoint"}
    assert run.path.name.endswith(run.spec().digest)
    assert len(list((run.path / "memory").glob("*.parquet"))) == 5
    assert len(list((run.path / "scores").glob("*.parquet"))) == 5
    assert len(list((run.path / "checkpoint").iterdir())) == 2
    result = run.result()
    for scenario in ("class_il", "task_il"):
        assert set(result[scenario]) == {"matrix", "before", "A_1", "A_inf", "A_m", "BWT", "S", "P"}
    assert result["seconds"]["steps"] == {"finetune": 3, "influence": 4 * 3}


def test_a_finished_run_is_not_run_again(tiny):
    run = finish(tiny())
    stamp = (run.path / "result.json").stat().st_mtime_ns
    again = tiny()
    assert again.finished
    assert (run.path / "result.json").stat().st_mtime_ns == stamp
    assert not tiny(options={"force": True}).finished


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tiny, damaged):
    """With both damaged the run begins at the start."""
    run = interrupted(tiny("damaged", {"checkpoint_seconds": 0.0}), 7)
    paths = sorted((run.path / "checkpoint").iterdir(), reverse=True)[:damaged]
    for path, content in zip(paths, (path.read_bytes() for path in paths)):
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    again = tiny("damaged")
    finish(again)
    assert again.warnings == [f"{path} is damaged, not used." for path in paths]
    assert_same_run(again.directory, finish(tiny("whole")))


def test_a_changed_spec_is_refused(tiny):
    run = interrupted(tiny(), 3)
    path = run.path / "spec.toml"
    path.write_text(path.read_text().replace("epochs = 1", "epochs = 2"))
    done = metasp("resume", run.path)
    assert done.returncode == 2
    assert "was changed after the run started" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_renamed_run_resumes_and_reports_under_its_new_name(tiny):
    whole = finish(tiny("whole"))
    run = interrupted(tiny("cut"), 3)
    renamed = run.path.rename(run.path.with_name("my favourite"))
    done = metasp("resume", renamed)
    assert done.returncode == 0, done.stderr
    assert_same_run(whole, RunDir(renamed))
    assert [path.name for path in renamed.parent.iterdir()] == ["my favourite"]
    (record,) = gather([renamed.parent]).records
    assert record.source == renamed


@pytest.mark.slow
def test_two_processes_never_write_one_run(tiny):
    experiment = tiny()
    events = experiment.events()
    next(events)
    done = metasp("resume", experiment.directory.path)
    assert done.returncode == 2
    assert f"another process (pid {os.getpid()})" in done.stderr
    for _ in events:
        pass
    assert experiment.directory.finished


def test_a_run_of_other_data_is_refused(tiny):
    with pytest.raises(UserError, match="not what this run was started with"):
        tiny(data_digest="0123456789abcdef")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = metasp("run", "--method", "er", "--runs", tmp_path / "file" / "runs")
    assert done.returncode == 2
    assert "cannot write to" in done.stderr


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from metasp.cli import main
main()
"""


@pytest.mark.slow
def test_a_full_disk_stops_training_and_keeps_the_checkpoint(tiny, tmp_path):
    """A real limit on file size stands in for the full disk: the write fails in mid-run."""
    whole = finish(tiny("whole"))
    spec = tmp_path / "spec.toml"
    spec.write_text(whole.spec().to_toml())
    run = interrupted(tiny("full"), 2)
    size = max(path.stat().st_size for path in (run.path / "checkpoint").iterdir())
    before = read_manifest(run.path).checkpoints
    command = [sys.executable, "-c", FULL, str(size - 1), "resume", str(run.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "cannot write to" in done.stderr
    assert "Traceback" not in done.stderr
    assert read_manifest(run.path).checkpoints == before
    assert run.checkpoint() is not None
    assert not list(run.path.rglob("*.tmp"))
    assert_same_run(finish(tiny("full")), whole)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


KILLED = """
import os, signal
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from metasp.cli import main
main()
"""


@pytest.mark.slow
def test_what_a_killed_write_left_goes_when_the_run_goes_on(tiny):
    """The process really dies between the copy of a checkpoint and its renaming."""
    whole = finish(tiny("whole"))
    run = interrupted(tiny("killed"), 2)
    command = [sys.executable, "-c", KILLED, "resume", str(run.path)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert list(run.path.rglob(".*.tmp"))
    page = run.path / ".explorer.html.1.tmp"
    page.write_text("being written by another process, which needs no lock for it")
    ended = finish(tiny("killed"))
    assert list(run.path.rglob(".*.tmp")) == [page]
    page.unlink()
    assert_same_run(ended, whole)


@pytest.mark.parametrize("lost", [("seconds",), ("class_il", "matrix"), ("task_il", "before")])
def test_a_result_that_lacks_something_is_one_sentence(tiny, lost):
    run = finish(tiny())
    result = run.result()
    where = result if len(lost) == 1 else result[lost[0]]
    del where[lost[-1]]
    (run.path / "result.json").write_text(json.dumps(result))
    list_anew(run.path)
    with pytest.raises(UserError, match=f"{lost[-1]}' is missing or malformed"):
        run.outcome()


def test_scores_follow_from_the_accuracies_alone(tiny):
    run = finish(tiny())
    whole, bare = run.outcome(), run.result()
    for scenario in SCENARIOS:
        bare[scenario] = {key: bare[scenario][key] for key in ("matrix", "before")}
    (run.path / "result.json").write_text(json.dumps(bare))
    list_anew(run.path)
    assert run.outcome() == whole


def test_force_that_is_cut_short_leaves_an_unfinished_run(tiny, monkeypatch):
    whole = finish(tiny("whole"))
    run = finish(tiny("forced"))

    def cut(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("metasp.store.writer.Manifest.write", cut)
        with pytest.raises(KeyboardInterrupt):
            finish(tiny("forced", {"force": True}))
    assert not run.finished
    assert run.spec() == whole.spec()
    assert_same_run(finish(tiny("forced")), whole)


def test_a_disk_that_does_not_answer_costs_no_checkpoint(tiny):
    run = interrupted(tiny(options={"checkpoint_seconds": 0.0}), 7)
    latest = sorted((run.path / "checkpoint").glob("*.safetensors"))[-1]
    moved, log = latest.with_suffix(".moved"), (run.path / "events.jsonl").read_bytes()
    latest.rename(moved)
    latest.mkdir()  # reading it fails as it does on a broken disk, whoever reads
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory; nothing was changed"):
        finish(tiny())
    latest.rmdir()
    moved.rename(latest)
    assert (run.path / "events.jsonl").read_bytes() == log
    assert_same_run(finish(tiny()), finish(tiny("undisturbed")))


def test_a_run_of_another_version_is_left_as_it_is(tiny, monkeypatch):
    run = interrupted(tiny(options={"checkpoint_seconds": 0.0}), 7)
    files = [path for path in run.path.rglob("*") if path.name != "lock"]
    before = [path.stat().st_mtime_ns for path in files]
    monkeypatch.setattr("metasp.store.manifest.FORMAT", 9)
    with pytest.raises(UserError, match="has format 2 and this metasp reads 9"):
        finish(tiny())
    assert [path.stat().st_mtime_ns for path in files] == before


def test_a_task_that_is_done_again_replaces_its_rows(tmp_path):
    """As after a kill between the tables of a task and its checkpoint."""
    run = RunDir(tmp_path / "run")
    with run.open(RunSpec()) as writer:
        for task, ids, fused in ((0, [1, 2], 0.1), (1, [2, 3], 0.2), (1, [2, 3, 4], 0.3)):
            writer.append(TaskFinished(task, memory_of(ids, task), influences_of(ids, task, fused)))
        writer.checkpoint({}, {})
    found = run.influence()
    assert list(zip(found["task"], found["id"], found["fused"])) == [
        (0, 1, 0.1), (0, 2, 0.1), (1, 2, 0.3), (1, 3, 0.3), (1, 4, 0.3)
    ]  # fmt: skip
    assert {task: table["id"] for task, table in run.memory_tables().items()} == {
        0: [1, 2],
        1: [2, 3, 4],
    }


def memory_of(ids, task):
    """The table of a memory that holds these ids."""
    slots = list(range(len(ids)))
    return {"slot": slots, "id": ids, "label": ids, "task": [task] * len(ids), "entered": slots,
            "influence": [0.5] * len(ids)}  # fmt: skip


def influences_of(ids, task, fused):
    """The table of a task's influences."""
    known = {name: [fused] * len(ids) for name in ("stability", "plasticity", "fused")}
    return {"task": [task] * len(ids), "id": ids, "label": ids, "source": ["new"] * len(ids),
            **known, "count": [1] * len(ids), "kept": [True] * len(ids)}  # fmt: skip

"""Run folders with what does not belong there: links, pipes, copies, and JSON that says nothing."""

import json
import os
import shutil

import pytest

from metasp.cli import main
from metasp.experiment import Interrupted
from tests.helpers import finish
from tests.reports.page_factories import make_run

DEEP = "[" * 200_000


def stopped(tiny, steps=7, folder="runs"):
    """An unfinished run with two checkpoints."""
    experiment, taken = tiny(folder, {"checkpoint_seconds": 0.0}), iter(range(10**6))
    experiment.stop = lambda: next(taken) >= steps
    with pytest.raises(Interrupted):
        finish(experiment)
    return experiment.directory


def told(capsys, *arguments) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(part) for part in arguments])
    return int(stop.value.code or 0), capsys.readouterr().err.strip()


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["events.jsonl", "checkpoint", "memory"])
def test_a_link_in_a_run_costs_no_file_outside_it(tiny, tmp_path, capsys, name):
    run, outside = stopped(tiny, 12).path, tmp_path / "outside"
    outside.mkdir()
    shutil.move(run / name, outside / name)
    (run / name).symlink_to(outside / name)
    victims = outside if name == "events.jsonl" else outside / name
    before = content(victims)
    assert before
    commands = [("resume", run), ("memory", "forget", run, 3), ("explore", run)]
    for command in (*commands, ("run", "--spec", run / "spec.toml", "--runs", run.parent)):
        code, text = told(capsys, *command)
        assert (code, len(text.splitlines())) == (2, 1), command
        assert f"{name} is a link or a pipe" in text
    assert content(victims) == before


@pytest.mark.timeout(60)
def test_a_pipe_keeps_nobody_waiting(tmp_path, capsys):
    sound, piped, logless = (make_run(tmp_path / "runs", seed=seed).path for seed in (1, 2, 3))
    for path in (piped / "result.json", logless / "events.jsonl"):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(SystemExit):
        main(["list", "runs", "--runs", str(tmp_path / "runs"), "--json"])
    rows = {row["run"]: row["state"] for row in json.loads(capsys.readouterr().out)["runs"]}
    assert rows == {sound.name: "finished", piped.name: "damaged", logless.name: "finished"}
    code, text = told(capsys, "explore", logless)
    assert (code, len(text.splitlines())) == (2, 1)
    assert "events.jsonl is a link or a pipe" in text
    (sound / "manifest.json").unlink()
    os.mkfifo(sound / "manifest.json")
    code, text = told(capsys, "explore", sound)
    assert (code, len(text.splitlines())) == (2, 1)
    assert "manifest.json: Not a regular file" in text


def test_one_result_nested_too_deeply_hides_no_other_run(tmp_path, capsys):
    sound, deep = (make_run(tmp_path, seed=seed).path for seed in (1, 2))
    (deep / "result.json").write_text(DEEP)
    with pytest.raises(SystemExit) as stop:
        main(["list", "runs", "--runs", str(tmp_path), "--json"])
    assert stop.value.code == 0
    rows = {row["run"]: row["state"] for row in json.loads(capsys.readouterr().out)["runs"]}
    assert rows == {sound.name: "finished", deep.name: "damaged"}
    code, text = told(capsys, "memory", "forget", deep, 3)
    assert (code, len(text.splitlines())) == (2, 1)


def test_a_lock_is_never_a_link(tiny, tmp_path, capsys):
    run, mine = stopped(tiny, 12).path, tmp_path / "mine"
    (run / "lock").unlink()
    (run / "lock").symlink_to(mine)
    for before in (None, "what is mine"):
        if before:
            mine.write_text(before)
        code, text = told(capsys, "resume", run)
        assert (code, len(text.splitlines())) == (2, 1)
        assert "cannot write to" in text
        assert (mine.read_text() if mine.exists() else None) == before

"""A run in transit: whatever was packed, the other side can resume from it."""

import contextlib
import os
import subprocess
import sys
import tempfile

import pytest

from metasp.errors import UserError
from metasp.experiment import Interrupted, prepare
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store import parcel as parcels
from metasp.store.parcel import newest_checkpoint, pack, unpack
from metasp.sweeps.remote import PREFIX, Remote, own_folder
from tests.sweeps.test_local import SOURCE

SPEC = RunSpec(threads=1, width=4, memory=40, limit_per_class=30, epochs=1, method="er")


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def half_done(runs, steps):
    """A run that was stopped after some steps."""
    count = iter(range(10**6))
    run = prepare(SPEC, runs, checkpoint_seconds=0, stop=lambda: next(count) >= steps)
    with pytest.raises(Interrupted):
        for _ in run.events():
            pass
    return run.directory.path


def test_what_is_unpacked_is_what_was_packed(tmp_path):
    run = half_done(tmp_path / "here", 5)
    unpack(tmp_path / "there" / run.name, pack(run))
    assert files(tmp_path / "there" / run.name) == files(run)


def test_a_run_goes_on_elsewhere_to_the_same_result(tmp_path):
    run = half_done(tmp_path / "here", 7)
    unpack(tmp_path / "there" / run.name, pack(run))
    for folder in ("there", "whole"):
        for _ in prepare(SPEC, tmp_path / folder).events():
            pass
    moved, whole = (RunDir(tmp_path / f / run.name).result() for f in ("there", "whole"))
    assert moved["class_il"] == whole["class_il"]
    assert moved["task_il"] == whole["task_il"]


def order(runs):
    return {"name": prepare(SPEC, runs).directory.path.name, "spec": SPEC.as_dict(),
            "data": None, "checkpoint_seconds": 0.0}  # fmt: skip


def test_a_question_after_the_end_takes_nothing_away(tmp_path):
    """The last answers of a run may cross: what was fetched stays, whichever comes first."""
    run = half_done(tmp_path / "here", 5)
    remote = Remote(order(tmp_path / "there"), pack(run))
    word, parcel = remote.run()
    assert word["state"] == "done"
    assert "result.json" in parcel
    assert not remote.runs.exists()
    _, nothing = remote.poll()
    assert nothing is None
    unpack(run, nothing or {})
    assert newest_checkpoint(run)


def test_a_node_with_another_version_does_not_say_done(tmp_path):
    remote = Remote({**order(tmp_path), "name": "as-before"}, {})
    word, parcel = remote.run()
    assert word["state"] == "failed"
    assert "metasp has changed" in word["note"]
    assert not parcel


def test_folders_of_killed_runs_go_with_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "node"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "node").mkdir()
    living = Remote(order(tmp_path), {})
    code = (
        "import os, signal\n"
        "from metasp.sweeps.remote import Remote\n"
        "remote = Remote({'name': 'x', 'runs': '.'}, {})\n"
        "(remote.runs / 'private').write_text('example')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert len(list((tmp_path / "node").glob("*/private"))) == 1
    Remote(order(tmp_path), {})
    assert not list((tmp_path / "node").glob("*/private"))
    assert living.runs.exists()


def test_outdated_checkpoints_go_when_a_newer_parcel_arrives(tmp_path):
    run = half_done(tmp_path / "here", 3)
    there = tmp_path / "there" / run.name
    unpack(there, pack(run))
    first = newest_checkpoint(there)
    count = iter(range(10**6))
    more = prepare(SPEC, tmp_path / "here", checkpoint_seconds=0, stop=lambda: next(count) >= 4)
    with pytest.raises(Interrupted):
        for _ in more.events():
            pass
    unpack(there, pack(run))
    assert newest_checkpoint(there) == newest_checkpoint(run) > first
    assert files(there) == files(run)


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "checkpoint/../../x.json", "run.sh"])
def test_a_name_that_is_not_of_a_run_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(UserError, match="not a file of a run"):
        unpack(tmp_path / "run", {"spec.toml": b"", name: b"x"})
    assert not (tmp_path / "run").exists()


def test_checkpoints_that_are_replaced_while_they_are_packed(tmp_path, monkeypatch):
    """The first look finds only numbers that are gone."""
    run = half_done(tmp_path / "here", 5)
    whole, real = pack(run), parcels.numbers_in
    for stale, packed in ((1, whole), (9, {})):
        looks = iter(range(stale))
        monkeypatch.setattr(
            parcels, "numbers_in", lambda at, looks=looks: [999] if next(looks, 9) < 9 else real(at)
        )
        assert pack(run) == packed


def test_a_link_of_somebody_else_leads_nowhere(tmp_path, monkeypatch):
    """What is left of killed workers is removed, but only what is ours."""
    mine = tmp_path / "thesis.txt"
    mine.write_text("three hundred pages")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted, linked, left = (tmp_path / f"{PREFIX}{name}" for name in ("a", "b", "c"))
    planted.mkdir()
    (planted / "lock").symlink_to(mine)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").write_text("theirs")
    linked.symlink_to(tmp_path / "elsewhere")
    left.mkdir()
    (left / "lock").write_text("")
    with contextlib.ExitStack() as held:
        own = own_folder(held)
        assert (own / "lock").exists()
    assert mine.read_text() == "three hundred pages"
    assert (tmp_path / "elsewhere" / "lock").read_text() == "theirs"
    assert not left.exists()

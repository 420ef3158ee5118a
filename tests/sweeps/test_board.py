"""The state of a sweep, and the one table that shows it."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from metasp.cli.sweep import headline, listing, picture
from metasp.experiment import prepare
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.sweeps import jobs
from metasp.sweeps.jobs import Board, Job, Update


def board(stored=("new", "new", "new", "finished"), at_once=2) -> Board:
    todo = [
        Job(RunSpec(method="er", seed=n), Path(f"runs/run-{n}"), what)
        for n, what in enumerate(stored)
    ]
    return Board(todo, at_once)


def test_the_live_table_says_what_runs_what_failed_and_what_is_left():
    state = board()
    state.add(Update("run-0", "running", 0.25, 30.0, "task 2/5"))
    state.add(Update("run-1", "failed", note="the loss became NaN"))
    out = io.StringIO()
    Console(file=out, width=120).print(picture(state))
    text = out.getvalue()
    for words in ("task 2/5", "30 s", "the loss became NaN", headline(state)):
        assert words in text
    assert "1 of 4 runs done, 1 running, 1 waiting, 1 failed" in headline(state)


def test_time_left_is_estimated_and_corrected_by_what_runs_took(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(jobs.time, "monotonic", lambda: now[0])
    state = board()
    state.seconds = {f"run-{n}": 8.0 for n in range(3)}
    assert state.left() == 3 * 8 / 2  # two at a time
    state.add(Update("run-0", "running"))
    state.add(Update("run-1", "running", 0.5, 5.0))
    assert state.left() == (8 + 5 + 8) / 2
    now[0] = 116.0  # run-0 took twice as long as estimated, and so will run-2
    state.add(Update("run-0", "done"))
    assert state.left() == (5 + 16) / 2


@pytest.mark.slow
def test_a_sweep_is_estimated_from_steps_or_from_what_other_seeds_took(tmp_path):
    specs = [RunSpec(method=name, epochs=2, limit_per_class=60, threads=1, seed=seed)
             for name, seed in (("er", 1), ("metasp", 1), ("er", 2))]  # fmt: skip
    todo = jobs.jobs_of(specs, tmp_path, None)
    seconds = jobs.estimated_seconds(todo)
    er, metasp, again = (seconds[job.name] for job in todo)
    assert 0 < er < 30
    assert metasp > 1.3 * er
    assert again == er
    assert not list(tmp_path.iterdir())
    for _ in prepare(todo[0].spec, tmp_path).events():
        pass
    took = RunDir(todo[0].path).result()["seconds"]["total"]
    assert jobs.estimated_seconds(jobs.jobs_of(specs, tmp_path, None))[todo[2].name] == took


def test_the_listing_says_what_varies_but_no_schedule_where_there_is_none():
    specs = [
        RunSpec(method="er", epochs=10, rehearse_last=10, lr=0.1),
        RunSpec(method="er", epochs=10, rehearse_last=2, lr=0.03),
    ]
    table = listing([Job(spec, Path(spec.name), "new") for spec in specs])
    assert list(table.columns[1].cells) == ["lr 0.1", "rehearse last 2, lr 0.03"]

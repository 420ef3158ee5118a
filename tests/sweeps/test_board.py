"""The state of a sweep, and the one table that shows it."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from metasp.cli.sweep import headline, listing, picture
from metasp.spec import RunSpec
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


def test_time_left_is_that_of_the_running_and_waiting_shared_by_the_processes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(jobs.time, "monotonic", lambda: now[0])
    state = board()
    assert state.left() is None
    state.add(Update("run-0", "running", 0.0, None))
    now[0] = 110.0
    state.add(Update("run-0", "running", 0.5, 10.0))
    # run-0 has 10 s to go; run-1 and run-2 are taken to need what run-0 does, 20 s each.
    assert state.left() == pytest.approx((10 + 20 + 20) / 2)


def test_the_listing_says_what_varies_but_no_schedule_where_there_is_none():
    specs = [
        RunSpec(method="er", epochs=10, rehearse_last=10, lr=0.1),
        RunSpec(method="er", epochs=10, rehearse_last=2, lr=0.03),
    ]
    table = listing([Job(spec, Path(spec.name), "new") for spec in specs])
    assert list(table.columns[1].cells) == ["lr 0.1", "rehearse last 2, lr 0.03"]

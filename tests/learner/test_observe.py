"""Streams without boundaries: one open task that grows, with bounded state."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.nn.functional as F
from river.drift import ADWIN, PageHinkley
from torch import nn

from metasp.errors import UserError
from metasp.events import Noted, StepTaken, TaskFinished, TaskStarted
from metasp.learner import ContinualLearner
from metasp.methods import METHODS
from metasp.methods.weighting import validation_sets
from metasp.train import online as change
from metasp.train.online import Change
from tests.helpers import ROOT
from tests.learner.factories import X, Y, everything, net, pair, quick, stream_of

ONLINE = {
    "finetune": {},
    "er": {},
    "er-ace": {"selection": "greedy"},
    "derpp": {"influence": "metasp"},
    "mir": {},
    "gss": {},
    "gmed": {},
    "agem": {"selection": "ring"},
    "metasp": {"selection": "greedy"},
    "metasp-only-p": {"selection": "reservoir"},
}


def online(method="er", **changes):
    given = {"memory": 40, "window": 48, "head": "3", **ONLINE.get(method, {}), **changes}
    return ContinualLearner(net(2), method, **given)


def test_a_step_is_that_of_sgd_on_the_batch():
    """Without a memory there is nothing else in it: a loop by hand gives the same bits."""
    model = nn.Linear(64, 10)
    twin = nn.Linear(64, 10)
    twin.load_state_dict(model.state_dict())
    own = ContinualLearner(model, "finetune", lr=0.2)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.2)
    for inputs, labels in stream_of(20):
        (*_, step) = own.observe((inputs, labels))
        loss = F.cross_entropy(twin(inputs), labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        assert step.loss == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(model.weight, twin.weight)


@pytest.mark.parametrize("method", ONLINE)
def test_saved_after_any_batch_it_goes_on_to_the_same_bits(method, tmp_path):
    own = online(method)
    kept = {}
    for number, batch in enumerate(stream_of(30), 1):
        own.observe(batch)
        if number in (1, 7, 20):
            own.save(tmp_path / str(number))
            kept[number] = everything(own)
    assert own.batches == 30
    assert own.tasks == 1
    assert own.classes == tuple(range(9))
    for number, state in kept.items():
        again = ContinualLearner.load(tmp_path / str(number), net(2))
        assert again.batches == number
        assert everything(again) == state
        for batch in stream_of(30, start=number):
            again.observe(batch)
        assert everything(again) == everything(own)
    for each in (own, again):
        each.finish()
        each.learn(pair(4), progress=False)
    assert everything(again) == everything(own)


def test_it_learns():
    own = online("er", selection="greedy", memory=200, lr=0.1)
    for batch in stream_of(400, size=16):
        own.observe(batch)
    assert own.score((X[Y < 9], Y[Y < 9])) > 0.75


@pytest.mark.parametrize("method", ["er", "metasp"])
def test_every_batch_is_offered_and_the_newest_stand_for_what_is_new(method):
    own = online(method, memory=30, window=24)
    for batch in stream_of(40):
        own.observe(batch)
    context = own._trainer.learner
    newest = set(range(40 * 12 - 24, 40 * 12))
    assert set(context.current.ids.tolist()) == newest
    assert context.memory.offered == 40 * 12
    held = context.memory.ids[context.past()].tolist()
    assert held
    assert not newest & set(held)
    old, new = validation_sets(context, 6, 5)
    assert set(old.ids.tolist()) <= set(held)
    assert set(new.ids.tolist()) <= newest
    assert (old.size, new.size) == (6, 5)
    rows = own.influence().to_pylist()
    measured = [row for row in rows if row["count"]]
    assert bool(measured) == (method == "metasp")
    assert {row["id"] for row in rows} <= newest | set(own.memory.ids.tolist())
    assert own.memory.table()["since"].to_pylist() == [None] * 30


def test_thousands_of_batches_take_no_more_room(tmp_path):
    torch.manual_seed(0)
    own = ContinualLearner(nn.Linear(64, 10), "er", memory=30, window=20, lr=0.01)
    sizes = []
    for number, batch in enumerate(stream_of(2000, size=4), 1):
        own.observe(batch)
        if number % 400 == 0:
            own.save(tmp_path / "file")
            sizes.append((tmp_path / "file").stat().st_size)
    assert max(sizes) - min(sizes) < 64  # digits of counters
    context = own._trainer.learner
    assert len(context.training_stats.examples.ids) == len(own._trainer.tasks[0].train) == 20
    assert own.memory.table()["id"].to_pylist() != sorted(range(30))


def test_influences_of_what_has_gone_are_dropped():
    own = online("metasp", memory=10, window=8)
    most = 0
    for batch in stream_of(60, size=6):
        own.observe(batch)
        most = max(most, len(own._trainer.learner.influence_stats))
    assert most <= 2 * 18 + 16
    assert own.influence().num_rows <= 18
    own.finish()
    assert len(own._session.history.influence) <= 10


def test_finish_ends_the_open_task_and_the_next_batch_begins_another():
    own = online("er")
    first = own.observe((X[:10], Y[:10] % 2), ids=range(100, 110))
    assert [type(event) for event in first] == [TaskStarted, StepTaken]
    with pytest.raises(UserError, match="call finish"):
        own.learn(pair(0), progress=False)
    (*_, ended) = own.finish()
    assert isinstance(ended, TaskFinished)
    assert sorted(ended.memory["id"]) == list(range(100, 110))
    with pytest.raises(UserError, match="no task is under way"):
        own.finish()
    second = own.observe((X[:5], Y[:5] % 2))
    assert second[0].task == 1
    assert own.tasks == 2
    assert own.suspects(by="loss", top=3).num_rows == 3
    own.finish()
    own.learn(pair(1), progress=False)
    assert own.tasks == 3


def test_a_detector_marks_a_new_task_where_the_loss_rises(tmp_path):
    """Labels that turn round after a while are another task; that the loss falls is none."""
    own = ContinualLearner(net(), "er", memory=40, detector=ADWIN, lr=0.05)

    def batch(number):
        rows = torch.randperm(len(X), generator=torch.Generator().manual_seed(number))[:8]
        return X[rows], (Y[rows] + (number >= 200)) % 10

    marked, notes = [], []
    for number in range(320):
        events = own.observe(batch(number))
        marked += [number for e in events if isinstance(e, TaskFinished)]
        notes += [e.text for e in events if isinstance(e, Noted)]
        if number == 190:
            own.save(tmp_path / "file")
    assert len(marked) == len(notes) >= 1
    assert all(mark >= 200 for mark in marked)
    assert marked[0] < 270
    assert "another task begins" in notes[0]
    assert own.tasks == 1 + len(marked)
    with pytest.raises(UserError, match="pass detector= again"):
        ContinualLearner.load(tmp_path / "file", net())
    again = ContinualLearner.load(tmp_path / "file", net(), detector=ADWIN)
    for number in range(191, 320):
        again.observe(batch(number))
    assert everything(again) == everything(own)


@pytest.mark.parametrize("make", [ADWIN, PageHinkley])
def test_a_detector_made_anew_from_its_losses_says_the_same(make, monkeypatch):
    monkeypatch.setattr(change, "KEPT", 300)
    dice = random.Random(1)
    losses = [dice.gauss(2.0 if number % 900 > 700 else 0.5, 0.1) for number in range(2400)]
    one, two, said = Change(make), Change(make), []
    for number, loss in enumerate(losses):
        said.append(one.saw(loss))
        if number % 37 == 0:
            two.stand_at(list(two.losses))  # as after a load
        assert two.saw(loss) == said[-1]
        assert len(one.losses) < 600
    assert any(said)


def test_labels_that_are_text_and_inputs_that_are_several_come_batch_by_batch():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 1)

        def forward(self, left, right):
            return self.head(torch.cat([left, right], 1))

    words = ["zero", "one", "two", "three"]
    own = ContinualLearner(Both(), "er", memory=20, head="head")
    for inputs, labels in stream_of(12):
        named = [words[label % 4] for label in labels.tolist()]
        own.observe(({"left": inputs[:, :30], "right": inputs[:, 30:]}, named))
    assert set(own.class_names) == set(words)
    assert own.model.head.out_features == 4


def test_what_was_forgotten_leaves_the_newest_examples_too(tmp_path):
    own = online("metasp", memory=20, window=24)
    for batch in stream_of(10):
        own.observe(batch)
    own._trainer.open.recent.inputs[0] = 0.777
    gone = [int(own._trainer.open.recent.ids[0]), int(own.memory.ids[0])]
    assert own.forget(ids=gone) == gone[:1] + gone[1:] or sorted(gone)
    own.save(tmp_path / "file")
    assert torch.tensor([0.777] * 8).numpy().tobytes() not in (tmp_path / "file").read_bytes()
    assert not set(gone) & set(own.influence()["id"].to_pylist())
    again = ContinualLearner.load(tmp_path / "file", net(2))
    assert again.observe((X[:1], Y[:1] % 2), ids=[gone[0]]) == []
    for batch in stream_of(14, start=10):
        own.observe(batch)
        again.observe(batch)
    assert everything(again)["model/0.weight"] != b""
    assert own.trust((X[:1], Y[:1]))


def test_a_batch_that_is_refused_changes_nothing():
    own = online("er")
    own.observe((X[:8], Y[:8] % 2))
    before = everything(own)
    for batch, words in [
        ((X[:8, :9], Y[:8]), "one shape and type"),
        ((X[:8], Y[:8] - 9), "negative"),
        ((X[:8], Y[:8].float()), "keeps to one kind"),
        ((X[:0], Y[:0]), "empty"),
    ]:
        with pytest.raises(UserError, match=words):
            own.observe(batch)
        assert everything(own) == before


@pytest.mark.parametrize("method", METHODS)
def test_what_needs_boundaries_is_refused_and_told_what_to_use(method):
    if method in ("joint", "verified-only"):
        return
    own = quick(net(10), method, settings={})
    kind = METHODS[method].kind
    if (
        own._trainer.learner.selection.at == "task" and kind.selection
    ) or "boundaries" in kind.needs:
        with pytest.raises(UserError, match=r"use er|pass selection='reservoir'"):
            own.observe(pair(0))
    else:
        assert own.observe(pair(0))


def test_a_schedule_by_epochs_and_an_influence_by_tasks_are_refused():
    def halves(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    with pytest.raises(UserError, match="scheduler_step='step'"):
        online("er", scheduler=halves).observe(pair(0))
    own = online("er", scheduler=halves, scheduler_step="step")
    rates = [own.observe(batch)[-1].lr for batch in stream_of(3)]
    assert rates == [0.1, 0.05, 0.025]
    with pytest.raises(UserError, match="influence robust"):
        online("er", influence="robust").observe(pair(0))
    with pytest.raises(UserError, match=r"river\.drift\.ADWIN"):
        online("er", detector=dict)


@pytest.mark.slow
def test_killed_with_sigkill_it_goes_on_to_the_same_bits(tmp_path):
    command = [sys.executable, "-m", "tests.learner.observing_worker"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    count, kills = 60, 0
    done = subprocess.run([*command, whole, str(count)], cwd=ROOT, timeout=120)
    assert done.returncode == 0
    worker = subprocess.Popen([*command, cut, str(count)], cwd=ROOT)
    until = time.monotonic() + 60
    while not cut.exists() and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(0.03)
    if worker.poll() is None:
        os.kill(worker.pid, signal.SIGKILL)
        kills += 1
    worker.wait()
    done = subprocess.run([*command, cut, str(count)], cwd=ROOT, timeout=120)
    assert done.returncode == 0
    assert kills
    first, second = (ContinualLearner.load(f, net(2), detector=ADWIN) for f in (whole, cut))
    assert first.batches == second.batches == count
    assert everything(first) == everything(second)

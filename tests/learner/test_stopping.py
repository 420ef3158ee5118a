"""A learner that stops by validation, and a stream that is ended before its last epoch."""

import pytest
import torch

from metasp.errors import UserError
from metasp.events import Noted, StepTaken, TaskFinished, Validated
from metasp.learner import ContinualLearner
from tests.learner.factories import everything, net, pair, quick, regression, squares


def test_learn_keeps_the_best_weights_and_says_so():
    own = quick(net(), "er", epochs=15, lr=0.8)
    x, y = pair(0)
    y[80::3] = 1 - y[80::3]  # who becomes sure of the others is wrong here
    at, notes, finished = {}, [], False
    for event in own.stream((x[:80], y[:80]), validation=(x[80:], y[80:]), patience=2):
        if isinstance(event, Validated):
            at[event.epoch] = (event.loss, [p.detach().clone() for p in own.model.parameters()])
        notes += [event.text] if isinstance(event, Noted) else []
        finished |= isinstance(event, TaskFinished)
    best = min(at, key=lambda epoch: at[epoch][0])
    assert len(at) == best + 3 < 15
    assert all(torch.equal(p, q) for p, q in zip(own.model.parameters(), at[best][1]))
    assert f"lowest after epoch {best + 1}" in notes[-1]
    assert finished
    assert len(own.memory)
    assert own.tasks == 1


def test_a_share_is_held_out_of_the_dataset_and_never_remembered(tmp_path):
    one, two = (quick(net(), "er", epochs=2, memory=200) for _ in range(2))
    x, y = pair(0, 60)
    for own in (one, two):
        own.learn((x, y), ids=torch.arange(100, 160), validation=0.25, progress=False)
    assert len(one.memory) == 60 - sum(round(0.25 * int((y == k).sum())) for k in (0, 1))
    assert everything(one) == everything(two)
    one.save(tmp_path / "a")
    again = ContinualLearner.load(tmp_path / "a", net())
    for own in (one, again):
        own.learn(pair(1), validation=0.25, patience=1, progress=False)
    assert everything(one) == everything(again)


def test_a_regression_is_validated_by_its_loss():
    own = quick(net(2, inputs=3), "er", loss_fn=squares, epochs=6, lr=0.05)
    looks = [e for e in own.stream(regression(0.0), validation=0.2) if isinstance(e, Validated)]
    assert looks[-1].loss < looks[0].loss


def test_finish_ends_the_task_properly_also_where_the_loop_is_left():
    left, went_on, whole = (quick(net(), "metasp-rehsel", epochs=4) for _ in range(3))
    for own in (left, went_on):
        own.learn(pair(0), progress=False)
        for event in own.stream(pair(1), test=pair(1)):
            if isinstance(event, StepTaken) and event.epoch == 1 and event.step == 1:
                rest = own.finish()
                if own is left:
                    break
        assert isinstance(rest[-1], TaskFinished)
        assert sorted(set(own.memory.table()["task"].to_pylist())) == [0, 1]
        assert own.tasks == 2
        assert own.classes == (0, 1, 2, 3)
        with pytest.raises(UserError, match="no task is under way"):
            own.finish()
    assert everything(left) == everything(went_on)
    whole.learn(pair(0), progress=False).learn(pair(1), progress=False)
    assert everything(left)["model/0.weight"] != everything(whole)["model/0.weight"]
    left.learn(pair(2), progress=False)
    assert left.tasks == 3


def test_closing_still_gives_the_task_up():
    own = quick(net(), "er")
    before = everything(own)
    events = own.stream(pair(0), validation=0.2)
    for _ in range(8):
        next(events)
    events.close()
    assert everything(own) == before
    with pytest.raises(UserError, match="no task is under way"):
        own.finish()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"validation": 1.5}, "between 0 and 1"),
        ({"validation": 0.2, "patience": 0}, "patience is 0"),
        ({"validation": pair(4)}, "class 8, which no task has had"),
        ({"validation": (pair(0)[0].double()[:, :9], pair(0)[1])}, "cannot take inputs"),
        ({"validation": 0.9, "dataset": (pair(0)[0][:3], torch.tensor([0, 0, 1]))}, "class 0"),
    ],
)
def test_a_validation_that_cannot_be_used_is_refused(given, words):
    own = quick(net(), "er")
    before = everything(own)
    with pytest.raises(UserError, match=words):
        own.learn(**{"dataset": pair(0), **given}, progress=False)
    assert everything(own) == before
    with pytest.raises(UserError, match="schedule of its own"):
        quick(net(), "gdumb").learn(pair(0), validation=0.2, progress=False)

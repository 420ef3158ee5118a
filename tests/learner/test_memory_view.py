"""The memory as an asset: audited, read-only, forgotten."""

from datetime import datetime

import pytest
import torch

from metasp.errors import UserError
from metasp.learner import ContinualLearner
from metasp.methods import METHODS
from tests.learner.factories import KNOWN, SHORT, X, everything, net, pair, quick

MARK = torch.linspace(0.123456, 0.654321, 64)  # an input to look for in files
STORING = [n for n in KNOWN if METHODS[n].selection and n != "aer-abs"]  # which drops some soon


def marked(task: int):
    """A task whose first two examples are the mark, one of each class."""
    inputs, labels = pair(task, 60)
    inputs = inputs.clone()
    inputs[int(torch.nonzero(labels == labels[0])[0])] = MARK
    return inputs, labels


def test_an_audit_says_what_since_when_and_why():
    learner = quick(memory=30)
    began = datetime.now().astimezone()
    for task in range(3):
        learner.learn(pair(task, 60), progress=False)
    table = learner.memory.table()
    assert table.column_names == [
        "slot", "id", "label", "task", "since", "influence", "stability", "plasticity", "fused",
        "count",
    ]  # fmt: skip
    means = {row["id"]: row for row in learner.influence().to_pylist()}
    for row in table.to_pylist():
        assert row["task"] == row["label"] // 2 == row["id"] // 60
        assert abs((datetime.fromisoformat(row["since"]) - began).total_seconds()) < 300
        assert row["fused"] == means[row["id"]]["fused"]
        assert row["count"] == means[row["id"]]["count"] > 0
        assert row["influence"] is not None
    assert len(table) == 30


def test_a_dataset_that_cannot_be_written_through():
    learner = quick(method="er").learn(pair(0), progress=False)
    view = learner.memory
    assert (len(view), view.capacity) == (20, 20)
    before = everything(learner)
    for place in range(-20, 20):
        inputs, label = view[place]
        original = int(view.ids[place])
        assert torch.equal(inputs, pair(0)[0][original])
        assert int(label) == int(pair(0)[1][original])
        inputs.zero_(), label.zero_()
    view.ids.zero_()
    assert everything(learner) == before
    with pytest.raises(IndexError):
        view[20]
    assert len(list(torch.utils.data.DataLoader(view, batch_size=20))) == 1


@pytest.mark.parametrize("method", STORING)
def test_forgotten_is_gone_from_memory_influence_and_files(tmp_path, method):
    """Looked for as bytes: nothing of the example is in a file written afterwards."""
    learner = ContinualLearner(
        net(), method, memory=140, epochs=2, settings=SHORT.get(method, {}),
        selection=METHODS[method].selection if method in ("gss", "gdumb")
        else "reservoir",
    )  # fmt: skip
    learner.learn(marked(0), progress=False)  # all fit
    learner.learn(pair(1, 60), progress=False)
    learner.save(tmp_path / "before")
    gone = int(torch.nonzero((marked(0)[0] == MARK).all(1))[0])
    kept = {*learner.memory.ids.tolist()} - {gone}
    assert learner.forget(ids=[gone], reason="asked by its owner") == [gone]
    assert {*learner.memory.ids.tolist()} == kept
    assert gone not in learner.influence().column("id").to_pylist()
    learner.save(tmp_path / "after")
    bytes_ = MARK.numpy().tobytes()
    if method != "gmed":  # which edits what it keeps
        assert bytes_ in (tmp_path / "before").read_bytes()
    assert bytes_ not in (tmp_path / "after").read_bytes()
    again = ContinualLearner.load(tmp_path / "after", net())
    assert again.removed == learner.removed
    assert learner.removed[0]["ids"] == [gone]
    assert learner.removed[0]["reason"] == "asked by its owner"
    assert len(learner.memory) == 119
    learner.learn(pair(2, 60), progress=False)
    assert len(learner.memory) == 140
    assert gone not in learner.memory.ids.tolist()


def test_forget_by_a_predicate():
    learner = quick(memory=40)
    for task in range(2):
        learner.learn(pair(task, 60), progress=False)
    labels = learner.influence().column("label").to_pylist()
    gone = learner.forget(predicate=lambda row: row["label"] == 1, reason="class withdrawn")
    assert len(gone) == labels.count(1) > 0
    assert 1 not in learner.influence().column("label").to_pylist()
    learner.learn(pair(2, 60), progress=False)
    assert len(learner.memory) == 40
    assert learner.forget(predicate=lambda row: False) == []
    assert len(learner.removed) == 1
    with pytest.raises(UserError, match="either ids or a predicate"):
        learner.forget()


def test_what_was_forgotten_is_not_learned_again():
    """Offered anew under its id it is left out: the bits are those of a dataset without it."""
    one, other = quick(method="er"), quick(method="er")
    for learner in (one, other):
        learner.learn(pair(0, 60), ids=range(90, 150), progress=False)
        learner.forget(ids=[100, 101])
    inputs, labels = pair(0, 60)
    one.learn((inputs, labels), ids=range(90, 150), progress=False)
    rest = [i for i in range(60) if i + 90 not in (100, 101)]
    other.learn((inputs[rest], labels[rest]), ids=[i + 90 for i in rest], progress=False)
    assert everything(one) == everything(other)
    with pytest.raises(UserError, match="nothing is left"):
        one.learn((X[:2], labels[10:12]), ids=[100, 101], progress=False)


def test_anchors_learned_from_a_forgotten_example_go_with_it():
    learner = quick(method="hal", memory=30)
    learner.learn(pair(0, 60), progress=False)
    hal = learner._trainer.method
    first, second = hal.anchors_ids.tolist()
    kept = hal.anchors[1].clone()
    learner.forget(ids=[first])
    assert hal.anchors_ids.tolist() == [second]
    assert torch.equal(hal.anchors[0], kept)
    learner.forget(ids=[second])
    learner.learn(pair(1, 60), progress=False)
    assert len(hal.anchors) == 2


def test_a_view_that_is_kept_shows_what_came_later():
    learner = quick(memory=30).learn(pair(0, 60), progress=False)
    view = learner.memory
    learner.learn(pair(1, 60), progress=False)
    assert view.table() == learner.memory.table()
    assert set(view.table()["task"].to_pylist()) == {0, 1}

"""Verified examples of a learner: with a task or later, pinned, saved, and used."""

import pytest
import torch
from torch import nn

from metasp import ContinualLearner
from metasp.errors import UserError

DRAW = torch.Generator().manual_seed(0)
CENTRES = 3 * torch.randn(4, 6, generator=DRAW)


def examples(classes, each, seed):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes).repeat_interleave(each)
    return CENTRES[labels] + torch.randn(len(labels), 6, generator=draw), labels


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def learned(method="er", **settings):
    learner = ContinualLearner(net(), method, memory=24, epochs=4, lr=0.05, **settings)
    trusted = examples([0, 1], 3, 9)
    return learner.learn(examples([0, 1], 30, 1), trusted=trusted, progress=False)


def pinned(learner):
    memory = learner._trainer.learner.memory
    return sorted(memory.ids[memory.pinned].tolist())


@pytest.mark.parametrize("method", ["er", "metasp-robust", "derpp", "glc", "verified-only"])
def test_they_are_pinned_under_ids_of_their_own_and_stay(method):
    learner = learned(method)
    assert pinned(learner) == [60, 61, 62, 63, 64, 65]
    more = examples([2, 3], 3, 8)
    learner.learn(examples([2, 3], 30, 2), trusted=more, progress=False)
    assert pinned(learner) == [*range(60, 66), *range(126, 132)]
    assert len(learner.memory) <= 24
    assert set(range(60, 66)) <= set(learner.influence()["id"].to_pylist())


def test_they_may_come_later_and_survive_a_file(tmp_path):
    learner = learned()
    ids = learner.trust(examples([0], 2, 5))
    assert ids == [66, 67]
    assert set(ids) <= set(pinned(learner))
    learner.save(tmp_path / "learner")
    again = ContinualLearner.load(tmp_path / "learner", net())
    assert pinned(again) == pinned(learner)
    for each in (learner, again):
        each.learn(examples([2, 3], 20, 3), progress=False)
    assert pinned(again) == pinned(learner)
    learner.forget(ids=[66], reason="withdrawn")
    assert 66 not in pinned(learner)


def test_a_class_that_no_task_has_had_is_refused_and_nothing_changes():
    learner = learned()
    before = pinned(learner)
    with pytest.raises(UserError, match="of class 3, which no task has had: give examples of 0, 1"):
        learner.trust(examples([3], 1, 1))
    with pytest.raises(UserError, match="of class 3, which no task has had"):
        learner.learn(examples([2], 20, 1), trusted=examples([3], 1, 1), progress=False)
    assert pinned(learner) == before
    assert learner.classes == (0, 1)


def test_where_most_labels_of_a_class_are_wrong_they_decide():
    """Of what is called 1, three in four are 0: only the verified examples know better."""
    inputs, labels = examples([0, 1], 60, 4)
    labels = labels.clone()
    wrong = torch.arange(0, 45)
    labels[wrong] = 1
    keep = torch.cat([torch.arange(60), torch.arange(60, 75)])
    test = examples([0, 1], 100, 6)
    scores = {}
    for method in ("er", "metasp-robust"):
        learner = ContinualLearner(net(), method, memory=24, epochs=12, lr=0.05)
        learner.learn((inputs[keep], labels[keep]), trusted=examples([0, 1], 3, 9), progress=False)
        scores[method] = learner.score(test)
    assert scores["metasp-robust"] > scores["er"]
    assert scores["metasp-robust"] > 0.9

"""Mistakes in Python get sentences that say what a learner can do."""

import pytest
from torch import nn

from metasp.errors import UserError
from tests.learner.factories import X, Y, everything, pair, quick
from tests.learner.test_trees import TwoInputs


class Normed(nn.Module):
    """Batch normalisation of a vector, which one example cannot have."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)), nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body(x))


def known():
    return quick(Normed(), "er").learn(pair(0, 8), progress=False)


def in_halves():
    x, y = pair(0, 8)
    halves = {"left": x[:, :30], "right": x[:, 30:]}
    return quick(TwoInputs(), "er").learn((halves, y), progress=False)


def test_sentences_say_what_a_learner_can_do():
    """No flags of the command line: these are mistakes in Python."""
    said = []
    for mistake in (
        lambda: quick(Normed(), "er", batch_size=1).learn(pair(0, 8), progress=False),
        lambda: quick(Normed(), "er").learn((X[:1], Y[:1]), progress=False),
        lambda: quick(Normed(), "er", head="classifier"),
        lambda: quick(Normed(), "er", device="mps"),
        lambda: quick(Normed(), "er").learn((X[:3], [0, 1, -1]), progress=False),
        lambda: quick(Normed(), "er").learn((X[:3], [0, 1, None]), progress=False),
        lambda: quick(Normed(), "er").learn((X[:3], [0.0, 1.0, 2.0]), progress=False),
        lambda: quick(Normed(), "er", selection="rehsel"),
        lambda: quick(Normed(), "verified-only").learn(pair(0, 8), progress=False),
        lambda: in_halves().predict({"left": X[:3, :30], "right": X[:2, 30:]}),
        lambda: known().score((X[:3], ["a", "b", "a"])),
        lambda: known().learn(pair(0, 8), test=(X[:2], ["a", "b"]), progress=False),
        lambda: known().learn(pair(0, 8), validation=(X[:2], ["a", "b"]), progress=False),
    ):
        with pytest.raises(UserError) as found:
            mistake()
        said.append(str(found.value))
    assert "batch_size and tasks of 2 examples or more" in said[0]
    assert said[1] == said[0]
    assert "'classifier'" in said[2]
    assert "known are body.0, fc" in said[2]
    assert "example 2 of the dataset has no label" in said[5]
    assert "verified examples (`trusted`)" in said[8]
    assert "different lengths, 3 of inputs['left'] and 2 of inputs['right']" in said[9]
    kinds = "the labels are names and the learner's classes are numbers"
    assert all(sentence.startswith(kinds) for sentence in said[10:])
    assert not [sentence for sentence in said if "--" in sentence]


def test_a_batch_of_one_that_batch_normalisation_refuses_changes_nothing():
    learner = quick(Normed(), "er")
    before = everything(learner)
    with pytest.raises(UserError, match="batch normalisation"):
        learner.observe((X[:1], Y[:1]))
    assert everything(learner) == before
    assert (learner.tasks, learner.batches, learner.classes) == (0, 0, ())
    learner.observe((X[:8], Y[:8]))
    learner.observe((X[8:9], Y[8:9]))  # with examples from memory there are enough
    assert learner.batches == 2

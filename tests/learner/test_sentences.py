"""Mistakes in Python get sentences that say what a learner can do."""

import pytest
from torch import nn

from metasp.errors import UserError
from tests.learner.factories import X, Y, pair, quick


class Normed(nn.Module):
    """Batch normalisation of a vector, which one example cannot have."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)), nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body(x))


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
    ):
        with pytest.raises(UserError) as found:
            mistake()
        said.append(str(found.value))
    assert "batch_size and tasks of 2 examples or more" in said[0]
    assert said[1] == said[0]
    assert "'classifier'" in said[2]
    assert "known are body.0, fc" in said[2]
    assert "example 2 of the dataset has no label" in said[5]
    assert not [sentence for sentence in said if "--" in sentence]

"""Ids given with a DataLoader name what they should, or are refused."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset

from metasp.errors import UserError
from metasp.learner import ContinualLearner
from metasp.learner.build import LearnerSettings
from metasp.spec import RunSpec
from tests.learner.factories import net, pair

DATA = TensorDataset(*pair(0, 40))
IDS = torch.arange(100, 140)


def learner() -> ContinualLearner:
    return ContinualLearner(net(), "er", memory=40, epochs=1)


@pytest.mark.parametrize("batch_size", [7, 40])
def test_a_loader_in_order_keeps_the_ids_of_its_examples(batch_size):
    made = learner()
    made.learn(DataLoader(DATA, batch_size=batch_size), ids=IDS, progress=False)
    for number in range(len(made.memory)):
        inputs, label = made.memory[number][:2]
        row = int(made.memory.ids[number]) - 100
        assert torch.equal(inputs, DATA[row][0])
        assert int(label) == int(DATA[row][1])


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"sampler": SubsetRandomSampler(range(40))},
        {"batch_sampler": BatchSampler(SubsetRandomSampler(range(40)), 7, False)},
        {"batch_sampler": [[*range(39, -1, -1)]]},
        {"batch_size": None, "sampler": SubsetRandomSampler(range(40))},
    ],
)
def test_a_loader_in_another_order_is_refused(options):
    made = learner()
    with pytest.raises(UserError, match="give ids with the dataset itself"):
        made.learn(DataLoader(DATA, **options), ids=IDS, progress=False)
    assert made.tasks == 0
    assert len(made.memory) == 0


def test_a_learners_settings_have_the_bounds_of_a_runs():
    """Written once: whatever a spec refuses, a learner refuses with the same words."""
    bad = [
        {"lr": 0}, {"lr": float("nan")}, {"epochs": 0}, {"batch_size": 0},
        {"momentum": 1.5}, {"weight_decay": -1.0}, {"rehearse_last": 3, "epochs": 2}, {"seed": -1},
        {"memory_batch": 2.5}, {"settings": 3},
    ]  # fmt: skip
    for values in bad:
        words = []
        for kind in (RunSpec, LearnerSettings):
            with pytest.raises(UserError) as refused:
                kind(**values)
            words.append(str(refused.value))
        assert words[0] == words[1]
    assert (LearnerSettings().memory, LearnerSettings().epochs) == (500, 10)
    assert LearnerSettings().settings == {}

"""Streams and models at the edge of what is allowed: each learns, or is refused in a sentence."""

import pytest
import torch
from torch import nn

from metasp import ContinualLearner
from metasp.memory import SELECTIONS


def rows(count, classes=2, width=6, seed=0):
    inputs = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return inputs, torch.arange(count) % classes


@pytest.mark.parametrize("name", [n for n, s in SELECTIONS.items() if s.at == "task"])
def test_more_tasks_than_slots_is_no_crash_and_the_newest_enters(name):
    method = "metasp" if SELECTIONS[name].measured else "er"
    learner = ContinualLearner(
        nn.Linear(6, 2), method=method, memory=4, epochs=1, selection=name, batch_size=8
    )
    for task in range(7):
        learner.learn(rows(12, seed=task), progress=False)
        held = learner.memory.table().column("task").to_pylist()
        assert len(held) == 4
        assert task in held

"""What a learner takes for a data set, and what it says of the rest."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
)

from metasp.errors import UserError
from metasp.learner.inputs import as_ids as ids_of
from metasp.learner.inputs import read_examples as read
from tests.learner.factories import (
    X,
    Y,
    pair,
    quick,
)


class Rows(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return X[index].numpy(), int(Y[index])


class Flow(IterableDataset):
    def __iter__(self):
        return iter([(X[i], Y[i]) for i in range(30)])


@pytest.mark.parametrize(
    "data",
    [
        (X[:30], Y[:30]),
        (X[:30].double().numpy(), Y[:30].int().numpy()),
        TensorDataset(X[:30], Y[:30]),
        Rows(),
        Flow(),
        DataLoader(Rows(), batch_size=7),
        DataLoader(Flow(), batch_size=7),
        [(X[i], Y[i]) for i in range(30)],
    ],
)
def test_whatever_holds_examples(data):
    found = read(data, torch.float32)
    assert torch.equal(found.inputs, X[:30])
    assert torch.equal(found.labels, Y[:30])
    assert found.labels.dtype == torch.long


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (TensorDataset(X[:3]), "does not hold pairs"),
        (3, "does not hold pairs"),
        ((X[:3], Y[:4]), "3 of inputs and 4 of labels"),
        ((X[:0], Y[:0]), "empty"),
        ([(X[0], Y[0]), (X[1][:5], Y[1])], "not all of one kind"),
        ((np.array(["cat", "dog"]), Y[:2]), "text as inputs"),
        ((X[:2], ["cat", None]), "example 1 of the dataset has no label"),
        ((X[:2] * float("nan"), Y[:2]), "input of example 0 of the dataset is not finite"),
    ],
)
def test_what_does_not(data, words):
    with pytest.raises(UserError, match=words):
        read(data, torch.float32)


def test_bytes_and_whole_numbers_as_inputs():
    bytes_ = (X * 255).to(torch.uint8)
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, inputs):
            seen.append(inputs)
            return self.layer(inputs)

    quick(Spy(), "er").learn((bytes_[:40], Y[:40]), progress=False)
    assert {batch.dtype for batch in seen} == {torch.float32}
    assert max(float(batch.max()) for batch in seen) == 1.0
    words = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(40, 10))
    tokens = torch.randint(0, 50, (40, 5), generator=torch.Generator().manual_seed(0))
    for method in ("er", "metasp-rehsel"):
        learner = quick(words, method)
        for _ in range(2):
            learner.learn((tokens, Y[:40]), progress=False)
        assert learner.memory[0][0].dtype == torch.long


def test_ids():
    assert ids_of(np.array([4, 2, 9]), 3) == [4, 2, 9]
    assert ids_of(["b", "a"], 2) == ["b", "a"]
    for bad, words in (([1, 1, 2], "id 1 is given to two"), ([1.5, 2, 3], "whole numbers"),
                       ([-1, 2, 3], "from 0"), ([1, 2], "3, one for each")):  # fmt: skip
        with pytest.raises(UserError, match=words):
            ids_of(bad, 3)
    learner = quick(method="er")
    learner.learn(pair(0, 40), ids=range(100, 140), progress=False)
    learner.learn(pair(1, 40), progress=False)
    assert set(learner.memory.ids.tolist()) <= {*range(100, 180)}


def test_data_of_another_kind_is_refused():
    learner = quick(method="er").learn(pair(0), progress=False)
    with pytest.raises(UserError, match=r"float32 of shape \(5,\) and were float32 of shape \(64,"):
        learner.learn((X[:9, :5], Y[:9]), progress=False)
    with pytest.raises(UserError, match="a learner keeps to one kind"):
        learner.learn((X[:9], Y[:9].float()), progress=False)


DATA = TensorDataset(*pair(0, 40))
IDS = torch.arange(100, 140)


@pytest.mark.parametrize("batch_size", [7, 40])
def test_a_loader_in_order_keeps_the_ids_of_its_examples(batch_size):
    made = quick(method="er", memory=40, epochs=1)
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
    made = quick(method="er", memory=40, epochs=1)
    with pytest.raises(UserError, match="give ids with the dataset itself"):
        made.learn(DataLoader(DATA, **options), ids=IDS, progress=False)
    assert made.tasks == 0
    assert len(made.memory) == 0

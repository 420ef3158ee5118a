"""Streams and models at the edge of what is allowed: each learns, or is refused in a sentence."""

import pytest
import torch
from torch import nn

from metasp import ContinualLearner
from metasp.errors import UserError
from metasp.memory import SELECTIONS
from metasp.methods.hal import features_seen
from tests.learner.factories import X, Y, everything, pair, quick


def rows(count, classes=2, width=6, seed=0):
    inputs = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return inputs, torch.arange(count) % classes


@pytest.mark.parametrize("name", [n for n, s in SELECTIONS.items() if s.at == "task"])
def test_more_tasks_than_slots_is_no_crash_and_the_newest_enters(name):
    method = "metasp" if SELECTIONS[name].measured else "er"
    if SELECTIONS[name].judged:
        method = "metasp-robust"
    learner = ContinualLearner(
        nn.Linear(6, 2), method=method, memory=4, epochs=1, selection=name, batch_size=8
    )
    for task in range(7):
        learner.learn(rows(12, seed=task), progress=False)
        held = learner.memory.table().column("task").to_pylist()
        assert len(held) == 4
        assert task in held


def tokens(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 9, (count, 5), generator=draw), torch.arange(count) % 2


class Words(nn.Module):
    """An embedding, its mean and a head that is more than a linear layer; and a number whose name
    is that of a method elsewhere."""

    features = 4

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, self.features)
        self.head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2))

    def forward(self, x):
        return self.head(self.embed(x).transpose(1, 2))


@pytest.mark.parametrize("method", ["gmed", "hal"])
def test_methods_that_move_inputs_refuse_whole_numbers(method):
    learner = ContinualLearner(Words(), method=method, memory=8, epochs=1)
    with pytest.raises(UserError, match="moves inputs along gradients"):
        learner.learn(tokens(12), progress=False)


def test_hal_looks_at_any_head_in_rows():
    model = nn.Sequential()
    model.body = nn.Conv2d(3, 4, 3, padding=1)
    model.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    learner = ContinualLearner(
        model, method="hal", memory=8, epochs=1, settings={"anchor_steps": 2}
    )
    for seed in range(2):
        pictures = torch.rand(12, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
        learner.learn((pictures, torch.arange(12) % 2), progress=False)
    with features_seen(model) as seen:
        model(pictures)
    assert seen[0].shape == (12, 4 * 6 * 6)


def test_gdumb_keeps_what_is_frozen():
    body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    body.requires_grad_(False)
    body[1].running_mean.fill_(0.25)
    body.eval()
    before = {name: value.clone() for name, value in body.state_dict().items()}
    model = nn.Sequential(body, nn.Linear(5, 2))
    first = model[1].weight.detach().clone()
    learner = ContinualLearner(model, method="gdumb", memory=8, settings={"memory_epochs": 2})
    learner.learn(rows(12), progress=False)
    after = learner.model[0].state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not torch.equal(learner.model[1].weight, first)


@pytest.mark.parametrize("method", ["er", "mir", "gmed", "gss", "hal"])
def test_a_task_of_one_example(method):
    """Rehearsal gives its batch the company that BatchNorm needs."""
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    settings = {"anchor_steps": 2} if method == "hal" else {}
    learner = ContinualLearner(model, method=method, memory=8, epochs=1, settings=settings)
    learner.learn(rows(12), progress=False)
    learner.learn((rows(1, seed=3)[0], torch.tensor([1])), progress=False)
    assert len(learner.memory) == 8


class Normed(nn.Module):
    """Batch normalisation of a vector, which one example cannot have."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)), nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body(x))


def test_what_cannot_be_learned_is_one_sentence_without_flags():
    """These are mistakes in Python: no word of the command line."""
    for mistake, words in (
        (lambda: quick(Normed(), "er", batch_size=1).learn(pair(0, 8)), "tasks of 2 examples"),
        (lambda: quick(Normed(), "er").learn((X[:1], Y[:1])), "batch_size and tasks of 2 examples"),
        (lambda: quick(Normed(), "er", head="classifier"), "known are body.0, fc"),
        (lambda: quick(Normed(), "aer-abs", selection="ring"), "leave out the selection"),
        (
            lambda: quick(Normed(), "verified-only").learn(pair(0, 8)),
            "verified examples",
        ),
        (
            lambda: quick(Normed(), "er").learn(pair(0, 8), test=(X[:2], ["a", "b"])),
            "are names",
        ),
    ):
        with pytest.raises(UserError, match=words) as found:
            mistake()
        assert "--" not in str(found.value)


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

"""Layers and precisions that a method's own gradients must cope with, and sentences where not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp import ContinualLearner
from metasp.errors import UserError
from tests.learner.test_odd_models import learner_of, rows


class Words(nn.Module):
    """Token rows (n, 6) to two classes, through a layer of choice."""

    def __init__(self, **embedding):
        super().__init__()
        self.tokens = nn.Embedding(9, 4, **embedding)
        self.reader = nn.GRU(4, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.reader(self.tokens(x))[0][:, -1])


def tokens(seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(9, (24, 6), generator=draw), torch.arange(24) % 2


@pytest.mark.parametrize("method", ["gem", "agem", "gss", "mir", "metasp"])
@pytest.mark.parametrize("embedding", [{}, {"sparse": True}, {"max_norm": 0.5}])
def test_sentences_are_learned(method, embedding):
    torch.manual_seed(0)
    settings = {"candidates": 40} if method == "mir" else {}
    learner = learner_of(Words(**embedding), method, memory=16, memory_batch=4, settings=settings)
    before = learner.model.tokens.weight.detach().clone()
    for seed in range(3):
        learner.learn(tokens(seed), progress=False)
    assert not torch.equal(learner.model.tokens.weight, before)
    assert all(bool(p.isfinite().all()) for p in learner.model.parameters())


@pytest.mark.parametrize("method", ["gem", "agem"])
def test_layers_of_different_precision(method):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 2).double()

        def forward(self, x):
            return self.head(torch.tanh(self.body(x)).double())

    learner = learner_of(Mixed(), method)
    before = learner.model.head.weight.detach().clone()
    for seed in range(2):
        learner.learn(rows(16, seed), progress=False)
    assert learner.model.head.weight.dtype == torch.float64
    assert not torch.equal(learner.model.head.weight, before)


def test_hal_takes_the_outputs_where_the_head_is_never_called():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            return F.linear(x, self.head.weight)

    learner = learner_of(Unused(), "hal")
    for seed in range(2):
        learner.learn(rows(16, seed), progress=False)
    assert learner.tasks == 2


@pytest.mark.parametrize("method", ["er", "metasp-rehsel"])
def test_a_scripted_model_learns_or_is_refused_at_once(method):
    model = torch.jit.script(nn.Sequential(nn.Linear(6, 2)))
    if method == "er":
        assert learner_of(model, method).learn(rows(16), progress=False).tasks == 1
        return
    with pytest.raises(UserError, match="scripted model cannot take a virtual step"):
        learner_of(model, method)


def test_labels_of_another_shape_are_not_scored():
    """(n,) == (n, 1) is a matrix: an accuracy of 10 came out."""
    learner = learner_of(nn.Linear(6, 2), "er")
    inputs, labels = rows(16)
    with pytest.raises(UserError, match=r"labels to score against are int64 of shape \(1,\)"):
        learner.learn((inputs, labels), test=(inputs, labels[:, None]), progress=False)
    assert learner.tasks == 0
    learner.learn((inputs, labels), test=(inputs, labels), progress=False)
    for wrong in (labels[:, None], labels.float()):
        with pytest.raises(UserError, match="bring them to one kind"):
            learner.score((inputs, wrong))
    assert 0 <= learner.score((inputs, labels)) <= 1


def test_numbers_of_numpy_are_numbers_everywhere():
    settings = {"pseudo_steps": np.int64(2), "strength": np.float32(0.5)}
    learner = ContinualLearner(nn.Linear(6, 2), "metasp", lr=np.float32(0.5), settings=settings)
    assert learner.settings.lr == 0.5

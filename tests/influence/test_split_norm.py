"""Batch normalisation over ranks, where there is one: what torch's own gives, in every order."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.influence import sp_influence
from metasp.influence.parallel import Ranks, Share
from metasp.influence.sharding import batch_norm, split_over_ranks


def ours(ranks, x, weight, bias, running):
    return batch_norm(Share(ranks, len(x)), x, *running, weight, bias, 0.3, 1e-3)


def torchs(x, weight, bias, running):
    return F.batch_norm(x, *running, weight, bias, True, 0.3, 1e-3)


def everything(norm, x, ahead, affine):
    """Values, running statistics, gradients, and gradients of gradients."""
    running = torch.full((3,), 0.5).double(), torch.full((3,), 2.0).double()
    leaves = [leaf for leaf in (x, *affine) if leaf is not None]
    out = norm(x, *affine, running)
    once = torch.autograd.grad((out * ahead).sum(), leaves)
    slope = torch.autograd.grad(norm(x, *affine, running).sin().sum(), leaves, create_graph=True)
    twice = torch.autograd.grad(sum((part**2).sum() for part in slope), leaves)
    return [out, *running, *once, *twice]


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("shape", [(6, 3), (5, 3, 2, 2)])
def test_derivatives_of_every_kind_are_those_of_torch(ranks, shape, scaled):
    torch.manual_seed(1)
    x, ahead = torch.randn(2, *shape, dtype=torch.double)
    affine = [torch.rand(3, dtype=torch.double).requires_grad_() if scaled else None
              for _ in range(2)]  # fmt: skip
    given = (x.requires_grad_(), ahead, affine)
    for mine, theirs in zip(everything(partial(ours, ranks), *given), everything(torchs, *given)):
        torch.testing.assert_close(mine, theirs)


def test_of_half_precision_it_is_that_of_single(ranks):
    x = torch.randn(8, 3).bfloat16()
    running = torch.zeros(3), torch.ones(3)
    found = ours(ranks, x, None, None, running)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, torchs(x.float(), None, None, running).bfloat16())


class Several(nn.Module):
    """Gives its outputs in the way that it is asked for."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))

    def forward(self, x, how=None):
        out = self.body(x)
        if how == "logits":
            return SimpleNamespace(logits=out)
        return {"out": out, "loss": out.sum(), "how": how} if how == "dictionary" else out


@pytest.mark.parametrize("how", [None, "logits", "dictionary"])
def test_a_model_that_is_split_gives_what_it_gave(ranks, how):
    whole, split, x = Several(), Several(), torch.randn(6, 4)
    split_over_ranks(split, ranks)
    answers = [model(x, how=how) for model in (whole, split)]
    if how == "logits":
        answers = [answer.logits for answer in answers]
    if how == "dictionary":
        assert [answer["how"] for answer in answers] == [how, how]
        torch.testing.assert_close(answers[0]["loss"], answers[1]["loss"])
        answers = [answer["out"] for answer in answers]
    torch.testing.assert_close(*answers)
    for answer in answers:
        answer.square().sum().backward()
    for mine, theirs in zip(split.parameters(), whole.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad)


class Twin(Ranks):
    """One of two that are given the same rows, so that it knows what the other would say."""

    def __init__(self):
        super().__init__()
        self.size = 2

    def _sum(self, buffer):
        buffer.mul_(2)

    def all_rows(self, own, bounds, dim):
        return torch.cat([own.detach()] * 2, dim)


@pytest.mark.parametrize("training", [True, False])
def test_what_two_compute_together_is_what_one_computes(ranks, training):
    whole, split = Several().train(training), Several().train(training)
    rows = torch.randn(3, 4).repeat(2, 1)
    split_over_ranks(split, Twin())
    answers = [model(rows) for model in (whole, split)]
    torch.testing.assert_close(*answers)
    for answer in answers:
        answer.square().sum().backward()
    for mine, theirs in zip(split.parameters(), whole.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_influence_through_a_split_model_is_that_through_the_whole(ranks):
    whole, split = Several(), Several()
    for model in (whole, split):
        nn.init.constant_(model.body[1].bias, 0.7)
    split_over_ranks(split, ranks)
    torch.manual_seed(1)
    pairs = [(torch.randn(6, 4), torch.arange(6) % 2) for _ in range(3)]
    loss = nn.CrossEntropyLoss(reduction="none")
    found, known = (sp_influence(model, loss, *pairs, lr=0.1) for model in (split, whole))
    assert found.path == known.path == "tape"
    torch.testing.assert_close(found.fused, known.fused)

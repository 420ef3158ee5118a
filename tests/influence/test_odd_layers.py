"""Layers that autograd knows only by half: the influence is exact there too, or says why not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from metasp import sp_influence
from metasp.errors import UserError
from metasp.influence import record, virtual_parameters

LOSS = nn.CrossEntropyLoss(reduction="none")


class Once(torch.autograd.Function):
    """tanh whose gradient cannot be differentiated, and says so."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * (1 - ctx.saved_tensors[0].tanh() ** 2)


class Cut(torch.autograd.Function):
    """tanh whose gradient has lost its graph, and does not say so."""

    forward = Once.forward

    @staticmethod
    def backward(ctx, grad):
        return grad.detach() * (1 - ctx.saved_tensors[0].tanh() ** 2)


class Net(nn.Module):
    def __init__(self, act):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.act = nn.Linear(6, 8), nn.Linear(8, 4), act

    def forward(self, x):
        return self.head(self.act(self.body(x)))


class Bag(nn.Module):
    """Tokens (n, 5), their embeddings brought together by `how`."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        kinds = {
            "bag": lambda: nn.EmbeddingBag(9, 6),
            "sparse": lambda: nn.Embedding(9, 6, sparse=True),
            "plain": lambda: nn.Embedding(9, 6),
        }
        self.tokens = kinds[how]()
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        found = self.tokens(x)
        return self.head(torch.tanh(found if found.dim() == 2 else found.mean(1)))


def numbers():
    torch.manual_seed(1)
    return [(torch.randn(n, 6), torch.arange(n) % 4) for n in (7, 5, 6)]


def words():
    torch.manual_seed(1)
    return [(torch.randint(9, (n, 5)), torch.arange(n) % 4) for n in (7, 5, 6)]


@pytest.mark.parametrize("act", [Once.apply, Cut.apply])
def test_a_gradient_without_second_order_is_measured_one_by_one(act):
    wanted = sp_influence(Net(torch.tanh), LOSS, *numbers(), lr=0.1)
    found = sp_influence(Net(act), LOSS, *numbers(), lr=0.1)
    assert found.path == "one-by-one"
    for name in ("stability", "plasticity", "fused"):
        assert torch.allclose(getattr(found, name), getattr(wanted, name), atol=1e-7)
    with pytest.raises(UserError, match=r"needs second derivatives.*use steps=1"):
        sp_influence(Net(act), LOSS, *numbers(), lr=0.1, steps=2)


@pytest.mark.parametrize("how", ["bag", "sparse"])
def test_embeddings_of_any_kind(how):
    models = Bag("plain"), Bag(how)
    models[1].load_state_dict(models[0].state_dict())
    wanted, found = (sp_influence(model, LOSS, *words(), lr=0.1) for model in models)
    assert wanted.stability.abs().max() > 1e-4
    assert torch.allclose(found.stability, wanted.stability, atol=1e-7)
    assert torch.allclose(found.plasticity, wanted.plasticity, atol=1e-7)


def test_a_model_that_branches_on_its_parameters_is_refused_for_several_steps():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x):
            first = torch.equal(self.a.bias, torch.zeros(4))  # as long as it has not moved
            return self.b(x) + self.a(x) if first else self.b(x)

    model = Branch()
    nn.init.zeros_(model.a.bias)
    with pytest.raises(UserError, match=r"a\.bias has no gradient after a pseudo step"):
        sp_influence(model, LOSS, *numbers(), lr=0.1, steps=2)


def test_a_recorded_pass_serves_its_own_batch_and_parameters_alone():
    model, (batch, old, new) = Net(torch.tanh), numbers()
    passed = record(model, LOSS, batch)
    wanted = sp_influence(model, LOSS, batch, old, new, lr=0.1)
    copy = (batch[0].clone(), batch[1].clone())
    found = sp_influence(model, LOSS, copy, old, new, lr=0.1, recorded=passed)
    assert torch.equal(found.fused, wanted.fused)
    other = (batch[0].flip(0), batch[1])
    with pytest.raises(UserError, match="of another batch"):
        sp_influence(model, LOSS, other, old, new, lr=0.1, recorded=passed)
    torch.autograd.backward(passed.losses.sum())
    with pytest.raises(UserError, match=r"used up: measure its influence before backward"):
        sp_influence(model, LOSS, batch, old, new, lr=0.1, recorded=passed)
    passed = record(model, LOSS, batch)
    torch.optim.SGD(model.parameters(), 0.1).step()
    with pytest.raises(UserError, match="have moved since"):
        sp_influence(model, LOSS, batch, old, new, lr=0.1, recorded=passed)


def test_virtual_steps_leave_embeddings_with_a_largest_norm_as_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.1), nn.Flatten(), nn.Linear(20, 4))
    before = model[0].weight.detach().clone()
    moved = virtual_parameters(model, LOSS, words()[0], 0.1)
    assert torch.equal(model[0].weight, before)
    assert moved["0.weight"].norm(dim=1).max() < 0.11


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.jit.script])
def test_what_cannot_run_at_other_parameters_says_so(wrap):
    with pytest.raises(UserError, match=r"cannot take a virtual step: pass .* instead"):
        sp_influence(wrap(nn.Linear(6, 4)), LOSS, *numbers(), lr=0.1)


def test_steps_may_be_a_number_of_numpy():
    one = sp_influence(Net(F.relu), LOSS, *numbers(), lr=0.1, steps=2)
    two = sp_influence(Net(F.relu), LOSS, *numbers(), lr=0.1, steps=np.int64(2))
    assert torch.equal(one.fused, two.fused)

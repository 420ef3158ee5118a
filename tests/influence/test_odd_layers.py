"""Layers that autograd knows only by half: the influence is exact there too, or says why not."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from metasp import sp_influence
from metasp.errors import UserError
from metasp.influence import record, virtual_parameters

LOSS = nn.CrossEntropyLoss(reduction="none")


class Net(nn.Module):
    def __init__(self, act):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.act = nn.Linear(6, 8), nn.Linear(8, 4), act

    def forward(self, x):
        return self.head(self.act(self.body(x)))


def numbers():
    torch.manual_seed(1)
    return [(torch.randn(n, 6), torch.arange(n) % 4) for n in (7, 5, 6)]


def words():
    torch.manual_seed(1)
    return [(torch.randint(9, (n, 5)), torch.arange(n) % 4) for n in (7, 5, 6)]


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


class Centred(Net):
    """Centred by means that no gradient goes through, after a slice was overwritten, which breaks
    the tape: nothing else tells what is detached from a wrong gradient."""

    def forward(self, x):
        h = self.body(x) * 1.0
        h[:, 0] = h[:, 0] * 1.0
        with torch.no_grad():
            mean = h.square().mean(0)
        return self.head(self.act(h - mean))


@pytest.mark.parametrize("steps", [1, 2])
def test_what_is_detached_where_the_tape_breaks_is_refused(steps):
    pairs = [(x.double(), y) for x, y in numbers()]
    with pytest.raises(UserError, match="not the slope of its loss"):
        sp_influence(Centred(torch.tanh).double(), LOSS, *pairs, lr=0.5, steps=steps)


@pytest.mark.parametrize("dress", ["pruned", "spectral"])
def test_what_a_hook_makes_of_a_parameter_is_left_as_it_was(dress):
    layer = nn.Linear(6, 4)
    if dress == "pruned":
        prune.l1_unstructured(layer, "weight", 0.5)
    else:
        layer = nn.utils.spectral_norm(layer)
    before = layer.weight.detach().clone()
    sp_influence(layer, LOSS, *numbers(), lr=1.0)
    assert torch.equal(layer.weight, before)

"""Every example's influence on every goal, against gradients of single examples."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.influence import influence_matrix, matrix
from metasp.types import CROSS_ENTROPY

N, M = 7, 5


class Shared(nn.Module):
    """One layer that is used twice: its gradients are no outer products."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(F.relu(self.layer(x))))


def convolutional():
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(),
                         nn.Linear(8, 3))  # fmt: skip


NETS = {
    "linear": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)),
    "shared": Shared,
    "convolution": convolutional,
}


def one_by_one(model, pair):
    rows = []
    for x, y in zip(*pair):
        loss = CROSS_ENTROPY(model(x[None]), y[None]).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", NETS)
def test_it_is_the_product_of_the_gradients_of_single_examples(name):
    torch.manual_seed(0)
    model = NETS[name]().double()
    batch, goal = ((torch.randn(n, 6).double(), torch.randint(3, (n,))) for n in (N, M))
    wanted = -0.1 * one_by_one(model, goal) @ one_by_one(model, batch).T
    torch.testing.assert_close(influence_matrix(model, CROSS_ENTROPY, batch, goal, 0.1), wanted)


def test_layers_are_enough_for_linear_ones(monkeypatch):
    monkeypatch.setattr(matrix, "_by_gradients", None)
    model = NETS["linear"]().double()
    pair = (torch.randn(N, 6).double(), torch.randint(3, (N,)))
    assert influence_matrix(model, CROSS_ENTROPY, pair, pair).diagonal().max() < 0


class OtherWay(nn.Module):
    """Its layers come in another order where the first number is negative."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        first, second = (self.one, self.two) if x[0, 0] > 0 else (self.two, self.one)
        return self.head(second(first(x).tanh()))


def test_where_layers_come_in_another_order_gradients_are_taken():
    torch.manual_seed(0)
    model = OtherWay().double()
    batch, goal = ((torch.randn(n, 6).double(), torch.randint(3, (n,))) for n in (N, M))
    batch[0][:, 0], goal[0][:, 0] = 1.0, -1.0
    wanted = -one_by_one(model, goal) @ one_by_one(model, batch).T
    torch.testing.assert_close(influence_matrix(model, CROSS_ENTROPY, batch, goal), wanted)

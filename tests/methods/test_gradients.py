"""Gradients of single examples, also through layers that torch.func does not know."""

import copy

import pytest
import torch
from torch import nn

from metasp.methods.gradients import example_gradients
from tests.methods.test_metasp import net, small_learner


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.double()

    def forward(self, x):
        return self.head(self.cell(x.reshape(-1, 2, 2))[0][:, -1])


@pytest.mark.parametrize("make", [net, Recurrent])
def test_each_example_has_the_gradient_that_it_has_alone(make):
    model = make()
    learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = learner.current.take(torch.arange(5))
    found = example_gradients(learner, batch)
    twin = copy.deepcopy(model)
    for row in range(5):
        twin.zero_grad()
        learner.loss_fn(twin(batch.inputs[row : row + 1]), batch.labels[row : row + 1]).backward()
        for own, parameter in zip(found, twin.parameters()):
            alone = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            assert own.shape == (5, parameter.numel())
            torch.testing.assert_close(own[row], alone.flatten())
    assert all(parameter.grad is None for parameter in model.parameters())

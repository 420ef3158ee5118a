"""MIR: what is retrieved, against a real step on a copy of the model."""

import copy

import pytest
import torch

from metasp.methods.mir import interference
from metasp.types import Batch
from tests.methods.factories import changed, digits, everything, train, weights


def rise_by_hand(trainer, batch, candidates):
    """Train-mode losses after a real optimizer step on a deep copy, less those before."""
    both = copy.deepcopy((trainer.learner.model, trainer.learner.optimizer))
    model, optimizer = both
    fresh = copy.deepcopy(model)
    loss_fn = trainer.learner.loss_fn
    optimizer.zero_grad()
    loss_fn(model(batch.inputs), batch.labels).mean().backward()
    optimizer.step()
    losses = [loss_fn(net(candidates.inputs), candidates.labels) for net in (model, fresh)]
    return (losses[0] - losses[1]).detach()


@pytest.mark.parametrize("backbone", ["mlp", "convnet"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_mir_trains_on_exactly_those_whose_loss_would_rise_most(backbone, momentum):
    settings = {"settings": {"candidates": 15}, "momentum": momentum, "backbone": backbone}
    trainer, twin = (digits("mir", memory=20, memory_batch=6, **settings) for _ in range(2))
    for each in (trainer, twin):
        train(each, 14)
    new = trainer.tasks[2].train.take(torch.arange(8))
    trainer.method.step(new, None)

    learner = twin.learner
    slots = learner.memory.draw(15, learner.streams["replay"])
    candidates = learner.prepare_replay(learner.memory.read(slots))
    batch = learner.prepare(new)
    rise = rise_by_hand(twin, batch, candidates)
    torch.testing.assert_close(interference(learner, batch, candidates), rise)
    most = sorted(range(15), key=lambda row: -float(rise[row]))[:6]
    learner.update(Batch.join([batch, candidates.at(torch.tensor(most))]))
    assert torch.equal(weights(trainer), weights(twin))


def test_seeking_leaves_no_trace():
    trainer = digits("mir", momentum=0.9)
    train(trainer, 10)
    learner = trainer.learner
    batch = learner.prepare(trainer.tasks[1].train.take(torch.arange(8)))
    candidates = learner.prepare_replay(learner.memory.read(torch.arange(12)))
    before = everything(trainer)
    interference(learner, batch, candidates)
    assert changed(before, everything(trainer)) == []

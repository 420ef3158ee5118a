"""GDumb: a balanced memory at every moment, and a model that depends on it alone."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn

from metasp.errors import UserError
from metasp.methods.gdumb import cutmix, restart, warm_restarts
from metasp.types import Batch
from tests.methods.factories import blobs, digits, on, train, weights


@pytest.mark.parametrize("memory", [10, 23, 64])
def test_its_memory_is_balanced_at_every_moment(memory):
    """Each class holds at least its equal share, or all that was seen of it; no slot is idle
    while a class is short of its share; none is over it once the memory is full of equals."""
    benchmark = blobs([50, 3, 20, 90, 7, 31, 12, 40, 1, 26])
    trainer = on(benchmark, "gdumb", memory=memory)
    seen, held = Counter(), trainer.learner.memory
    for task in trainer.tasks:
        order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(1))
        for part in order.split(7):
            new = task.train.take(part)
            trainer.method.remember(new, task)
            seen.update(new.labels.tolist())
            counts = Counter(held.labels[held.occupied].tolist())
            share = memory // len(seen)
            for label, count in seen.items():
                assert counts[label] >= min(count, share)
            biggest = max(counts.values())
            assert all(counts[y] >= min(n, share, biggest - 1) for y, n in seen.items())
            assert len(held) <= memory


def phase_of(trainer, kind, task):
    return next(
        phase
        for phase in trainer.method.phases(trainer.tasks[task], trainer.tasks[: task + 1])
        if phase.kind == kind
    )


def trained_on_memory(trainer, task=1):
    """What one task's training makes of the memory as it is."""
    trainer.method.begin_task(trainer.tasks[task])
    phase = phase_of(trainer, "dumb", task)
    examples = phase.examples()
    for start in range(0, len(examples), 5):
        trainer.method.step(
            examples.take(torch.arange(start, min(start + 5, len(examples)))), phase
        )
    return weights(trainer)


def test_its_model_depends_on_memory_alone():
    trainer = digits("gdumb")
    train(trainer, 14)
    spoiled, other = copy.deepcopy(trainer), copy.deepcopy(trainer)
    with torch.no_grad():
        for parameter in spoiled.learner.model.parameters():
            parameter.add_(1.0)
        for buffer in spoiled.learner.model.buffers():
            buffer.fill_(3)
    for entry in spoiled.learner.optimizer.state.values():
        entry["momentum_buffer"] += 1
    memory = other.learner.memory
    memory.inputs[0] = 255 - memory.inputs[0]
    expected = trained_on_memory(trainer)
    assert torch.equal(trained_on_memory(spoiled), expected)
    assert not torch.equal(trained_on_memory(other), expected)


def test_collecting_does_not_train():
    trainer = digits("gdumb")
    trainer.method.begin_task(trainer.tasks[0])
    before = weights(trainer)
    trainer.method.step(
        trainer.tasks[0].train.take(torch.arange(8)), phase_of(trainer, "collect", 0)
    )
    assert torch.equal(weights(trainer), before)


def test_the_learning_rate_is_that_of_torch_with_a_slow_first_epoch():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        optimizer, T_0=1, T_mult=2, eta_min=5e-4
    )
    assert warm_restarts(0) == 0.1
    for epoch in range(1, 70):
        assert 0.05 * warm_restarts(epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()


def test_cutmix_says_how_much_is_whose():
    generator = torch.Generator().manual_seed(0)
    images = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 2, 9, 7)
    shares = []
    for _ in range(100):
        mixed, other, share = cutmix(images, 1.0, generator)
        own = (mixed == images).float().mean((1, 2, 3))
        foreign = (mixed == images[other]).float().mean((1, 2, 3))
        moved = other != torch.arange(6)
        torch.testing.assert_close(own[moved], torch.full_like(own[moved], share))
        torch.testing.assert_close(foreign[moved], torch.full_like(own[moved], 1 - share))
        shares.append(share)
    assert min(shares) < 0.5
    assert max(shares) > 0.9
    assert cutmix(images, 0.0, generator)[2] == 1.0
    assert cutmix(torch.ones(6, 4), 1.0, generator)[2] == 1.0


def test_gradients_are_clipped():
    trainer = digits("gdumb", settings={"clip": 1e-3, "memory_epochs": 1}, momentum=0.0, lr=1.0)
    trainer.method.begin_task(trainer.tasks[0])
    before = weights(trainer)
    batch: Batch = trainer.tasks[0].train.take(torch.arange(8))
    trainer.method.step(batch, phase_of(trainer, "dumb", 0))
    assert float((weights(trainer) - before).norm()) == pytest.approx(1e-3, rel=0.02)


def test_what_it_cannot_do_is_said():
    with pytest.raises(UserError, match="Embedding"):
        restart(nn.Sequential(nn.Embedding(3, 2)), torch.Generator())


def test_with_a_selection_at_the_tasks_end_it_looks_by_training_and_starts_anew():
    trainer = digits("gdumb", selection="herding", epochs=3, settings={"memory_epochs": 2})
    kinds, held = [], []
    for event in trainer.run():
        if type(event).__name__ == "StepTaken" and event.task == 1:
            if event.kind == "dumb" and "dumb" not in kinds:
                held = sorted(trainer.learner.memory.labels.tolist())
            kinds.append(event.kind)
    assert kinds.count("finetune") == 3 * 3
    assert kinds == sorted(kinds, reverse=True)
    assert held == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5  # before it is trained on
    spoiled = digits("gdumb", selection="herding", settings={"memory_epochs": 2})
    train(spoiled, 6)  # the look at the first task, and nothing of the memory yet
    other = copy.deepcopy(spoiled)
    for net in (spoiled, other):
        net.method.chosen(net.tasks[0])
    assert torch.equal(weights(spoiled), weights(other))
    assert spoiled.method.collected == 0
    before = weights(spoiled)
    spoiled.method.chosen(spoiled.tasks[0])  # a resumed run asks again
    assert torch.equal(weights(spoiled), before)
    resumed = digits("gdumb", selection="herding").method
    resumed.load_state_dict(spoiled.method.state_dict())
    assert resumed.collected == 0

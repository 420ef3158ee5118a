"""GEM and A-GEM as they train: what the update does to the memory's gradients."""

import copy

import pytest
import torch

from metasp.methods.gradients import quiet_gradient
from tests.methods.factories import changed, digits, everything, fill, train, weights


def gradient_by_hand(trainer, slots):
    """The train-mode gradient of some slots of the memory, on a copy of the model."""
    learner, model = trainer.learner, copy.deepcopy(trainer.learner.model)
    model.zero_grad()
    held = learner.memory.read(slots)
    outputs = model.train()(learner.transform(held.inputs))
    learner.loss_fn(outputs, held.labels).mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def in_third_task(method, **settings):
    trainer = digits(method, lr=0.05, settings=settings, memory=20)
    train(trainer, 15)
    assert trainer.position.task == 2
    return trainer


@pytest.mark.parametrize("turn", range(4))
def test_gem_steps_against_the_memory_of_no_past_task(turn):
    trainer = in_third_task("gem", margin=0.0, ridge=0.0)
    method, memory, task = trainer.method, trainer.learner.memory, trainer.tasks[2]
    new = task.train.take(torch.arange(6 * turn, 6 * turn + 6))
    slots = [torch.nonzero(memory.tasks == past).flatten() for past in (0, 1)]
    past = torch.stack([gradient_by_hand(trainer, own) for own in slots])
    before = weights(trainer)
    report = method.step(new, None)
    direction = (before - weights(trainer)) / trainer.learner.optimizer.param_groups[0]["lr"]
    assert (past @ direction).min() > -1e-4
    assert report.numbers["projected"] == 1.0  # a new task conflicts with the old ones


def test_gem_takes_the_current_task_for_no_constraint():
    trainer = digits("gem", selection="reservoir")
    train(trainer, 2)
    assert len(trainer.learner.memory)
    assert trainer.method.past_tasks() == []


def test_agems_look_at_the_memory_moves_no_statistics():
    """BatchNorm's running statistics after a step are those of one pass over the new batch."""
    trainer = in_third_task("agem")
    new = trainer.tasks[2].train.take(torch.arange(8))
    model = copy.deepcopy(trainer.learner.model).train()
    model(trainer.learner.transform(new.inputs))
    before = dict(trainer.learner.model.named_buffers())["norms.0.running_mean"].clone()
    trainer.method.step(new, None)
    found = dict(trainer.learner.model.named_buffers())
    assert not torch.equal(found["norms.0.running_mean"], before)
    for name, wanted in model.named_buffers():
        assert torch.equal(found[name], wanted), name


@pytest.mark.parametrize("backbone", ["convnet", "resnet18"])
def test_the_memory_gradient_leaves_no_trace_even_of_a_lone_example(backbone):
    trainer = digits("gem", backbone=backbone, momentum=0.9)
    train(trainer, 3)
    fill(trainer)
    learner = trainer.learner
    for size in (1, 9):
        before = everything(trainer)
        batch = learner.memory.read(torch.arange(size))
        batch = batch._replace(inputs=learner.transform(batch.inputs))
        assert quiet_gradient(learner, batch, portion=4).isfinite().all()
        assert changed(before, everything(trainer)) == []


def test_a_gradient_in_portions_is_the_whole_one_without_batch_statistics():
    trainer = digits("gem", backbone="mlp")
    fill(trainer, each=10)
    batch = trainer.learner.prepare_replay(trainer.learner.memory.read(torch.arange(10)))
    expected = gradient_by_hand(trainer, torch.arange(10))
    for portion in (1, 3, 4, 10):
        found = quiet_gradient(trainer.learner, batch, portion)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("moves", [True, False])
def test_whether_the_memory_moves_the_running_statistics(moves):
    """By passes of a copy: each past task's memory in turn, if at all, and the new batch last."""
    trainer = in_third_task("gem", memory_statistics=moves)
    learner, memory = trainer.learner, trainer.learner.memory
    new = trainer.tasks[2].train.take(torch.arange(8))
    model = copy.deepcopy(learner.model).train()
    with torch.no_grad():
        for past in (0, 1) if moves else ():
            held = memory.read(torch.nonzero(memory.tasks == past).flatten())
            model(learner.transform(held.inputs))
        model(learner.transform(new.inputs))
    trainer.method.step(new, None)
    for (name, ours), other in zip(learner.model.named_buffers(), model.buffers()):
        torch.testing.assert_close(ours, other, msg=name)

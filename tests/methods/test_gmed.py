"""GMED: the edit by finite differences, and what becomes of it in memory."""

import copy

import pytest
import torch

from metasp.methods.gradients import after_virtual_step
from metasp.types import Batch
from tests.methods.factories import changed, digits, everything, train


def in_double(trainer):
    learner = trainer.learner
    learner.model.double()
    for entry in learner.optimizer.state.values():
        entry["momentum_buffer"] = entry["momentum_buffer"].double()

    def rows(task, count):
        raw = trainer.tasks[task].train.take(torch.arange(count))
        return Batch(learner.transform(raw.inputs).double(), raw.labels, raw.ids)

    return rows


def goal_by_hand(trainer, batch, drawn, weight):
    """Mean over the drawn of loss after a real step on a copy, less (1 + weight) the loss now."""
    model, optimizer = copy.deepcopy((trainer.learner.model, trainer.learner.optimizer))
    now, loss_fn = copy.deepcopy(model), trainer.learner.loss_fn
    optimizer.zero_grad()
    loss_fn(model(batch.inputs), batch.labels).mean().backward()
    optimizer.step()

    @torch.no_grad()
    def goal(inputs):
        after, before = (loss_fn(net(inputs), drawn.labels).mean() for net in (model, now))
        return float(after - (1 + weight) * before)

    return goal


@pytest.mark.parametrize("backbone", ["mlp", "convnet"])
@pytest.mark.parametrize(("sign", "weight"), [("text", 0.3), ("code", -0.3)])
def test_the_edit_is_the_stated_gradient(backbone, sign, weight):
    settings = {"loss_weight": 0.3, "loss_sign": sign}
    trainer = digits("gmed", backbone=backbone, settings=settings, momentum=0.5)
    train(trainer, 8)
    rows = in_double(trainer)
    batch, drawn = rows(1, 6), rows(0, 5)
    before = everything(trainer)
    found = trainer.method.direction(drawn, after_virtual_step(trainer.learner, batch))
    assert changed(before, everything(trainer)) == []
    goal = goal_by_hand(trainer, batch, drawn, weight)
    for row, y, x in [(0, 2, 3), (1, 4, 4), (3, 5, 2), (4, 3, 5)]:
        step = torch.zeros_like(drawn.inputs)
        step[row, 0, y, x] = 1e-5
        slope = (goal(drawn.inputs + step) - goal(drawn.inputs - step)) / 2e-5
        assert float(found[row, 0, y, x]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_edits_are_written_back_and_shrink_with_age():
    settings = {"edit_rate": 0.2, "edit_decay": 0.5}
    trainer = digits("gmed", settings=settings, memory=10, memory_batch=10)
    train(trainer, 2)
    learner, method = trainer.learner, trainer.method
    memory = learner.memory
    assert memory.inputs.dtype == torch.float32
    new = trainer.tasks[0].train.take(torch.arange(8))
    for age in range(3):
        slots = memory.occupied
        held = memory.inputs.clone()
        drawn = Batch(learner.transform(held), memory.labels, memory.ids)
        # The method draws all slots in an order of its own, which batch statistics do not see.
        expected = method.direction(drawn, after_virtual_step(learner, learner.prepare(new)))
        memory.update(slots, edits=torch.full((len(slots),), age))
        ids, entered = memory.ids.clone(), memory.entered.clone()
        method.step(new, None)
        moved = learner.transform(memory.inputs) - learner.transform(held)
        torch.testing.assert_close(moved, 0.2 * 0.5**age * expected, atol=1e-5, rtol=1e-2)
        assert moved.abs().max() > 0
        assert torch.equal(memory.ids, ids)
        assert torch.equal(memory.entered, entered)
        assert (memory["edits"] == age + 1).all()


def test_bytes_become_the_floats_of_the_same_image():
    trainer = digits("gmed", settings={"edit_rate": 0.0})
    train(trainer, 6)
    memory, task = trainer.learner.memory, trainer.tasks[0]
    raw = {int(i): image for i, image in zip(task.train.ids, task.train.take(torch.arange(24))[0])}
    slots = torch.nonzero(memory.tasks == 0).flatten()
    for slot in slots:
        original = raw[int(memory.ids[slot])].float() / 255
        torch.testing.assert_close(memory.inputs[slot], original, atol=1e-5, rtol=0)


def test_without_edits_it_is_er():
    one, other = digits("gmed", settings={"edit_rate": 0.0}), digits("er")
    for trainer in (one, other):
        train(trainer, 12)
    a, b = (list(t.learner.model.parameters()) for t in (one, other))
    for left, right in zip(a, b):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-3)

"""ER-ACE: who competes with whom, and a whole step by hand."""

import copy

import pytest
import torch

from metasp.methods.losses import cross_entropy_among
from metasp.types import Batch
from tests.methods.factories import digits, train


def told(outputs, labels, among):
    """−log of the softmax over some classes, one example at a time."""
    found = []
    for row, label, classes in zip(outputs, labels, among):
        rivals = torch.stack([row[c] for c in sorted(classes)])
        found.append(torch.logsumexp(rivals, 0) - row[label])
    return torch.stack(found)


@pytest.mark.parametrize(
    ("present", "before"), [((7, 2), (0, 9)), ((0, 1), ()), ((3,), (9, 8, 1)), ((8, 9), (0, 1, 2))]
)
def test_incoming_rows_ignore_old_classes_and_no_others_for_any_order(present, before):
    method = digits("er-ace").method
    method.present, method.seen = sorted(present), sorted({*present, *before})
    outputs = torch.randn(8, 10, generator=torch.Generator().manual_seed(1), requires_grad=True)
    labels = torch.tensor([present[row % len(present)] for row in range(8)])
    terms = ((slice(4), method.present), (slice(4, 8), method.seen))
    found = torch.cat([cross_entropy_among(classes)(outputs[rows], labels[rows])
                       for rows, classes in terms])  # fmt: skip
    among = [present] * 4 + [(*present, *before)] * 4
    torch.testing.assert_close(found, told(outputs, labels, among))
    (slope,) = torch.autograd.grad(found.sum(), outputs)
    moved = [set(torch.nonzero(row).flatten().tolist()) for row in slope]
    expected = [set(classes) if len(classes) > 1 else set() for classes in among]
    assert moved == expected


def test_a_wrong_label_from_elsewhere_competes_with_the_task():
    outputs = torch.randn(1, 10)
    found = cross_entropy_among([4, 5])(outputs, torch.tensor([1]))
    torch.testing.assert_close(found, told(outputs, [1], [(1, 4, 5)]))


def test_a_step_is_the_sum_of_both_means_in_one_pass():
    trainer = digits("er-ace", class_order="shuffled", backbone="convnet", lr=0.05)
    train(trainer, 9)
    learner, task = trainer.learner, trainer.tasks[1]
    assert trainer.method.present == sorted(task.classes)
    old = set(trainer.tasks[0].classes)
    assert set(trainer.method.seen) == old | set(task.classes)
    new = task.train.take(torch.arange(6))
    model, stream = copy.deepcopy(learner.model), learner.streams["replay"].get_state()
    slots = learner.memory.draw(8, learner.streams["replay"])
    learner.streams["replay"].set_state(stream)
    held = learner.memory.read(slots)
    batch = Batch.join([new, held])
    outputs = model(learner.transform(batch.inputs))
    among = [task.classes] * 6 + [(*old, *task.classes)] * 8
    each = told(outputs, batch.labels.tolist(), among)
    (each[:6].mean() + each[6:].mean()).backward()
    report = trainer.method.step(new, None)
    assert report.loss == pytest.approx((each[:6].mean() + each[6:].mean()).item(), rel=1e-5)
    for ours, other in zip(learner.model.parameters(), model.parameters()):
        torch.testing.assert_close(ours, other.detach() - 0.05 * other.grad, atol=1e-6, rtol=1e-4)

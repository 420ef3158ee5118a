"""iCaRL: predictions and targets by hand, and the network of before the task."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.errors import UserError
from metasp.events import Evaluated
from metasp.learner import ContinualLearner
from metasp.methods.base import Phase
from metasp.store.forget import cleared
from tests.learner.factories import pair
from tests.methods.factories import digits, fill, train
from tests.methods.test_der import growing


def nearest_by_hand(trainer, inputs, classes):
    """The class of the nearest mean, example by example, in numpy."""
    learner = trainer.learner
    model, memory = copy.deepcopy(learner.model).eval(), learner.memory

    def look(raw):
        with torch.no_grad():
            rows = model.features(learner.transform(raw)).double().numpy()
        return [row / np.linalg.norm(row) for row in rows]

    held, labels = look(memory.inputs[memory.occupied]), memory.labels[memory.occupied].tolist()
    means = {}
    for label in set(labels) & set(classes):
        mean = np.mean([row for row, y in zip(held, labels) if y == label], axis=0)
        means[label] = mean / np.linalg.norm(mean)
    return [min(means, key=lambda y: float(((row - means[y]) ** 2).sum())) for row in look(inputs)]


@pytest.mark.parametrize("backbone", ["mlp", "convnet"])
def test_it_predicts_the_nearest_mean_of_exemplars(backbone):
    trainer = digits("icarl", backbone=backbone, limit_per_class=20, memory=30, width=16)
    scores = [event for event in trainer.run() if isinstance(event, Evaluated)]
    seen = list(range(10))
    for task in trainer.tasks:
        test = task.test.take(torch.arange(len(task.test)))
        for classes, found in ((seen, scores[-1].class_il), (task.classes, scores[-1].task_il)):
            by_hand = nearest_by_hand(trainer, test.inputs, classes)
            right = np.mean(np.array(by_hand) == test.labels.numpy())
            assert found[task.index] == pytest.approx(right, abs=1e-6)


def test_a_class_without_exemplars_is_never_chosen():
    trainer = digits("icarl")
    fill(trainer)
    held = set(trainer.learner.memory.labels[trainer.learner.memory.occupied].tolist())
    found = trainer.method.scoring()(torch.rand(5, 1, 8, 8))
    assert {*found.isfinite().nonzero()[:, 1].tolist()} == held
    assert {*found.argmax(1).tolist()} <= held


def test_old_classes_are_held_to_the_network_of_before_the_task():
    trainer = digits("icarl", class_order="shuffled", lr=0.5, weight_decay=0.0)
    train(trainer, 6)
    learner = trainer.learner
    for event in trainer.run():  # to the end of the first task
        if type(event).__name__ == "TaskFinished":
            break
    before = copy.deepcopy(learner.model).eval()
    train(trainer, 3)
    first, second = (sorted(task.classes) for task in trainer.tasks[:2])
    model, stream = copy.deepcopy(learner.model), learner.streams["replay"].get_state()
    held = learner.memory.read(learner.memory.draw(8, learner.streams["replay"]))
    learner.streams["replay"].set_state(stream)
    new = trainer.tasks[1].train.take(torch.arange(6))
    inputs = learner.transform(torch.cat([new.inputs, held.inputs]))
    labels = torch.cat([new.labels, held.labels])
    outputs = model.train()(inputs)
    with torch.no_grad():
        old = before(inputs)[:, first].sigmoid()
    fresh = torch.stack([labels == label for label in second], 1).float()
    loss = F.binary_cross_entropy_with_logits(
        outputs[:, first + second], torch.cat([old, fresh], 1)
    )
    loss.backward()
    report = trainer.method.step(new, Phase("rehearse", 1, 8, 8, lambda: None))
    assert report.loss == pytest.approx(loss.item(), rel=1e-5)
    for ours, other in zip(learner.model.parameters(), model.parameters()):
        torch.testing.assert_close(ours, other.detach() - 0.5 * other.grad, atol=1e-6, rtol=1e-4)


def test_a_head_that_grows_and_a_file_in_between(tmp_path):
    learner = growing("icarl", lr=0.5)
    learner.learn(pair(0), progress=False)
    learner.save(tmp_path / "a.learner")
    other = ContinualLearner.load(tmp_path / "a.learner", growing("icarl").model)
    for one in (learner, other):
        one.learn(pair(1), progress=False)
        one.learn(pair(2), progress=False)
    assert torch.equal(learner.predict(pair(1)[0]), other.predict(pair(1)[0]))
    assert learner.score(pair(2)) > 0.5
    assert learner.outputs(pair(0)[0]).shape[1] == 6


class Named(nn.Module):
    """A model with a buffer whose name says ids."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 4)
        self.register_buffer("position_ids", torch.arange(4))

    def forward(self, x):
        return self.layer(x) + 0 * self.position_ids


def test_weights_of_before_are_not_taken_for_examples_when_ids_are_forgotten(tmp_path):
    learner = ContinualLearner(Named(), "icarl", memory=8, epochs=1)
    for number in range(2):
        learner.learn(pair(number, 20), progress=False)
    method = {f"method/{k}": t.numpy() for k, t in learner._trainer.method.state_dict().items()}
    after = cleared(method, np.arange(4))
    assert after.keys() == method.keys()
    for name, array in method.items():
        assert np.array_equal(array, after[name])


@pytest.mark.parametrize("method", ["icarl", "er-ace"])
def test_it_takes_no_loss_of_ones_own(method):
    learner = ContinualLearner(nn.Linear(64, 4), method, loss_fn=lambda o, y: o.sum(1), memory=8)
    with pytest.raises(UserError, match="by a loss of its own: leave loss_fn out"):
        learner.learn(pair(0), progress=False)
    labels = torch.rand(120)
    with pytest.raises(UserError, match=r"own: leave loss_fn out|needs classes"):
        learner.learn((pair(0)[0], labels[: len(pair(0)[0])]), progress=False)

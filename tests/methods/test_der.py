"""DER and DER++: the loss by hand, what is stored of an example and when, and two draws."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.learner import ContinualLearner
from metasp.methods.losses import distance_to
from tests.learner.factories import pair
from tests.methods.factories import digits, train


class Noisy:
    """A transform whose augmentation is noise."""

    def __init__(self, base):
        self.base = base

    def __call__(self, raw, generator=None):
        inputs = self.base(raw)
        if generator is None:
            return inputs
        return inputs + 0.3 * torch.randn(inputs.shape, generator=generator)


def drawn(learner, name, count=8):
    """What a stream would draw next."""
    state = learner.streams[name].get_state()
    slots = learner.memory.draw(count, learner.streams[name])
    learner.streams[name].set_state(state)
    return slots


@pytest.mark.parametrize(("method", "alpha", "beta"), [("derpp", 0.4, 0.7), ("der", 0.3, 0.0)])
def test_a_step_descends_the_stated_loss(method, alpha, beta):
    """CE(new) + α·MSE(x′, stored) + β·CE(x″), each a mean, by an SGD step on a copy."""
    settings = {"alpha": alpha, "beta": beta} if method == "derpp" else {}
    trainer = digits(method, settings=settings, lr=0.05)
    train(trainer, 9)
    learner, memory = trainer.learner, trainer.learner.memory
    model = copy.deepcopy(learner.model)
    first = drawn(learner, "replay")
    second = drawn(learner, "replay-labels") if beta else first[:0]
    new = trainer.tasks[1].train.take(torch.arange(6))
    parts = [new, memory.read(first), memory.read(second)]
    outputs = model(learner.transform(torch.cat([part.inputs for part in parts])))
    loss = F.cross_entropy(outputs[:6], new.labels)
    gaps = (outputs[6:14] - memory["logits"][first]) ** 2
    loss = loss + alpha * gaps.sum() / gaps.numel()
    if beta:
        loss = loss + beta * F.cross_entropy(outputs[14:], parts[2].labels)
    loss.backward()
    report = trainer.method.step(new, None)
    assert report.loss == pytest.approx(loss.item(), rel=1e-5)
    for ours, other in zip(learner.model.parameters(), model.parameters()):
        torch.testing.assert_close(ours, other.detach() - 0.05 * other.grad, atol=1e-6, rtol=1e-4)


def test_stored_logits_are_those_of_the_step_for_the_view_it_was_trained_on():
    trainer = digits("derpp", memory=40)
    learner = trainer.learner
    learner.transform = Noisy(learner.transform)
    train(trainer, 3)
    memory, task = learner.memory, trainer.tasks[0]
    assert trainer.position.epoch == 0  # so that what comes is offered
    before = set(memory.ids.tolist())
    model, kept = copy.deepcopy(learner.model), learner.streams.state_dict()
    rows = torch.nonzero(~torch.isin(task.train.ids, memory.ids)).flatten()[:5]
    new = task.train.take(rows)
    parts = [learner.prepare(new)]
    for name in ("replay", "replay-labels"):
        parts.append(learner.prepare_replay(memory.read(drawn(learner, name))))
    expected = model(torch.cat([part.inputs for part in parts]))[:5].detach()
    learner.streams.load_state_dict(kept)
    trainer.method.step(new, None)
    trainer.method.remember(new, task)
    entered = [i for i in memory.ids.tolist() if i not in before]
    assert sorted(entered) == sorted(new.ids.tolist())
    for row, name in enumerate(new.ids.tolist()):
        slot = int(torch.nonzero(memory.ids == name))
        torch.testing.assert_close(memory["logits"][slot], expected[row])
        assert torch.equal(memory.inputs[slot], new.inputs[row])  # the picture itself is raw
    stored = memory["logits"].clone()
    train(trainer, 2)
    still = torch.isin(memory.ids, new.ids)
    torch.testing.assert_close(memory["logits"][still], stored[still], rtol=0, atol=0)


def test_at_a_tasks_end_it_stores_what_the_network_says_then():
    trainer = digits("derpp", selection="herding")
    train(trainer, 7)  # the first step of the second task
    assert trainer.position.task == 1
    trainer = digits("derpp", selection="herding")
    task = trainer.tasks[0]
    new = task.train.take(torch.arange(8))
    trainer.method.begin_task(task)
    trainer.method.step(new, None)
    trainer.method.end_task(task)
    learner, memory = trainer.learner, trainer.learner.memory
    with torch.no_grad():
        said = copy.deepcopy(learner.model).eval()(learner.transform(memory.inputs))
    torch.testing.assert_close(memory["logits"], said)


def test_known_places_alone_are_compared():
    outputs = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    nan = torch.nan
    stored = torch.tensor([[0.0, 4], [nan, nan], [6, nan]])
    assert distance_to(stored)(outputs, None).tolist() == [2.5, 0, 1]


class TwoLayers(nn.Module):
    """A network whose head may grow."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 2)

    def features(self, x):
        return self.body(x).relu()

    def forward(self, x):
        return self.head(self.features(x))


def growing(method, **changes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TwoLayers()
    return ContinualLearner(model, method, memory=20, epochs=8, head="head", **changes)


def test_logits_of_a_head_that_has_grown_since():
    learner = growing("derpp", lr=0.1)
    for number in range(3):
        learner.learn(pair(number, 60), progress=False)
        memory = learner._trainer.learner.memory
        assert memory["logits"].shape == (20, 2 * number + 2)
    for task, row in zip(memory.tasks.tolist(), memory["logits"].isnan().tolist()):
        assert row == [False] * (2 * task + 2) + [True] * (4 - 2 * task)
    assert learner.score(pair(2)) > 0.5
    gone = memory.ids[3:5].clone()
    learner.forget(gone.tolist())
    assert memory["logits"][3:5].isnan().all()
    learner.learn(pair(3, 60), progress=False)
    assert memory["logits"].isfinite().any(1).all()

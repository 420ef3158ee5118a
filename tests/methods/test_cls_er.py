"""CLS-ER: a step and both averages by hand, who predicts, a head that grows and a file between."""

import copy

import pytest
import torch
import torch.nn.functional as F

from metasp.events import Evaluated
from metasp.learner import ContinualLearner
from metasp.types import Batch
from tests.learner.factories import pair
from tests.methods.factories import digits, train
from tests.methods.test_der import drawn, growing

LR = 0.05


def network_of(trainer, average):
    """A real copy of the model with the weights of an average, in evaluation mode."""
    model = copy.deepcopy(trainer.learner.model)
    model.load_state_dict(getattr(trainer.method, average).tensors)
    return model.eval()


def apart(**changes):
    """A trainer in its second task whose two averages are well apart."""
    settings = {"consistency": 0.4, "plastic_decay": 0.3, "stable_decay": 0.95, "span": 1.0}
    trainer = digits("cls-er", settings=settings, lr=LR, backbone="convnet", **changes)
    train(trainer, 9)
    assert trainer.position.task == 1
    return trainer


def test_a_step_descends_the_stated_loss():
    """CE(new and old) + λ·MSE(old, what the better average says), by an SGD step on a copy."""
    trainer = apart()
    learner, memory = trainer.learner, trainer.learner.memory
    new = trainer.tasks[1].train.take(torch.arange(6))
    held = memory.read(drawn(learner, "replay"))
    batch = Batch.join([new, held])
    inputs = learner.transform(batch.inputs)
    with torch.no_grad():
        plastic, stable = (network_of(trainer, n)(inputs[6:]) for n in ("plastic", "stable"))
    chances = [said.softmax(1)[torch.arange(8), held.labels] for said in (plastic, stable)]
    better = chances[1] > chances[0]
    assert 0 < int(better.sum()) < 8
    said = torch.stack([stable[row] if better[row] else plastic[row] for row in range(8)])
    model = copy.deepcopy(learner.model).train()
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, batch.labels) + 0.4 * F.mse_loss(outputs[6:], said)
    loss.backward()
    report = trainer.method.step(new, None)
    assert report.loss == pytest.approx(loss.item(), rel=1e-5)
    for ours, other in zip(learner.model.parameters(), model.parameters()):
        torch.testing.assert_close(ours, other.detach() - LR * other.grad, atol=1e-6, rtol=1e-4)


def test_the_averages_follow_by_hand():
    """Every tensor, running statistics too, with the first moves longer and each by its chance; an
    average spans no more than 0.9 of the 6 steps of a task."""
    settings = {"plastic_rate": 0.6, "stable_rate": 0.3, "plastic_decay": 0.8, "stable_decay": 0.9,
                "span": 0.9}  # fmt: skip
    trainer = digits("cls-er", settings=settings, backbone="resnet18", lr=LR)
    learner = trainer.learner
    wanted = {n: copy.deepcopy(learner.model.state_dict()) for n in ("plastic", "stable")}
    dice = torch.Generator()
    dice.set_state(learner.streams["averages"].get_state())
    moves, floats = {"plastic": 0, "stable": 0}, 0
    for number in range(1, 13):
        train(trainer, 1)
        for name in wanted:
            if float(torch.rand(1, generator=dice)) >= settings[f"{name}_rate"]:
                continue
            moves[name] += 1
            keep = min(1 - 1 / (number + 1), settings[f"{name}_decay"], 1 - 1 / (0.9 * 6))
            for key, now in learner.model.state_dict().items():
                before = wanted[name][key]
                floats += now.is_floating_point()
                mixed = keep * before + (1 - keep) * now
                wanted[name][key] = mixed if now.is_floating_point() else now.clone()
    assert 12 > moves["plastic"] > moves["stable"] > 0 < floats
    for name, tensors in wanted.items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(getattr(trainer.method, name).tensors[key], tensor)


def test_the_stable_average_predicts():
    trainer = apart()
    scores = [event for event in trainer.run() if isinstance(event, Evaluated)]
    stable, network = network_of(trainer, "stable"), copy.deepcopy(trainer.learner.model).eval()
    for task in trainer.tasks:
        test = task.test.take(torch.arange(len(task.test)))
        inputs = trainer.learner.transform(test.inputs)
        with torch.no_grad():
            right = (stable(inputs).argmax(1) == test.labels).double().mean()
        assert scores[-1].class_il[task.index] == pytest.approx(float(right), abs=1e-6)
    assert not torch.allclose(stable(inputs), network(inputs))


def test_looking_leaves_no_trace():
    trainer = apart()
    learner = trainer.learner
    before = copy.deepcopy(learner.model.state_dict())
    modes = [module.training for module in learner.model.modules()]
    held = learner.unaugmented(learner.memory.read(learner.memory.occupied))
    trainer.method.outputs_of(held)
    learner.scoring()(held.inputs)
    for key, value in learner.model.state_dict().items():
        assert torch.equal(value, before[key])
    assert modes == [module.training for module in learner.model.modules()]


def test_a_head_that_grows_and_a_file_in_between(tmp_path):
    learner = growing("cls-er", lr=0.3)
    learner.learn(pair(0), progress=False)
    stable = learner._trainer.method.stable.tensors["head.weight"].clone()
    learner.save(tmp_path / "a.learner")
    other = ContinualLearner.load(tmp_path / "a.learner", growing("cls-er").model)
    assert torch.equal(other.predict(pair(0)[0]), learner.predict(pair(0)[0]))
    for one in (learner, other):
        one.learn(pair(1), progress=False)
    assert torch.equal(learner.outputs(pair(1)[0]), other.outputs(pair(1)[0]))
    now = learner._trainer.method.stable.tensors["head.weight"]
    assert (len(stable), len(now)) == (2, 4)
    assert learner.score(pair(1)) > 0.5

"""What a spec says reaches the trainer that is built from it."""

import pytest
import torch

from metasp.engine.from_spec import faster_channels_last
from metasp.methods.weighting import InfluenceWeights
from tests.methods.worlds import digits

PLAIN = {"momentum": 0.7, "weight_decay": 0.01, "lr": 0.3, "epochs": 4, "batch_size": 9,
         "memory_batch": 5, "rehearse_last": 2, "memory": 23}  # fmt: skip


def test_numbers_reach_the_optimizer_the_plan_and_the_memory():
    trainer = digits("er", width=7, tasks=2, lr_drop_at=(1, 3), lr_drop=0.5, seed=3, **PLAIN)
    learner, plan = trainer.learner, trainer.learner.plan
    (group,) = learner.optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.3, 0.7, 0.01)
    assert len(group["params"]) == len(list(learner.model.parameters()))
    assert (plan.epochs, plan.batch_size, plan.memory_batch, plan.rehearse_last) == (4, 9, 5, 2)
    assert (plan.tasks, plan.shared_classes) == (2, False)
    assert (learner.memory.capacity, learner.streams.seed) == (23, 3)
    assert learner.model.convs[0].out_channels == 7
    assert learner.model.head.out_features == 10
    assert [trainer.lr.at(epoch) for epoch in range(4)] == [0.3, 0.15, 0.15, 0.075]


def test_the_same_seed_the_same_first_weights():
    one, two, other = (digits("er", seed=seed).learner.model.head.weight for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("on", [True, False])
def test_switches_reach_the_learner(on):
    precision = "bf16" if on else "fp32"
    learner = digits("er", augment=on, augment_memory=not on, precision=precision).learner
    assert (learner.augment, learner.augment_memory, learner.bf16) == (on, not on, on)
    assert not learner.compiled
    assert digits("er", compile=on).learner.compiled == on


def test_an_observed_method_weighs_nothing():
    assert digits("er").learner.weigh is None
    weigh = digits("er", observe=3).learner.weigh
    assert weigh == InfluenceWeights(steps=3, observe=True)


@pytest.mark.parametrize(
    ("backbone", "width", "last"),
    [("convnet", 4, True), ("resnet18", 8, True), ("resnet18", 7, False), ("mlp", 64, False)],
)
def test_pictures_are_laid_out_as_is_fast(backbone, width, last):
    assert faster_channels_last(backbone, width) is last
    learner = digits("er", backbone=backbone, width=width).learner
    assert learner.channels_last is last
    kernels = [
        p for p in learner.model.parameters() if p.dim() == 4 and p.shape[2] > 1 < p.shape[1]
    ]
    for kernel in kernels:
        assert kernel.is_contiguous(memory_format=torch.channels_last) is last
    assert bool(kernels) is (backbone != "mlp")


@pytest.mark.parametrize(("backbone", "last"), [("convnet", True), ("mlp", False)])
def test_batches_come_in_the_layout_of_the_network(backbone, last):
    trainer = digits("er", backbone=backbone)
    raw = trainer.tasks[0].train.take(torch.arange(4))
    raw = raw._replace(inputs=raw.inputs.expand(-1, 3, -1, -1))
    for prepared in (trainer.learner.prepare(raw), trainer.learner.prepare_replay(raw)):
        assert prepared.inputs.is_contiguous(memory_format=torch.channels_last) is last
        assert torch.equal(prepared.inputs, trainer.learner.transform(raw.inputs))
        assert torch.equal(prepared.ids, raw.ids)

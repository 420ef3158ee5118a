"""What a spec says reaches the trainer that is built from it."""

import pytest
import torch

from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.methods.weighting import InfluenceWeights
from metasp.spec import RunSpec
from metasp.train.from_spec import LARGE, choose_device, complete, faster_channels_last
from tests.methods.factories import digits

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
    assert [trainer.lr.at(0.3, epoch) for epoch in range(4)] == [0.3, 0.15, 0.15, 0.075]


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


def completed(**changes):
    spec = RunSpec(**{"device": "cpu", "threads": 1, **changes})
    benchmark = load_benchmark(spec)
    return complete(spec, benchmark), benchmark


def test_what_is_not_said_is_filled_in_and_what_is_said_stays():
    done, benchmark = completed(method="gdumb")
    assert (done.lr, done.momentum, done.weight_decay) == (0.05, 0.9, 1e-6)
    assert (done.selection, done.tasks, done.split_by) == ("greedy", 5, "class")
    assert (done.width, done.data_digest) == (16, benchmark.source.digest)
    assert done.settings["memory_epochs"] == 250
    assert complete(done, benchmark) == done
    said = {"lr": 0.2, "momentum": 0.0, "weight_decay": 0.5, "selection": "reservoir", "width": 5,
            "tasks": 2}  # fmt: skip
    done, _ = completed(method="gdumb", settings={"clip": 3.0}, **said)
    assert {name: getattr(done, name) for name in said} == said
    assert done.settings == {"memory_epochs": 250, "train_batch": 16, "cutmix": 0.5, "clip": 3.0}


def test_rehearsal_is_in_all_epochs_unless_said_otherwise():
    assert completed(method="er", epochs=4)[0].rehearse_last == 4
    assert completed(method="er", epochs=4, rehearse_last=3)[0].rehearse_last == 3
    assert completed(method="finetune", epochs=4)[0].rehearse_last is None


def test_the_memory_holds_every_class_and_no_more_than_is_cheap():
    assert completed(method="er", memory=10)[0].memory == 10
    assert completed(method="er", memory=LARGE)[0].memory == LARGE
    for memory, words in ((9, "smaller than the 10 classes"), (LARGE + 1, "larger than the 1433")):
        with pytest.raises(UserError, match=words):
            completed(method="er", memory=memory)
    assert completed(method="finetune", memory=0)[0].memory == 0


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("gradient-diverse", "gradients of single examples"),
        ("judged", "to know which labels are right"),
        ("rehsel", "influence"),
    ],
)
def test_a_selection_that_needs_what_the_method_does_not_compute_is_refused(chosen, words):
    with pytest.raises(UserError, match=f"selection '{chosen}' needs {words}"):
        completed(method="er", selection=chosen)


def test_other_data_is_refused():
    with pytest.raises(UserError, match="is not what this run was started with"):
        completed(data_digest="0123")


def test_a_device_is_there_or_refused():
    assert choose_device("cpu") == torch.device("cpu")
    for name in ("gpu", "meta", "cuda:99"):
        with pytest.raises(UserError, match=f"no device '{name}'"):
            choose_device(name)

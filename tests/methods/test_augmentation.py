"""What is augmented: training batches and replay as they are asked to be, and nothing else."""

from dataclasses import replace

import pytest
import torch

from metasp.methods.weighting import validation_sets
from tests.methods.factories import blobs, on


def trained(**changes):
    """A finished trainer on pictures that may be mirrored, and what its network saw in training."""
    benchmark = blobs([32] * 4)
    benchmark = replace(benchmark, transform=replace(benchmark.transform, flip=True))
    trainer = on(benchmark, "er", backbone="mlp", memory=16, **changes)
    batches = []

    def note(model, inputs):
        if model.training:
            batches.append(inputs[0])

    trainer.learner.model.register_forward_pre_hook(note)
    for _ in trainer.run():
        pass
    return trainer, batches


def mirrored(trainer, inputs):
    """The part of the network inputs that mirror an example; the others must be examples."""
    rows = [task.train.take(torch.arange(len(task.train))).inputs for task in trainer.tasks]
    plain = trainer.learner.transform(torch.cat(rows))
    as_it_is, turned = (
        (side[:, None] == plain[None]).flatten(2).all(2).any(1) for side in (inputs, inputs.flip(3))
    )
    assert (as_it_is ^ turned).all()
    return turned.float().mean().item()


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_new_examples_and_replay_are_augmented_as_asked(new, memory):
    trainer, batches = trained(augment=new, augment_memory=memory)
    whole = torch.stack([inputs for inputs in batches if len(inputs) == 16])  # 8 new, 8 of memory
    assert len(whole) > 20
    for inputs, augmented in ((whole[:, :8], new), (whole[:, 8:], memory)):
        part = mirrored(trainer, inputs.flatten(0, 1))
        assert part == pytest.approx(0.5, abs=0.15) if augmented else part == 0


def test_the_memory_holds_examples_as_they_came():
    trainer, _ = trained()
    memory = trainer.learner.memory
    for task in trainer.tasks:
        for slot in memory.occupied[memory.tasks[memory.occupied] == task.index]:
            row = torch.nonzero(task.train.ids == memory.ids[slot]).flatten()
            assert torch.equal(memory.inputs[slot], task.train.take(row).inputs[0])
    assert len(memory) == 16


def test_influence_is_measured_on_examples_as_they_are():
    trainer, _ = trained()
    trainer.learner.task, trainer.learner.current = 1, trainer.tasks[1].train
    for inputs in (batch.inputs for batch in validation_sets(trainer.learner, 8, 8)):
        assert mirrored(trainer, inputs) == 0

"""ER-ACE with AER and ABS: epochs that are undone, and a memory of low loss."""

import torch

from metasp.memory import SELECTIONS, Memory, Offer
from metasp.types import Batch
from tests.methods.factories import digits, weights


def test_an_epoch_without_replay_is_undone_but_in_the_first_task_and_fills_the_memory():
    trainer = digits("aer-abs", epochs=4, limit_per_class=8)
    at_start, filled = {}, {}
    for event in trainer.run():
        if type(event).__name__ != "StepTaken":
            continue
        key = (event.task, event.epoch)
        filled.setdefault(key, []).append(int(trainer.learner.memory.written))
        if key not in at_start and event.step == 0:
            at_start[key] = None
        if event.task == 1 and event.epoch == 2 and event.step == 0:
            break
    written = {key: counts[-1] - counts[0] for key, counts in filled.items()}
    assert written[0, 0] > 0
    assert written[0, 1] == written[0, 3] == written[1, 1] == 0
    assert trainer.method.before.tensors  # the third epoch of a task is to be undone
    kept = {name: tensor.clone() for name, tensor in trainer.method.before.tensors.items()}
    trainer.method.begin_epoch(trainer.tasks[1], 3)
    for name, parameter in trainer.learner.model.named_parameters():
        assert torch.equal(parameter, kept[name])
    assert not trainer.method.before.tensors
    assert weights(trainer).isfinite().all()


def test_the_memory_gives_up_high_losses_of_the_task_and_low_ones_of_the_past():
    """Ten slots hold each task; those of loss 9 and 0 go most often."""
    gone = torch.zeros(2, 10)
    for seed in range(300):
        memory = Memory(20, SELECTIONS["asymmetric"].columns)
        draw = torch.Generator().manual_seed(seed)
        for task in range(2):
            ids = torch.arange(10) + 10 * task
            batch = Batch(torch.zeros(10, 1), torch.full((10,), task), ids)
            memory.write(ids, batch, task, replay_loss=torch.arange(10.0))
        offer = Offer(torch.ones(1).long(), torch.tensor([99]), 1, 2, loss=torch.ones(1))
        placement = SELECTIONS["asymmetric"].decide(memory, offer, draw)
        assert placement.columns["replay_loss"].tolist() == [1.0] * len(placement.slots)
        for slot in placement.slots.tolist():
            gone[slot // 10, slot % 10] += 1
    expected = torch.stack([9 - torch.arange(10.0), torch.arange(10.0)]) / 90 * 300
    assert gone.sum() == 300
    assert float((gone - expected).abs().max()) < 5 * 6
    assert gone[0, 9] == gone[1, 0] == 0

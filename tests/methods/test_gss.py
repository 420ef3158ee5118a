"""GSS: cosines by hand, decisions on constructed memories, and a stream with duplicates."""

import copy

import pytest
import torch

from metasp.errors import UserError
from metasp.memory import SELECTIONS, Memory, Offer
from metasp.methods.gss import redundancy
from metasp.types import Batch
from tests.methods.factories import changed, digits, everything, train

DECIDE = SELECTIONS["gradient-diverse"].decide


def gradients_by_hand(learner, batch):
    """One backward pass per example, in evaluation mode, on a copy."""
    model = copy.deepcopy(learner.model).eval()
    rows = []
    for row in range(batch.size):
        model.zero_grad()
        one = slice(row, row + 1)
        learner.loss_fn(model(batch.inputs[one]), batch.labels[one]).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return torch.stack(rows)


@pytest.mark.parametrize("backbone", ["mlp", "convnet", "resnet18"])
def test_redundancy_is_the_largest_cosine_of_single_gradients(backbone):
    trainer = digits("gss", backbone=backbone)
    train(trainer, 4)
    learner = trainer.learner
    batch = learner.unaugmented(trainer.tasks[1].train.take(torch.arange(7)))
    references = learner.unaugmented(trainer.tasks[0].train.take(torch.arange(3)))
    before = everything(trainer)
    found = redundancy(learner, batch, references)
    assert changed(before, everything(trainer)) == []
    ours, theirs = gradients_by_hand(learner, batch), gradients_by_hand(learner, references)
    expected = torch.cosine_similarity(ours[:, None], theirs[None], dim=-1).amax(1) + 1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def full_memory(held):
    memory = Memory(len(held), SELECTIONS["gradient-diverse"].columns)
    rows = torch.arange(len(held))
    memory.write(rows, Batch(rows[:, None].float(), rows, rows), 0, redundancy=held)
    return memory


def offered(fresh):
    rows = torch.arange(len(fresh))
    return Offer(rows, rows + 100, 1, 2, redundancy=fresh)


def test_a_gradient_like_those_in_memory_never_enters_a_full_one():
    generator = torch.Generator().manual_seed(0)
    fresh = torch.tensor([1.0, 1.2, 2.0] * 20)
    placement = DECIDE(full_memory(torch.full((4,), 2.0)), offered(fresh), generator)
    assert len(placement.slots) == 0


def test_an_opposed_gradient_replaces_by_the_stated_chances():
    """Slot i is challenged with chance s_i / Σs and given up with chance s_i / (s_i + s_new)."""
    held, own, draws = torch.tensor([2.0, 1.0, 0.5, 0.5]), 0.5, 3000
    generator = torch.Generator().manual_seed(1)
    memory, counts = full_memory(held), torch.zeros(4)
    for _ in range(draws):
        placement = DECIDE(memory, offered(torch.tensor([own])), generator)
        counts[placement.slots] += 1
    expected = held / held.sum() * held / (held + own)
    deviation = (expected * (1 - expected) / draws).sqrt()
    assert ((counts / draws - expected).abs() < 4 * deviation).all()


def test_a_later_row_of_a_batch_meets_what_an_earlier_one_changed():
    """With one redundant slot, the first opposed row takes it; it is then as safe as the rest."""
    generator = torch.Generator().manual_seed(2)
    held = torch.tensor([2.0, 0.0, 0.0, 0.0])
    placement = DECIDE(full_memory(held), offered(torch.zeros(6)), generator)
    assert placement.slots.tolist() == [0]
    assert placement.chosen.tolist() == [0]


def test_only_gss_can_use_its_selection():
    with pytest.raises(UserError, match="use gss"):  # before anything is trained
        digits("er", selection="gradient-diverse")
    offer = Offer(torch.zeros(2).long(), torch.arange(2), 0, 1)  # in a loop of one's own
    with pytest.raises(UserError, match="only gss"):
        SELECTIONS["gradient-diverse"].decide(Memory(4), offer, torch.Generator())


@pytest.mark.parametrize("every", [False, True])
def test_a_task_is_offered_in_its_first_epoch_or_in_all(every):
    trainer = digits("gss", epochs=3, settings={"every_epoch": every}, memory=10)
    train(trainer, 9)
    offered = trainer.learner.memory.offered
    assert offered == 24 if not every else 24 < offered <= 72 - 20  # what it holds is left out
    assert len(set(trainer.learner.memory.ids.tolist())) == 10

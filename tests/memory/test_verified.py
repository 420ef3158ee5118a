"""Verified examples in the memory: pinned within their class's share, counted in its budget."""

import torch

from metasp.memory import Memory
from metasp.memory.balanced import admit
from metasp.types import Batch


def filled(labels, pinned=()):
    memory = Memory(len(labels))
    rows = torch.arange(len(labels))
    memory.write(rows, Batch(rows[:, None].float(), torch.tensor(labels), rows), 0)
    slots = torch.tensor(pinned, dtype=torch.long)
    memory.update(slots, pinned=torch.ones_like(slots))
    return memory


def decide(memory, labels, classes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return admit(memory, torch.tensor(labels), classes, draw)


def test_they_take_free_slots_before_anything_leaves():
    found = decide(Memory(8), [0, 0, 1, 1], [0, 1])
    assert found.placement.slots.tolist() == [0, 1, 2, 3]
    assert sorted(found.placement.chosen.tolist()) == [0, 1, 2, 3]
    assert (len(found.unpinned), found.refused) == (0, 0)


def test_of_a_full_memory_the_largest_class_gives_way_and_nothing_pinned():
    memory = filled([0, 0, 0, 0, 0, 1, 1, 1], pinned=[0, 1])
    found = decide(memory, [2, 2], [0, 1, 2])
    assert set(found.placement.slots.tolist()) <= {2, 3, 4}
    assert len(set(found.placement.slots.tolist())) == 2


def test_a_class_with_more_of_them_than_its_share_keeps_a_random_share():
    entered = torch.zeros(6)
    for seed in range(400):
        found = decide(Memory(8), [0] * 6, [0, 1, 2, 3], seed)  # a share of two
        assert found.refused == 4
        entered[found.placement.chosen] += 1
    assert entered.sum() == 800
    assert entered.min() > 95  # 133 each are expected, with a deviation of 9


def test_a_share_that_shrinks_takes_pins_away_but_never_below_it():
    memory = filled([0, 0, 0, 0, 1, 1, 1, 1], pinned=[0, 1, 2, 3, 4])
    found = decide(memory, [2, 3], [0, 1, 2, 3])  # from four slots per class to two
    assert len(found.unpinned) == 2
    assert set(found.unpinned.tolist()) <= {0, 1, 2, 3}
    assert found.refused == 0
    assert 4 not in found.placement.slots.tolist()


def test_where_every_slot_is_pinned_a_newcomer_is_refused_only_beyond_the_shares():
    memory = filled([0, 1], pinned=[0, 1])
    found = decide(memory, [2], [0, 1, 2])
    assert (len(found.placement.slots), found.refused) == (0, 1)


def test_where_nobody_finds_room_the_memory_stays_as_it_is():
    memory = filled([0, 1], pinned=[0, 1])
    found = decide(memory, [2], [0, 1, 2])
    newcomer = Batch(torch.full((1, 1), 9.0), torch.tensor([2]), torch.tensor([9]))
    memory.apply(found.placement, newcomer, 1)
    assert memory.ids.tolist() == memory.inputs.flatten().tolist() == [0, 1]

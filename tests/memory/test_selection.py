from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from scipy.stats import chisquare

from metasp.errors import UserError
from metasp.memory import SELECTIONS, Memory, Offer, selection
from metasp.memory.balanced import shares
from metasp.types import Batch


def batch(ids, labels=None):
    ids = torch.as_tensor(ids)
    labels = torch.zeros_like(ids) if labels is None else torch.as_tensor(labels)
    return Batch(ids[:, None].to(torch.uint8), labels, ids)


def generator(seed):
    made = torch.Generator()
    made.manual_seed(seed)
    return made


def offer(memory, name, rows, task=0, tasks=5, seed=0, made=None):
    made = made or generator(seed)
    decided = SELECTIONS[name].decide(memory, Offer(rows.labels, rows.ids, task, tasks), made)
    memory.apply(decided, rows, task)
    return decided


def test_reservoir_gives_every_item_the_same_chance():
    """5,000 streams of 20 items into 5 slots: an off-by-one would shift the last item's chance
    from 1/4 to 1/4.2, which this many trials tell apart."""
    made = generator(7)
    hits = torch.zeros(20)
    for _ in range(5000):
        memory = Memory(5)
        for start in range(0, 20, 4):
            offer(memory, "reservoir", batch(range(start, start + 4)), made=made)
        hits[memory.ids] += 1
    assert hits.sum() == 5000 * 5
    assert chisquare(hits.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("name", ["class-balanced", "task-balanced"])
def test_task_end_selections_share_evenly_and_hold_nothing_twice(name):
    memory, made = Memory(50), generator(0)
    for task in range(5):
        ids = torch.arange(100 * task, 100 * task + 60)
        rows = batch(ids, 2 * task + ids % 2)
        offer(memory, name, rows, task, made=made)
        assert len(memory) == 50
        assert len(set(memory.ids.tolist())) == 50
        groups = memory.tasks if name == "task-balanced" else memory.labels
        counts = torch.unique(groups, return_counts=True)[1]
        assert len(counts) == (task + 1) * (1 if name == "task-balanced" else 2)
        assert counts.max() - counts.min() <= 1
        assert torch.equal(memory.inputs[:, 0], memory.ids.to(torch.uint8))


def decide_by_loss(memory, rows, loss, task=0):
    offered = Offer(rows.labels, rows.ids, task, 5, final_loss=lambda: loss)
    memory.apply(SELECTIONS["low-loss"].decide(memory, offered, generator(task)), rows, task)


def test_low_loss_takes_the_lower_half_of_each_class_and_shares_evenly():
    """Class 1 has the higher losses throughout: halves of the whole task would leave it out."""
    memory = Memory(20)
    for task in range(2):
        ids = torch.arange(100 * task, 100 * task + 60)
        rows = batch(ids, 2 * task + ids % 2)
        loss = torch.rand(60, generator=generator(5)) + 2 * (ids % 2)
        decide_by_loss(memory, rows, loss, task)
        middle = {y: loss[rows.labels == y].median() for y in rows.labels.unique().tolist()}
        for example, label in zip(memory.ids.tolist(), memory.labels.tolist()):
            if label // 2 == task:
                assert loss[example - 100 * task] <= middle[label]
    assert memory.labels.bincount().tolist() == [5, 5, 5, 5]


def test_low_loss_without_losses_says_so():
    with pytest.raises(UserError, match="Offer with final_loss, or use class-balanced"):
        offer(Memory(4), "low-loss", batch(range(4)))


def test_an_example_already_held_is_not_stored_again():
    memory = Memory(10)
    offer(memory, "task-balanced", batch(range(6)))
    offer(memory, "task-balanced", batch(range(6)))
    assert sorted(memory.ids[memory.occupied].tolist()) == list(range(6))


@pytest.mark.parametrize("name", sorted(set(SELECTIONS) & {"reservoir", "ring", "greedy"}))
def test_freed_slots_are_filled_again(name):
    memory = Memory(6)
    offer(memory, name, batch(range(6)), tasks=1)
    memory.clear(torch.tensor([1, 4]))
    assert len(memory) == 4
    assert not memory.inputs[[1, 4]].any()
    offer(memory, name, batch([10, 11]), tasks=1)
    assert {10, 11} <= set(memory.ids.tolist())


def test_shares_fill_what_small_groups_leave():
    assert shares(10, {0: 100, 1: 2, 2: 100}) == {0: 4, 1: 2, 2: 4}
    assert shares(7, {0: 9, 1: 9, 2: 9}) == {0: 3, 1: 2, 2: 2}
    assert shares(10, {0: 1, 1: 2}) == {0: 1, 1: 2}


@pytest.mark.parametrize("slots", [1, 2, 7, 20, 59])
def test_with_more_groups_than_slots_the_newest_still_enters(slots):
    given = shares(slots, dict.fromkeys(range(60), 5))
    assert sum(given.values()) == slots
    assert max(given.values()) == 1
    assert given[59] == 1
    if slots > 1:  # and the gaps between those that got one are even
        places = [group for group in sorted(given) if given[group]]
        gaps = {b - a for a, b in pairwise(places)}
        assert places[0] == 0
        assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("name", ["class-balanced", "task-balanced"])
def test_a_memory_smaller_than_the_number_of_tasks_goes_on_changing(name):
    memory = Memory(5)
    for task in range(12):
        offer(memory, name, batch(range(10 * task, 10 * task + 10), [task] * 10), task, tasks=0)
        assert len(memory) == 5
        assert task in memory.tasks.tolist()


def test_unknown_selection_names_the_nearest():
    with pytest.raises(ValueError, match="reservoir"):
        selection("resevoir")


def ring_by_hand(memory, offer, share):
    """The ring as its sentence says it: look at every slot for every row."""
    tasks, entered, placed = memory.tasks.tolist(), memory.entered.tolist(), {}
    for row in range(len(offer.ids)):
        slots = [s for s, task in enumerate(tasks) if task == offer.task]
        if len(slots) < share:
            slots = [s for s, task in enumerate(tasks) if task < 0]
            if not slots:
                most = min(set(tasks), key=lambda task: (-tasks.count(task), task))
                slots = [s for s, task in enumerate(tasks) if task == most]
        slot = min(slots, key=lambda s: (entered[s], s))
        tasks[slot], entered[slot] = offer.task, memory.written + row
        placed[slot] = row
    return placed


@pytest.mark.parametrize("capacity", [1, 5, 12])
def test_the_ring_is_the_one_of_its_sentence(capacity):
    draw, start = torch.Generator().manual_seed(capacity), 0
    memory = Memory(capacity)
    for task in range(4):
        for count in (1, 3, 9):
            ids = torch.arange(start, start + count)
            batch = Batch(torch.zeros(count, 1), torch.zeros(count, dtype=torch.long), ids)
            start += count
            offer = Offer(batch.labels, ids, task, 4)
            placed = SELECTIONS["ring"].decide(memory, offer, draw)
            wanted = ring_by_hand(memory, offer, max(1, capacity // 4))
            assert dict(zip(placed.slots.tolist(), placed.chosen.tolist())) == wanted
            memory.apply(placed, batch, task)


def test_greedy_takes_the_first_free_slot_and_then_any_of_the_largest_class():
    memory, draw = Memory(6), torch.Generator().manual_seed(0)

    def offer(labels, first):
        ids = torch.arange(first, first + len(labels))
        batch = Batch(torch.zeros(len(labels), 1), torch.tensor(labels), ids)
        placed = SELECTIONS["greedy"].decide(memory, Offer(batch.labels, ids, 0, 1), draw)
        memory.apply(placed, batch, 0)
        return placed.slots.tolist()

    assert offer([4, 4, 4, 4], 0) == [0, 1, 2, 3]
    assert offer([7], 4) == [4]
    assert offer([7, 7, 7], 5)[0] == 5
    assert sorted(memory.labels.tolist()) == [4, 4, 4, 7, 7, 7]
    (slot,) = offer([9], 9)
    assert slot in range(6)
    assert offer([4, 7], 10) == []  # a third of six each, and they hold that or more


def test_the_ring_lets_nobody_in_where_all_of_the_task_are_pinned():
    memory = Memory(4)
    offer(memory, "ring", batch(range(4)), tasks=2)
    own = torch.nonzero(memory.tasks == 0).flatten()
    assert len(own) == 2
    memory.update(own, pinned=torch.ones(2, dtype=torch.bool))
    before = memory.ids.clone()
    assert len(offer(memory, "ring", batch(range(10, 13)), tasks=2).slots) == 0
    assert torch.equal(memory.ids, before)


@pytest.mark.parametrize("name", SELECTIONS)
def test_one_that_cannot_decide_without_a_judgement_says_so_of_itself(name):
    chosen, rows = SELECTIONS[name], batch(range(6))
    known = {"points": lambda at: torch.rand(len(at), 2), "influence": torch.rand(6).double(),
             "loss": torch.rand(6), "final_loss": lambda: torch.rand(6),
             "redundancy": torch.zeros(6)}  # fmt: skip
    refused = pytest.raises(UserError, match="judges labels") if chosen.judged else nullcontext()
    with refused:
        given = Offer(rows.labels, rows.ids, 0, 1, **known)
        chosen.decide(Memory(4, chosen.columns), given, generator(0))

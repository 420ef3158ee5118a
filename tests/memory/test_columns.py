"""What a method or a selection keeps per slot: written, cleared, restored, listed and widened by
the memory alone; and slots that are pinned."""

import numpy as np
import pytest
import torch

from metasp.encoded import EncodedRows
from metasp.memory import SELECTIONS, Column, Memory, Offer
from metasp.store.forget import cleared
from metasp.types import Batch

COLUMNS = (
    Column("logits", of="outputs"),
    Column("seen", dtype=torch.long, blank=7),
    Column("patch", of=(2, 2)),
    Column("seen_by_head", of="features"),
)


def examples(ids, labels=None):
    ids = torch.as_tensor(ids)
    labels = torch.zeros_like(ids) if labels is None else torch.as_tensor(labels)
    return Batch(ids[:, None].float() + 1, labels, ids)


def filled(capacity=4):
    """Slots 0 and 2 hold examples 10 and 11, each with values of its own in every column."""
    memory = Memory(capacity, COLUMNS)
    memory.write(
        torch.tensor([2, 0]),
        examples([11, 10], [1, 0]),
        task=3,
        logits=torch.tensor([[11.0, 12.0], [10.0, 13.0]]),
        seen=torch.tensor([5, 6]),
        patch=torch.arange(8.0).view(2, 2, 2),
        seen_by_head=torch.tensor([[1.0], [2.0]]),
    )
    return memory


def test_each_row_has_the_values_it_was_written_with():
    memory = filled()
    assert memory["logits"][[0, 2]].tolist() == [[10.0, 13.0], [11.0, 12.0]]
    assert memory["seen"].tolist() == [6, 7, 5, 7]
    assert memory["patch"][0].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert memory["logits"][[1, 3]].isnan().all()


def test_a_wider_row_widens_all_and_the_new_places_are_unknown():
    memory = filled()
    memory.write(torch.tensor([1]), examples([12]), 4, logits=torch.tensor([[1.0, 2.0, 3.0]]))
    assert memory["logits"][0, :2].tolist() == [10.0, 13.0]
    assert bool(memory["logits"][0, 2].isnan())
    assert memory["logits"][1].tolist() == [1.0, 2.0, 3.0]
    memory.write(torch.tensor([3]), examples([13]), 4, logits=torch.tensor([[4.0]]))
    assert memory["logits"][3, 0] == 4
    assert memory["logits"][3, 1:].isnan().all()


def test_clearing_leaves_nothing_in_any_column():
    memory = filled()
    memory.update(memory.occupied, pinned=torch.tensor([True, True]))
    memory.forget(torch.tensor([10]))
    empty = Memory(4, COLUMNS)
    for name in memory.columns:
        blank = empty[name][0] if memory[name].dim() == 1 else memory[name][1]
        torch.testing.assert_close(memory[name][0], blank, equal_nan=True)
    assert not memory.inputs[0].any()
    assert memory.ids.tolist() == [-1, -1, 11, -1]


def test_a_state_restores_every_column_and_an_older_one_leaves_new_columns_blank():
    memory, again = filled(), Memory(4, COLUMNS)
    again.load_state_dict(memory.state_dict())
    for name in memory.columns:
        torch.testing.assert_close(again[name], memory[name], equal_nan=True, rtol=0, atol=0)
    assert (again.offered, again.written) == (memory.offered, memory.written)
    old = {name: t for name, t in memory.state_dict().items() if name not in ("pinned", "seen")}
    again.load_state_dict(old)
    assert again["seen"].tolist() == [7, 7, 7, 7]
    assert not again.pinned.any()


def test_forgetting_on_disk_and_in_memory_end_in_the_same_memory():
    memory = filled()
    stored = {f"memory/{name}": t.numpy() for name, t in memory.state_dict().items()}
    erased = cleared(stored, np.array([10]))
    for name, array in erased.items():
        if name != "memory/counters":
            assert not np.isin(array[0], [6, 10, 13, 4, 5, 7, 2, 11]).any(), name
    again = Memory(4, COLUMNS)
    again.load_state_dict({k.split("/")[1]: torch.from_numpy(v.copy()) for k, v in erased.items()})
    memory.forget(torch.tensor([10]))
    for name in memory.columns:
        torch.testing.assert_close(again[name], memory[name], equal_nan=True, rtol=0, atol=0)


def test_the_table_lists_what_has_one_value_per_slot():
    table = filled().table()
    assert table["seen"] == [6, 5]
    assert table["pinned"] == [False, False]
    assert not {"logits", "patch"} & set(table)


def offer_for(memory, labels, ids, task):
    """An offer that every selection can decide about; old examples are the more helpful ones."""
    draw = torch.Generator().manual_seed(task)
    size = len(ids)
    return Offer(
        labels,
        ids,
        task,
        tasks=4,
        points=lambda rows: torch.rand(len(rows), 2, generator=draw),
        influence=-torch.rand(size, generator=draw).double() - 1,
        loss=torch.rand(size, generator=draw).double(),
        held_loss=torch.rand(memory.capacity, generator=draw).double() + 1,
        final_loss=lambda: torch.rand(size, generator=draw),
        redundancy=torch.zeros(size),
        right=torch.ones(size).double(),
        task_loss=torch.rand(size, generator=draw).double(),
    )


@pytest.mark.parametrize("name", SELECTIONS)
def test_what_is_pinned_stays_while_its_class_has_a_share(name):
    """Two of the three slots due to each class in the end are pinned; every newcomer would be
    welcome in their place."""
    chosen, memory = SELECTIONS[name], Memory(24, SELECTIONS[name].columns)
    draw = torch.Generator().manual_seed(0)
    pinned: set[int] = set()
    for task in range(4):
        ids = torch.arange(100 * task, 100 * task + 40)
        batch = examples(ids, 2 * task + ids % 2)
        for rows in torch.split(torch.arange(40), 40 if chosen.at == "task" else 8):
            part = batch.at(rows)
            offer = offer_for(memory, part.labels, part.ids, task)
            memory.apply(chosen.decide(memory, offer, draw), part, task)
        for label in (2 * task, 2 * task + 1):
            own = torch.nonzero((memory.labels == label) & (memory.ids >= 0)).flatten()[:2]
            memory.update(own, pinned=torch.ones(len(own), dtype=torch.bool))
            pinned |= set(memory.ids[own].tolist())
        assert pinned <= set(memory.ids.tolist())
        if chosen.at == "task" or name in ("ring", "greedy"):
            assert len(pinned) == 4 * (task + 1)  # every task found room beside them
    assert memory.pinned.sum() == len(pinned)


def test_a_pinned_slot_gives_way_when_its_class_has_no_share_left():
    memory = Memory(2)
    memory.write(torch.arange(2), examples([0, 1], [0, 0]), 0)
    memory.update(torch.arange(2), pinned=torch.ones(2, dtype=torch.bool))
    rows = examples(range(10, 20), [1] * 10)
    decide, draw = SELECTIONS["class-balanced"].decide, torch.Generator()
    memory.apply(decide(memory, Offer(rows.labels, rows.ids, 1, 2), draw), rows, 1)
    assert sorted(memory.labels.tolist()) == [0, 1]


def test_a_memory_that_was_never_written_to_is_an_empty_data_set():
    found = Memory(3).examples()
    assert len(found) == len(found.labels) == len(found.ids) == 0
    assert found.take(torch.arange(0)).size == 0


class Plain(EncodedRows):
    """Pictures of one number, whose encoded form is that byte."""

    def read(self, rows):
        return [bytes([row]) for row in rows]

    def decode(self, content, row):
        return np.frombuffer(content, np.uint8).reshape(1, 1, 1)

    def encode(self, picture):
        return picture.tobytes()


def test_pictures_that_stay_encoded_come_back_from_the_slots_they_were_put_in():
    memory, ids = Memory(4, pictures=Plain(9, (1, 1, 1))), torch.tensor([5, 8])
    pictures = ids.to(torch.uint8).view(2, 1, 1, 1)
    memory.write(torch.tensor([3, 0]), Batch(pictures, torch.zeros_like(ids), ids), 0)
    assert memory.inputs.contents == [b"\x08", b"", b"", b"\x05"]
    assert memory.read(torch.tensor([0, 3])).inputs.flatten().tolist() == [8, 5]

"""Corrupt pictures leave each task before it begins, with one note about them."""

import pytest
import torch

from metasp.encoded import LazyRows
from metasp.errors import UserError
from metasp.train.skipping import Skipping
from metasp.types import Examples, Task

WHY = "the picture in row {} is corrupt"
HOLES = {row: WHY.format(row) + ": repair it, or skip it." for row in (1, 2, 4, 6)}


class WithHoles(LazyRows):
    """Rows of a tensor some of which are corrupt."""

    def __init__(self, values, holes):
        super().__init__(len(values), values.shape[1:])
        self.values, self.holes = values, holes

    def __getitem__(self, rows):
        return self.values[rows]

    def unreadable(self, rows):
        return {row: self.holes[row] for row in rows.tolist() if row in self.holes}


def rows_of(source, *rows):
    index = torch.tensor(rows)
    return Examples(source, index, index % 2, index + 100)


def task_of(source):
    train, test, validation = (rows_of(source, *rows) for rows in ((0, 1, 2), (3, 4), (5, 6, 7)))
    return Task(0, (0, 1), train, test, validation=validation)


def test_every_part_of_a_task_goes_without_them():
    task = task_of(WithHoles(torch.arange(8).byte()[:, None], HOLES))
    skipping, notes = Skipping(skip=True), list[str]()
    sound = skipping.sound(task, notes)
    parts = (sound.train, sound.test, sound.validation)
    assert [part.rows.tolist() for part in parts] == [[0], [3], [5, 7]]
    named = "; ".join(WHY.format(row) for row in (1, 2, 4))
    assert notes == [f"corrupt pictures left out: 4 ({named}; and 1 more)."]
    assert skipping.rows.tolist() == [1, 2, 4, 6]
    again = Skipping(skip=True)
    again.load_state_dict(skipping.state_dict())
    (restored,) = again.without_corrupt([task])
    assert restored.validation.rows.tolist() == [5, 7]
    assert again.rows.tolist() == [1, 2, 4, 6]


def test_nothing_is_looked_at_unless_it_is_told_to_skip():
    task, notes = task_of(WithHoles(torch.arange(8).byte()[:, None], HOLES)), list[str]()
    assert Skipping().sound(task, notes) is task
    whole = task_of(torch.arange(8)[:, None])
    assert Skipping(skip=True).sound(whole, notes) is whole
    assert notes == []


def test_a_task_without_a_sound_train_picture_is_a_mistake():
    task = task_of(WithHoles(torch.arange(8).byte()[:, None], dict.fromkeys((0, 1, 2), "bad")))
    with pytest.raises(UserError, match="all train pictures of task 1 are corrupt"):
        Skipping(skip=True).sound(task, [])

"""A task that is open: its window, and the detector of change that is told its losses."""

import torch

from metasp.train.online import OpenTask
from metasp.types import Batch


class Rise:
    """Sees a change where a loss is above one."""

    def __init__(self):
        self.drift_detected, self.told = False, []

    def update(self, x):
        self.told.append(x)
        self.drift_detected = x > 1


def batch(*ids):
    return Batch(torch.tensor(ids)[:, None].float(), torch.zeros(len(ids)), torch.tensor(ids))


def test_the_detector_is_told_and_starts_anew_with_each_task():
    task = OpenTask(detector=Rise)
    assert [task.change.saw(loss) for loss in (0.5, 0.4, 3.0)] == [False, False, True]
    task.take(batch(1))
    again = OpenTask(detector=Rise)
    again.load_state_dict(task.state_dict())
    assert again.change.detector.told == [0.5, 0.4, 3.0]
    task.close()
    assert task.change.detector.told == []
    assert OpenTask().change is None


def test_the_window_holds_the_newest_examples_once_each():
    task = OpenTask(window=3)
    assert not task
    task.take(batch(1, 2))
    task.take(batch(2, 3, 4))
    assert task
    assert task.examples.ids.tolist() == [2, 3, 4]
    task.take(batch(3))
    assert task.examples.ids.tolist() == [2, 4, 3]
    task.forget(torch.tensor([4]))
    assert task.examples.ids.tolist() == [2, 3]
    assert task.examples.source.flatten().tolist() == [2, 3]

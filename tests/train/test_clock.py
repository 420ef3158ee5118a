"""How long a run still takes, and how many steps that is."""

from collections import Counter
from types import SimpleNamespace

import pytest

from metasp.events import StepTaken
from metasp.train.clock import Clock
from tests.methods.factories import blobs, on


def taken(kind, seconds):
    return StepTaken(0, 0, 0, kind, 1.0, 0.1, seconds)


def test_what_is_left_goes_by_the_measured_time_of_each_kind_of_step(monkeypatch):
    time = SimpleNamespace(now=100.0, monotonic=lambda: time.now)
    monkeypatch.setattr("metasp.train.clock.time", time)
    clock = Clock()
    left = {"finetune": (10, 1.0), "influence": (2, 9.0)}
    assert clock.left(left) == 0.0  # nothing is known yet
    time.now += 60.0  # loading the data, which is not done again
    for _ in range(4):
        time.now += 0.5
        clock.saw(taken("finetune", 0.5))
    assert clock.left({"finetune": (10, 1.0)}) == pytest.approx(10 * 0.5)
    time.now += 1.0  # a test of the model: all else costs half as much as the steps
    # A kind not met yet costs nine plain steps, as it says of itself.
    assert clock.left(left) == pytest.approx(1.5 * (10 * 0.5 + 2 * 9 * 0.5))
    # Costs are relative: were all twice as large, nothing would change.
    twice = {"finetune": (10, 2.0), "influence": (2, 18.0)}
    assert clock.left(twice) == pytest.approx(clock.left(left))
    for _ in range(2):
        clock.saw(taken("influence", 3.0))
    time.now += 9.0
    assert clock.left(left) == pytest.approx(1.5 * (10 * 0.5 + 2 * 3.0))


@pytest.mark.parametrize(
    ("method", "changes", "kinds"),
    [
        ("er", {"rehearse_last": 1}, {"finetune", "rehearse"}),
        ("metasp", {"settings": {"influence_last": 2}}, {"finetune", "influence"}),
    ],
)
def test_the_steps_that_remain_are_those_that_come(method, changes, kinds):
    trainer = on(blobs([11, 8, 5, 9]), method, backbone="mlp", epochs=3, **changes)
    before = trainer.remaining()
    seen = [(event.kind, trainer.remaining()) for event in trainer.run() if is_step(event)]
    assert {kind for kind, _ in seen} == kinds
    to_come = Counter(kind for kind, _ in seen)
    assert steps(before) == to_come
    for kind, left in seen:
        to_come[kind] -= 1
        assert steps(left) == +to_come
    assert not trainer.remaining()


def is_step(event):
    return isinstance(event, StepTaken)


def steps(remaining):
    """The numbers of steps by kind, of which some are left."""
    return +Counter({kind: count for kind, (count, _) in remaining.items()})

"""What a user's code draws from the global streams while a learner learns."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from metasp.learner import ContinualLearner
from metasp.train.randomness import OwnRandomness
from metasp.types import Streams
from tests.learner.factories import everything, net, pair


class Jitter:
    """A transform that draws from all three global streams, and remembers what it drew."""

    def __init__(self) -> None:
        self.drawn: list[tuple[float, ...]] = []

    def __call__(self, inputs):
        draws = (random.random(), random.gauss(0, 1), float(np.random.random()),
                 float(np.random.normal()), float(torch.rand(())))  # fmt: skip
        self.drawn.append(draws)
        return inputs * (1 + 0.1 * sum(draws) / 5)


def learner(method: str = "er", **changes) -> tuple[ContinualLearner, Jitter]:
    jitter = Jitter()
    made = ContinualLearner(net(), method, memory=20, epochs=2, transform=jitter, **changes)
    return made, jitter


def callers() -> tuple[object, ...]:
    kind, key, *rest = np.random.get_state()
    return (random.getstate(), kind, key.tobytes(), *rest, torch.get_rng_state().numpy().tobytes())


@pytest.mark.parametrize("method", ["er", "metasp-rehsel"])
def test_every_step_draws_anew_and_the_callers_streams_stand_still(method):
    made, jitter = learner(method)
    before = callers()
    for event in made.stream(pair(0)):
        del event
        assert callers() == before
    assert len(jitter.drawn) > 8
    for column in zip(*jitter.drawn):
        assert len(set(column)) == len(column)  # no draw comes twice
        assert all(one != other for one, other in pairwise(column))


def test_the_draws_hang_on_the_seed_and_not_on_the_caller():
    found = []
    for caller, seed in ((1, 5), (2, 5), (2, 6)):
        random.seed(caller)
        np.random.seed(caller)
        torch.manual_seed(caller)
        made, jitter = learner(seed=seed)
        made.learn(pair(0), progress=False)
        found.append(jitter.drawn)
    assert found[0] == found[1]
    assert not {x for row in found[1] for x in row} & {x for row in found[2] for x in row}


@pytest.mark.parametrize("method", ["er", "metasp-rehsel"])
def test_saved_and_loaded_the_draws_go_on(tmp_path, method):
    whole, jitter = learner(method)
    whole.learn(pair(0), progress=False)
    whole.save(tmp_path / "file")
    earlier = len(jitter.drawn)
    whole.learn(pair(1), progress=False)
    random.random(), np.random.normal(), torch.rand(3)
    other = Jitter()
    again = ContinualLearner.load(tmp_path / "file", net(seed=9), transform=other)
    again.learn(pair(1), progress=False)
    assert other.drawn == jitter.drawn[earlier:]
    assert everything(again) == everything(whole)


def test_a_task_given_up_gives_its_draws_back():
    made, jitter = learner()
    for count, _ in enumerate(made.stream(pair(0))):
        if count == 4:
            break
    given_up = list(jitter.drawn)
    jitter.drawn.clear()
    made.learn(pair(0), progress=False)
    assert jitter.drawn[: len(given_up)] == given_up


@pytest.mark.parametrize("draws", [0, 1, 2])
def test_a_normal_number_held_back_is_stored_too(draws):
    """Both generators make normal numbers in pairs, and keep the second."""
    cpu = torch.device("cpu")
    own, again = (OwnRandomness(Streams(seed), cpu) for seed in (3, 4))

    def drawn(randomness, count):
        with randomness.used():
            return [(random.gauss(0, 1), float(np.random.normal())) for _ in range(count)]

    drawn(own, draws)
    again.restore(own.state())
    assert drawn(own, 3) == drawn(again, 3)

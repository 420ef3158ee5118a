"""The streams of a user's own code, stored and taken up again."""

import random

import numpy as np
import torch

from metasp.train.randomness import OwnRandomness
from metasp.types import Streams

CPU = torch.device("cpu")


def drawn(own):
    with own.used():
        return float(torch.rand(())), random.random(), random.gauss(0, 1), float(np.random.randn())


def test_a_restored_one_goes_on_where_it_stood():
    own = OwnRandomness(Streams(3), CPU)
    drawn(own)
    state, wanted = own.state(), [drawn(own) for _ in range(3)]
    again = OwnRandomness(Streams(4), CPU)
    assert drawn(again) != wanted[0]
    again.restore(state)
    assert [drawn(again) for _ in range(3)] == wanted


def test_the_stream_of_a_device_that_is_not_here_is_left_out():
    """A state that was stored on a GPU."""
    own = OwnRandomness(Streams(3), CPU)
    state = own.state() | {"accelerator": torch.zeros(16, dtype=torch.uint8)}
    own.restore(state)
    assert own.now.accelerator is None
    assert "accelerator" not in own.state()


def test_the_callers_streams_never_move():
    own, start = OwnRandomness(Streams(3), CPU), torch.get_rng_state()
    random.seed(1)
    np.random.seed(1)
    wanted = random.Random(1).random(), np.random.RandomState(1).rand()
    drawn(own)
    assert torch.equal(torch.get_rng_state(), start)
    assert (random.random(), np.random.rand()) == wanted

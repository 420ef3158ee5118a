"""Random numbers that modules (dropout) and the user's own code (a transform) draw from the global
streams of torch, Python and numpy, kept apart from the caller's: theirs never move, ours go on from
step to step and can be stored."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from metasp.influence.functional import RandomState
from metasp.types import State, Streams

Item = TypeVar("Item")
ONE_AT_A_TIME = threading.RLock()  # there is one set of global streams for all threads


class OwnRandomness:
    """The state of the global streams as the learner's own code has left them."""

    def __init__(self, streams: Streams, device: torch.device) -> None:
        modules, python, numpy = (streams[name] for name in ("modules", "python", "numpy"))
        accelerator: Tensor | None = None
        if device.type == "cuda":
            own = torch.Generator(device)
            own.manual_seed(modules.initial_seed())
            accelerator = own.get_state()
        self.now = RandomState(
            modules.get_state(),
            device,
            accelerator,
            random.Random(python.initial_seed()).getstate(),
            np.random.RandomState(words(numpy.initial_seed())).get_state(),
        )

    @contextmanager
    def used(self) -> Iterator[None]:
        """The global streams are the learner's inside, and the caller's again afterwards."""
        with ONE_AT_A_TIME:
            callers = RandomState.capture(self.now.device)
            self.now.restore()
            try:
                yield
            finally:
                self.now = RandomState.capture(self.now.device)
                callers.restore()

    def around(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items; only their making sees the learner's streams."""
        while True:
            with self.used(), torch.enable_grad():
                item = next(items, None)
            if item is None:
                return
            yield item

    def state(self) -> State:
        state = {"cpu": self.now.cpu, **packed(self.now.python, self.now.numpy)}
        if self.now.accelerator is not None:
            state["accelerator"] = self.now.accelerator
        return state

    def restore(self, state: State) -> None:
        """Stand where `state` was taken; a stream that is not in it, or that this device has not
        got, stays where it is."""
        self.now = replace(self.now, cpu=state["cpu"].clone())
        if self.now.accelerator is not None and "accelerator" in state:
            self.now = replace(self.now, accelerator=state["accelerator"].clone())
        if "python" in state:
            python, numpy = unpacked(state)
            self.now = replace(self.now, python=python, numpy=numpy)


def words(seed: int) -> list[int]:
    """A seed as the 32-bit words that numpy takes."""
    return [seed & 0xFFFFFFFF, seed >> 32]


def packed(python: Any, numpy: Any) -> State:
    """The states of Python's and numpy's Mersenne twisters: the words with the place in them, and
    the normal number that each holds back (NaN: none)."""
    _, inner, held = python
    _, key, place, has, kept = numpy
    spare = [np.nan if held is None else held, kept if has else np.nan]
    return {
        "python": torch.tensor(inner, dtype=torch.int64),
        "numpy": torch.tensor([*key.tolist(), place], dtype=torch.int64),
        "spare": torch.tensor(spare, dtype=torch.float64),
    }


def unpacked(state: State) -> tuple[Any, Any]:
    held, kept = (None if number != number else number for number in state["spare"].tolist())
    *key, place = state["numpy"].tolist()
    return (
        (random.Random.VERSION, tuple(state["python"].tolist()), held),
        ("MT19937", np.array(key, np.uint32), place, int(kept is not None), kept or 0.0),
    )

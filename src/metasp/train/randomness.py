"""Random numbers that modules (dropout) and a user's code (a transform) draw from the global
streams of torch, Python and numpy, separate from the caller's: theirs never move, ours go on from
step to step and can be stored."""

import json
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
        seed = numpy.initial_seed()
        halves = [seed & 0xFFFFFFFF, seed >> 32]  # numpy takes words of 32 bits
        self.now = RandomState(
            modules.get_state(),
            device,
            accelerator,
            random.Random(python.initial_seed()).getstate(),
            np.random.RandomState(halves).get_state(),
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
        """Yield the same items; only their making sees the learner's streams."""
        while True:
            with self.used(), torch.enable_grad():
                item = next(items, None)
            if item is None:
                return
            yield item

    def state(self) -> State:
        """Return the streams as tensors: torch's own, and the JSON of the two others."""
        kind, key, *rest = self.now.numpy
        state = {
            "cpu": self.now.cpu,
            "python": _packed(self.now.python),
            "numpy": _packed([kind, key.tolist(), *rest]),
        }
        if self.now.accelerator is not None:
            state["accelerator"] = self.now.accelerator
        return state

    def restore(self, state: State) -> None:
        """Stand where `state` was taken. The stream of a device that is not here stays behind."""
        version, words, spare = _unpacked(state["python"])
        kind, key, *rest = _unpacked(state["numpy"])
        accelerator = self.now.accelerator
        if accelerator is not None and "accelerator" in state:
            accelerator = state["accelerator"].clone()
        self.now = replace(
            self.now,
            cpu=state["cpu"].clone(),
            accelerator=accelerator,
            python=(version, tuple(words), spare),
            numpy=(kind, np.array(key, np.uint32), *rest),
        )


def _packed(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _unpacked(packed: Tensor) -> Any:
    return json.loads(bytes(packed.tolist()))

"""Random numbers that modules draw from torch's global streams (dropout), kept apart from the
user's: theirs never move, ours can be stored."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from metasp.influence.origin import RandomState
from metasp.types import State, Streams

Item = TypeVar("Item")


class OwnRandomness:
    """The state of the global streams of torch as the learner's own code has left them."""

    def __init__(self, streams: Streams, device: torch.device) -> None:
        self.device = device
        self.cpu = streams["modules"].get_state()
        self.accelerator: Tensor | None = None
        if device.type == "cuda":
            own = torch.Generator(device)
            own.manual_seed(streams["modules"].initial_seed())
            self.accelerator = own.get_state()

    @contextmanager
    def used(self) -> Iterator[None]:
        """The global streams are the learner's inside, and the user's again afterwards."""
        users = RandomState.capture(self.device)
        RandomState(self.cpu, self.device, self.accelerator, None, None).restore()
        try:
            yield
        finally:
            mine = RandomState.capture(self.device, torch_only=True)
            self.cpu, self.accelerator = mine.cpu, mine.accelerator
            users.restore()

    def around(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items; only their making sees the learner's streams."""
        while True:
            with self.used():
                item = next(items, None)
            if item is None:
                return
            yield item

    def state(self) -> State:
        state = {"cpu": self.cpu}
        if self.accelerator is not None:
            state["accelerator"] = self.accelerator
        return state

    def restore(self, state: State) -> None:
        """Stand where `state` was taken; a stream this device has not got is left out."""
        self.cpu = state["cpu"].clone()
        if self.accelerator is not None and "accelerator" in state:
            self.accelerator = state["accelerator"].clone()

"""Room in the memory for verified examples: pinned, within their class's share of the budget."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from metasp.memory.buffer import Memory
from metasp.memory.placement import Placement


class Admission(NamedTuple):
    """Which of the offered rows enter, pinned, into which slots; which slots are no longer pinned
    as their class's share has become smaller; and how many rows found no room."""

    placement: Placement
    unpinned: Tensor
    refused: int


def admit(
    memory: Memory, labels: Tensor, classes: Iterable[int], generator: torch.Generator
) -> Admission:
    """Decide about verified examples with these labels (n,), where all `classes` seen so far share
    the memory evenly. Of a class that has more of them than its share, some are left out, or lose
    their pin, at random. They take free slots first, then those of random unpinned examples of the
    largest class."""
    known = {*classes, *labels.tolist(), *memory.labels[memory.occupied].tolist()}
    share = max(1, memory.capacity // len(known))
    entering, loosened = [], []
    for label in sorted(known):
        pinned = torch.nonzero(memory.pinned & (memory.labels == label)).flatten()
        rows = torch.nonzero(labels == label).flatten()
        count = len(pinned) + len(rows)
        kept = torch.ones(count, dtype=torch.bool)
        if count > share:
            kept[torch.randperm(count, generator=generator)[share:]] = False
        loosened.append(pinned[~kept[: len(pinned)]])
        entering.append(rows[kept[len(pinned) :]])
    unpinned = torch.cat(loosened)
    slots = _room(memory, unpinned, sum(map(len, entering)), generator)
    chosen = torch.cat(entering)[: len(slots)]
    return Admission(Placement(chosen, slots), unpinned, len(labels) - len(chosen))


def _room(memory: Memory, unpinned: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Up to `count` slots to give up: the empty ones, then by the largest class, at random."""
    loose = ~memory.pinned
    loose[unpinned] = True
    free = memory.empty[:count].tolist()
    slots = memory.occupied[loose[memory.occupied]]
    held = {}
    for label in sorted(set(memory.labels[memory.occupied].tolist())):
        own = slots[memory.labels[slots] == label]
        order = own[torch.randperm(len(own), generator=generator)].tolist()
        held[label] = (int((memory.labels[memory.occupied] == label).sum()), order)
    while len(free) < count and any(order for _, order in held.values()):
        label = max((k for k in held if held[k][1]), key=lambda k: (held[k][0], -k))
        size, order = held[label]
        free.append(order.pop())
        held[label] = (size - 1, order)
    return torch.tensor(free, dtype=torch.long)

"""Selections that need neither influence nor features: by chance, balanced over tasks or classes,
by gradients or by losses. And room for verified examples."""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.memory.buffer import EMPTY, Column, Memory, Offer, Placement

REDUNDANCY = Column("redundancy")


def reservoir(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Every example ever offered has the same chance to be in memory."""
    free, given_up = memory.empty.tolist(), torch.nonzero(~memory.pinned).flatten().tolist()
    pairs = []
    for row in range(len(offer.ids)):
        count = memory.offered + row
        if free:
            pairs.append((row, free.pop(0)))
            continue
        place = int(torch.randint(0, count + 1, (1,), generator=generator))
        if place < len(given_up):
            pairs.append((row, given_up[place]))
    return Placement.of(pairs)


def ring(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """An equal share for each task of the stream; within it the newest replace the oldest."""
    share = max(1, memory.capacity // max(offer.tasks, offer.task + 1))
    entered, pinned = memory.entered.tolist(), memory.pinned.tolist()
    queues = {
        task: deque(sorted(slots, key=lambda slot: (pinned[slot], entered[slot])))
        for task, slots in _slots_of(memory.tasks.tolist()).items()
    }
    free, own = queues.pop(EMPTY, None), queues.setdefault(offer.task, deque())
    staying = sum(pinned[slot] for slot in own)
    pairs = []
    for row in range(len(offer.ids)):
        source = own
        if len(own) < share:
            source = free or queues[_largest(queues)]
        elif len(own) == staying:
            break  # nothing but what is pinned is left of this task
        slot = source.popleft()
        own.insert(len(own) - staying, slot)
        pairs.append((row, slot))
    return Placement.of(pairs)


def greedy(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """GDumb's sampler: at most an equal share for each class met; the largest class gives way."""
    pinned = set(torch.nonzero(memory.pinned).flatten().tolist())
    return greedily(memory, offer, generator, lambda slots: _loose(slots, pinned))


def greedily(
    memory: Memory,
    offer: Offer,
    generator: torch.Generator,
    may_go: Callable[[list[int]], list[int]],
) -> Placement:
    """The same, for any rule which slots of the largest class `may_go`, one of them at random."""
    kept, offered = offer.groups(memory)
    free, taken = memory.empty.tolist(), memory.occupied.tolist()
    held = {
        group: [taken[place] for place in places]
        for group, places in _slots_of(kept[memory.occupied].tolist()).items()
    }
    pairs = []
    for row, label in enumerate(offered.tolist()):
        own = held.setdefault(label, [])
        classes = sum(1 for group, slots in held.items() if slots or group == label)
        if len(own) >= max(1, memory.capacity // classes):
            continue
        source = free[:1] if free else may_go(held[_largest(held)])
        slot = source[int(torch.randint(0, len(source), (1,), generator=generator))]
        (free or held[_largest(held)]).remove(slot)
        insort(own, slot)
        pairs.append((row, slot))
    return Placement.of(pairs)


def gradient_diverse(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """GSS's sampler: once full, only a gradient that opposes those it was compared with enters;
    it challenges a slot drawn by redundancy, and wins by their shares of it."""
    if offer.redundancy is None:
        raise UserError(
            "the selection 'gradient-diverse' needs gradients of single examples, which only gss "
            "computes: use the method gss, or another selection."
        )
    held = memory["redundancy"].double().nan_to_num(nan=1.0)  # what was compared with nothing
    free = memory.empty.tolist()
    loose = ~memory.pinned
    pairs = []
    for row, own in enumerate(offer.redundancy.tolist()):
        if free:
            slot = free.pop(0)
        elif own < 1 and loose.any():
            chance = held.clamp(min=1e-6) * loose
            slot = int(torch.multinomial(chance, 1, generator=generator))
            loses = float(held[slot]) / max(float(held[slot]) + own, 1e-12)
            if float(torch.rand(1, generator=generator)) >= loses:
                continue
        else:
            continue
        held[slot] = own
        pairs.append((row, slot))
    placement = Placement.of(pairs)
    return replace(placement, columns={"redundancy": offer.redundancy[placement.chosen]})


def class_balanced(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """At a task's end: an equal share for each class seen, chosen at random."""
    held, offered = offer.groups(memory)
    return _balanced(memory, held, offer, offered, generator)


def low_loss(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """At a task's end: an equal share for each class seen, of new examples at random from the
    half of their class with the lower loss, first those in the lower half of the task too. A wrong
    label is learned last, so few of them enter: the rest only fills a class's share."""
    held, offered = offer.groups(memory)
    last = high_loss(offer, offered)
    return _balanced(memory, held, offer, offered, generator, last)


def high_loss(offer: Offer, offered: Tensor) -> Tensor:
    """How often a row's loss is above the median, of the task and of its class, shape (n,)."""
    if offer.final_loss is None:
        raise UserError(
            "this selection goes by losses, which a run and a ContinualLearner give it: in a loop "
            "of your own make an Offer with final_loss, or use class-balanced."
        )
    loss = offer.final_loss()
    last = (loss > loss.median()).long()  # all rows of a class that is not the task's may be wrong
    for group in set(offered.tolist()):
        own = offered == group
        last[own] += loss[own] > loss[own].median()
    return last


def task_balanced(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """At a task's end: an equal share for each task seen, chosen at random."""
    own = torch.full_like(offer.ids, offer.task)
    return _balanced(memory, memory.tasks, offer, own, generator)


def shares(capacity: int, available: Mapping[int, int]) -> dict[int, int]:
    """Deal `capacity` evenly over groups, none getting more than it has; ±1 by group order. If
    there are more groups than slots, those that get one are spread over the order and include the
    last: dealt from the first on, the newest task would never enter."""
    given = dict.fromkeys(available, 0)
    groups = [group for group in sorted(available) if available[group]]
    if capacity < len(groups):
        last = len(groups) - 1
        chosen = [groups[last - i * last // max(1, capacity - 1)] for i in range(capacity)]
        return given | dict.fromkeys(chosen, 1)
    left = capacity
    while left and (open_ := [g for g in sorted(available) if given[g] < available[g]]):
        each = max(1, left // len(open_))
        for group in open_:
            take = min(each, available[group] - given[group], left)
            given[group] += take
            left -= take
    return given


def _balanced(
    memory: Memory,
    held: Tensor,
    offer: Offer,
    offered: Tensor,
    generator: torch.Generator,
    last: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Placement:
    """Keep a random equal share of each group out of what is held and offered together; offered
    rows whose `last` (n,) is higher come after all others, and what is pinned before them.
    Rows that are not `allowed` (n,) do not enter."""
    unheld = ~torch.isin(offer.ids, memory.ids[memory.occupied])
    fresh = torch.nonzero(unheld if allowed is None else unheld & allowed).flatten()
    pool = [(int(held[slot]), int(slot), -1) for slot in memory.occupied]
    pool += [(int(offered[row]), -1, int(row)) for row in fresh]
    pool = [pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()]
    pinned, late = memory.pinned.tolist(), [] if last is None else last.tolist()

    def turn(entry: tuple[int, int, int]) -> int:
        _, slot, row = entry
        if row < 0:
            return -1 if pinned[slot] else 0
        return int(late[row]) if late else 0

    pool.sort(key=turn)
    quota = shares(memory.capacity, Counter(group for group, _, _ in pool))
    chosen, dropped = [], memory.empty.tolist()
    for group, slot, row in pool:
        keep = quota[group] > 0
        quota[group] -= keep
        if row >= 0 and keep:
            chosen.append(row)
        elif row < 0 and not keep:
            dropped.append(slot)
    return Placement.of(list(zip(sorted(chosen), sorted(dropped))))


def _slots_of(groups: Sequence[int]) -> dict[int, list[int]]:
    """The places of each group, ascending."""
    found: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        found.setdefault(group, []).append(place)
    return found


def _loose(slots: list[int], pinned: set[int]) -> list[int]:
    """The slots that may be given up: those that are not pinned, or all where every one is."""
    return [slot for slot in slots if slot not in pinned] or slots if pinned else slots


def _largest(groups: Mapping[int, Sized]) -> int:
    """The group that holds most, the lowest one on a tie."""
    return min(groups, key=lambda group: (-len(groups[group]), group))


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

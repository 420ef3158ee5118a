"""Selections that need neither influence nor features, and room for verified examples.

They choose by chance, balanced over tasks or classes, by gradients or by losses."""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.memory.buffer import EMPTY, Column, Memory, Offer, Placement

TINY = 1e-9
REDUNDANCY = Column("redundancy")
REPLAY_LOSS = Column("replay_loss")


def reservoir(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Give every example ever offered the same chance to be in memory (Vitter 1985, algorithm R).

    Returns the rows that enter and their slots; pinned slots are never given up."""
    free = memory.empty.tolist()
    replaceable = torch.nonzero(~memory.pinned).flatten().tolist()
    pairs = []
    for row in range(len(offer.ids)):
        if free:
            pairs.append((row, free.pop(0)))
            continue
        offered = memory.offered + row
        drawn = int(torch.randint(0, offered + 1, (1,), generator=generator))
        if drawn < len(replaceable):
            pairs.append((row, replaceable[drawn]))
    return Placement.of(pairs)


def ring(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Give each task of the stream an equal share; within it the newest replace the oldest."""
    share = max(1, memory.capacity // max(offer.tasks, offer.task + 1))
    entered, pinned = memory.entered.tolist(), memory.pinned.tolist()
    oldest_first = sorted(range(memory.capacity), key=lambda slot: (pinned[slot], entered[slot]))
    by_task = grouped(oldest_first, memory.tasks[oldest_first].tolist())
    queues = {task: deque(slots) for task, slots in by_task.items()}
    free, current = queues.pop(EMPTY, None), queues.setdefault(offer.task, deque())
    staying = sum(pinned[slot] for slot in current)
    pairs = []
    for row in range(len(offer.ids)):
        source = current
        if len(current) < share:
            source = free or queues[_largest(queues)]
        elif len(current) == staying:
            break  # nothing but pinned examples is left of this task
        slot = source.popleft()
        current.insert(len(current) - staying, slot)
        pairs.append((row, slot))
    return Placement.of(pairs)


def greedy(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Give each class met at most an equal share; the largest class gives way (GDumb, Alg. 1)."""
    pinned = set(torch.nonzero(memory.pinned).flatten().tolist())

    def unpinned(slots: list[int]) -> list[int]:
        """Return the slots that are not pinned, or all where every one is."""
        loose = [slot for slot in slots if slot not in pinned]
        return loose or slots

    return fill_classes(memory, offer, generator, unpinned)


def fill_classes(
    memory: Memory,
    offer: Offer,
    generator: torch.Generator,
    may_go: Callable[[list[int]], list[int]],
) -> Placement:
    """Take each offered row while its class has less than an equal share of the memory.

    `may_go` says which of the slots of the largest class may be given up; one of them goes, at
    random."""
    stored, offered = offer.groups(memory)
    free = memory.empty.tolist()
    slots_of = grouped(memory.occupied.tolist(), stored[memory.occupied].tolist())
    pairs = []
    for row, label in enumerate(offered.tolist()):
        same_class = slots_of.setdefault(label, [])
        classes = sum(1 for group, slots in slots_of.items() if slots or group == label)
        if len(same_class) >= max(1, memory.capacity // classes):
            continue
        source = free[:1] if free else may_go(slots_of[_largest(slots_of)])
        slot = source[int(torch.randint(0, len(source), (1,), generator=generator))]
        (free or slots_of[_largest(slots_of)]).remove(slot)
        insort(same_class, slot)
        pairs.append((row, slot))
    return Placement.of(pairs)


def gradient_diverse(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Keep examples whose gradients differ (GSS, Alg. 2).

    Once the memory is full, only a gradient that opposes those it was compared with enters; it
    challenges a slot drawn by redundancy, and wins by their shares of it."""
    if offer.redundancy is None:
        raise UserError(
            "the selection 'gradient-diverse' needs gradients of single examples, which only gss "
            "computes: use the method gss, or another selection."
        )
    redundancy = memory["redundancy"].double().nan_to_num(nan=1.0)  # 1: compared with nothing
    free = memory.empty.tolist()
    loose = ~memory.pinned
    pairs = []
    for row, score in enumerate(offer.redundancy.tolist()):
        if free:
            slot = free.pop(0)
        elif score < 1 and loose.any():
            chance = redundancy.clamp(min=1e-6) * loose
            slot = int(torch.multinomial(chance, 1, generator=generator))
            loses = float(redundancy[slot]) / max(float(redundancy[slot]) + score, 1e-12)
            if float(torch.rand(1, generator=generator)) >= loses:
                continue
        else:
            continue
        redundancy[slot] = score
        pairs.append((row, slot))
    placement = Placement.of(pairs)
    return replace(placement, columns={"redundancy": offer.redundancy[placement.chosen]})


def asymmetric(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Draw what enters as a reservoir does, and what leaves by loss (ABS, Millunzi et al. 2024).

    Either the present task or the past gives up an example, with the chance of its share of the
    memory: of the present task one of high loss, likely mislabelled, of the past one of low loss,
    which is easily learned again."""
    if offer.loss is None:
        raise UserError(
            "the selection 'asymmetric' needs losses of each step, which only aer-abs gives it: "
            "use the method aer-abs, or another selection."
        )
    loss, current = memory["replay_loss"].clone(), memory.tasks == offer.task
    free, pairs = memory.empty.tolist(), []
    for row, own_loss in enumerate(offer.loss.tolist()):
        if free:
            slot = free.pop(0)
        else:
            drawn = int(torch.randint(0, memory.offered + row + 1, (1,), generator=generator))
            if drawn >= memory.capacity or memory.pinned.all():
                continue
            slots = torch.nonzero(~memory.pinned).flatten()
            present = current[slots[int(torch.randint(len(slots), (1,), generator=generator))]]
            slots = slots[current[slots] == present]
            chance = between_zero_and_one(loss[slots])
            chance = (chance if present else 1 - chance) + TINY
            slot = int(slots[int(torch.multinomial(chance, 1, generator=generator))])
        loss[slot], current[slot] = own_loss, True
        pairs.append((row, slot))
    placement = Placement.of(pairs)
    return replace(placement, columns={"replay_loss": offer.loss[placement.chosen]})


def between_zero_and_one(values: Tensor) -> Tensor:
    """Scale values (n,) so that the least is 0 and the largest 1; unknown ones become the mean."""
    values = values.nan_to_num(nan=float(values.nanmean().nan_to_num()))
    return (values - values.min()) / (values.max() - values.min()).clamp_min(TINY)


def class_balanced(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Keep an equal share of each class seen, chosen at random."""
    stored, offered = offer.groups(memory)
    return _balanced(memory, stored, offer, offered, generator)


def low_loss(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Keep an equal share of each class seen, new examples by their loss.

    First come those in the lower half of their class and of the task. A wrong label is learned
    last, so few of them enter: the rest only fills a class's share."""
    stored, offered = offer.groups(memory)
    return _balanced(memory, stored, offer, offered, generator, high_loss(offer, offered))


def high_loss(offer: Offer, offered: Tensor) -> Tensor:
    """Count how often a row's loss is above the median, of the task and of its class: (n,), 0 to
    2."""
    if offer.final_loss is None:
        raise UserError(
            "this selection goes by losses, which a run and a ContinualLearner give it: in a loop "
            "of your own make an Offer with final_loss, or use class-balanced."
        )
    loss = offer.final_loss()
    # Of the task too: all rows of a class that is not the task's may be wrong.
    return (loss > loss.median()).long() + above_class_median(loss, offered)


def above_class_median(values: Tensor, classes: Tensor) -> Tensor:
    """Mark with 1 the rows (n,) whose value is above the median of its class; NaN is not."""
    above = torch.zeros(len(classes), dtype=torch.long)
    for label in set(classes.tolist()):
        members = classes == label
        above[members] = (values[members] > values[members].nanmedian()).long()
    return above


def task_balanced(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Keep an equal share of each task seen, chosen at random."""
    current = torch.full_like(offer.ids, offer.task)
    return _balanced(memory, memory.tasks, offer, current, generator)


def shares(capacity: int, available: Mapping[int, int]) -> dict[int, int]:
    """Deal `capacity` slots evenly over groups, none getting more than it has available.

    Left-over slots go to the first groups. If there are more groups than slots, those that get one
    are spread over the order and include the last: dealt from the first on, the newest task would
    never enter."""
    dealt = dict.fromkeys(available, 0)
    groups = [group for group in sorted(available) if available[group]]
    if capacity < len(groups):
        last = len(groups) - 1
        chosen = [groups[last - i * last // max(1, capacity - 1)] for i in range(capacity)]
        return dealt | dict.fromkeys(chosen, 1)
    left = capacity
    while left and (unfilled := [g for g in sorted(available) if dealt[g] < available[g]]):
        even = max(1, left // len(unfilled))
        for group in unfilled:
            take = min(even, available[group] - dealt[group], left)
            dealt[group] += take
            left -= take
    return dealt


def _balanced(
    memory: Memory,
    stored: Tensor,
    offer: Offer,
    offered: Tensor,
    generator: torch.Generator,
    last: Tensor | None = None,
) -> Placement:
    """Keep a random equal share of each group out of all that is stored and offered together.

    `stored` (capacity,) and `offered` (n,) are the groups. Pinned slots come first, offered rows
    whose `last` (n,) is higher after all others."""
    fresh = torch.nonzero(~torch.isin(offer.ids, memory.ids[memory.occupied])).flatten()
    pool = [(int(stored[slot]), int(slot), -1) for slot in memory.occupied]
    pool += [(int(offered[row]), -1, int(row)) for row in fresh]
    pool = [pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()]
    pinned = memory.pinned.tolist()
    late = [0] * len(offer.ids) if last is None else last.tolist()

    def turn(candidate: tuple[int, int, int]) -> int:
        _, slot, row = candidate
        return late[row] if row >= 0 else -int(pinned[slot])

    pool.sort(key=turn)
    quota = shares(memory.capacity, Counter(group for group, _, _ in pool))
    chosen, dropped = [], memory.empty.tolist()
    for group, slot, row in pool:
        stays = quota[group] > 0
        quota[group] -= stays
        if row >= 0 and stays:
            chosen.append(row)
        elif row < 0 and not stays:
            dropped.append(slot)
    return Placement.of(list(zip(sorted(chosen), sorted(dropped))))


def grouped(items: Sequence[int], groups: Sequence[int]) -> dict[int, list[int]]:
    """Return the items of each group, in their order."""
    members: dict[int, list[int]] = {}
    for item, group in zip(items, groups):
        members.setdefault(group, []).append(item)
    return members


def _largest(groups: Mapping[int, Sized]) -> int:
    """Return the group that holds most, the lowest one on a tie."""
    return min(groups, key=lambda group: (-len(groups[group]), group))


class Admission(NamedTuple):
    """Which verified rows enter which slots, which slots lose their pin because their class's share
    has become smaller, and how many rows were refused for lack of room."""

    placement: Placement
    unpinned: Tensor
    refused: int


def admit(
    memory: Memory, labels: Tensor, classes: Iterable[int], generator: torch.Generator
) -> Admission:
    """Decide about verified examples with these `labels` (n,).

    All `classes` seen so far share the memory evenly. Of a class that has more verified examples
    than its share, random ones are left out or lose their pin. The others take free slots first,
    then those of random unpinned examples of the largest class."""
    present = {*classes, *labels.tolist(), *memory.labels[memory.occupied].tolist()}
    share = max(1, memory.capacity // len(present))
    entering, loosened = [], []
    for label in sorted(present):
        pinned = torch.nonzero(memory.pinned & (memory.labels == label)).flatten()
        rows = torch.nonzero(labels == label).flatten()
        count = len(pinned) + len(rows)
        stays = torch.ones(count, dtype=torch.bool)
        if count > share:
            stays[torch.randperm(count, generator=generator)[share:]] = False
        loosened.append(pinned[~stays[: len(pinned)]])
        entering.append(rows[stays[len(pinned) :]])
    unpinned = torch.cat(loosened)
    slots = _room(memory, unpinned, sum(map(len, entering)), generator)
    chosen = torch.cat(entering)[: len(slots)]
    return Admission(Placement(chosen, slots), unpinned, len(labels) - len(chosen))


def _room(memory: Memory, unpinned: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return up to `count` slots to give up: the empty ones, then of the largest class, at
    random."""
    loose = ~memory.pinned
    loose[unpinned] = True
    free = memory.empty[:count].tolist()
    slots = memory.occupied[loose[memory.occupied]]
    stored_labels = memory.labels[memory.occupied].tolist()
    sizes, loose_slots = Counter(stored_labels), dict[int, list[int]]()
    for label in sorted(sizes):
        candidates = slots[memory.labels[slots] == label]
        order = torch.randperm(len(candidates), generator=generator)
        loose_slots[label] = candidates[order].tolist()
    while len(free) < count and any(loose_slots.values()):
        replaceable = [label for label in loose_slots if loose_slots[label]]
        largest = max(replaceable, key=lambda label: (sizes[label], -label))
        free.append(loose_slots[largest].pop())
        sizes[largest] -= 1
    return torch.tensor(free, dtype=torch.long)

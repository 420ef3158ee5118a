"""Selections that keep what stands for its class: an equal share each, chosen by the features of
the model as it is at the task's end, and kept in the order in which it was chosen.

The order is a column of the memory. A class that gives up slots gives up those that were chosen
last, so what it keeps is what a smaller share would have been chosen as."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.memory.buffer import Memory
from metasp.memory.cluster import kmeans
from metasp.memory.columns import Column
from metasp.memory.decisions import Decide, Offer, greedily, high_loss, shares
from metasp.memory.placement import Placement

UNRANKED = -1
RANK = Column("rank", dtype=torch.long, blank=UNRANKED)
TIE = 1e-9  # squared distances nearer than this are equal but for rounding

Order = Callable[[Tensor, Tensor, int, torch.Generator], Tensor]
"""Features (n, d) and ids (n,) of one class to its best rows (count,), the best first."""

Filter = Callable[[Offer, Tensor], Tensor]
"""An offer and the class of each of its rows to (n,): rows of a higher number come later."""


def representative(order: Order, last: Filter | None = None) -> Decide:
    """The decision to keep an equal share of each class seen, its rows in that order; with a
    filter, an order among what it lets in, and the others only to fill a share."""

    def decide(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
        held, offered = offer.groups(memory)
        late = torch.zeros_like(offer.ids) if last is None else last(offer, offered)
        slots, quota = _slots_by_class(memory, held), _quota(memory, held, offer, offered)
        ranks: dict[int, int] = {}
        free = memory.empty.tolist()
        for group, share in quota.items():
            kept = slots.get(group, [])[:share]
            free += slots.get(group, [])[share:]
            rows = torch.nonzero((offered == group) & _fresh(memory, offer)).flatten()
            chosen = _best(order, offer, rows, late, share - len(kept), generator)
            first = max((int(memory["rank"][slot]) for slot in kept), default=UNRANKED) + 1
            ranks |= {row: first + place for place, row in enumerate(chosen)}
        placed = Placement.of(list(zip(sorted(ranks), sorted(free))))
        rank = torch.tensor([ranks[row] for row in placed.chosen.tolist()], dtype=torch.long)
        return Placement(placed.chosen, placed.slots, {"rank": rank})

    return decide


def filling(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """At a step, of the task at hand: an equal share for each class met, as they come. A class that
    gives way gives up what was chosen last."""
    turn = _turns(memory)
    return greedily(memory, offer, generator, lambda slots: [max(slots, key=turn)])


def herding_order(features: Tensor, ids: Tensor, count: int, _: torch.Generator) -> Tensor:
    """Greedily the row that brings the mean of those chosen nearest to the mean of all (Welling
    2009; iCaRL), features brought to length 1; of equals, the one of the lowest id."""
    by_id = ids.argsort()
    rows = unit_rows(features[by_id].double())
    mean, sizes = rows.mean(0), rows.square().sum(1)
    missing = torch.zeros_like(mean)  # what the next row should be: k·mean less those chosen
    chosen = torch.empty(count, dtype=torch.long)
    for place in range(count):
        missing += mean
        gaps = sizes - 2 * (rows @ missing)  # squared distances, but for what they all share
        best = int(torch.nonzero(gaps <= gaps.min() + TIE)[0])
        chosen[place] = best
        missing -= rows[best]
        sizes[best] = torch.inf
    return by_id[chosen]


def kmeans_order(features: Tensor, ids: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The row nearest to each of so many centres, those of the largest clusters first; of equals,
    the one of the lowest id. Where identical rows leave clusters empty, the next nearest follow."""
    by_id = ids.argsort()
    rows = unit_rows(features[by_id].double())
    cluster, distance = kmeans(lambda at: rows[at], len(rows), count, generator)
    sizes = cluster.bincount(minlength=count)
    turns = torch.zeros(len(rows), dtype=torch.long)  # how many of its cluster are nearer
    nearest = distance.argsort(stable=True)
    for group in range(count):
        own = nearest[cluster[nearest] == group]
        turns[own] = torch.arange(len(own))
    order = sizes[cluster].argsort(descending=True, stable=True)
    order = order[turns[order].argsort(stable=True)]
    return by_id[order[:count]]


def unit_rows(features: Tensor) -> Tensor:
    """Rows brought to length 1; a row of zeros stays one."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)  # type: ignore[no-untyped-call]
    return features / lengths.clamp_min(1e-12)


def high_influence(offer: Offer, offered: Tensor) -> Tensor:
    """1 for rows whose influence is above the median of their class; what is unknown is not."""
    late = torch.zeros_like(offer.ids)
    if offer.influence is None:
        return late
    for group in set(offered.tolist()):
        own = offered == group
        late[own] = (offer.influence[own] > offer.influence[own].nanmedian()).long()
    return late


def _best(
    order: Order,
    offer: Offer,
    rows: Tensor,
    late: Tensor,
    count: int,
    generator: torch.Generator,
) -> list[int]:
    """The best `count` of a class's rows, the best first; those of a higher `late` follow."""
    if offer.points is None:
        raise UserError(
            "this selection goes by features, and none were offered: make an Offer with `points` "
            "(see `docs/own-loop.md`)."
        )
    chosen: list[int] = []
    for turn in sorted(set(late[rows].tolist())):
        own = rows[late[rows] == turn]
        take = min(count - len(chosen), len(own))
        if take > 0:
            found = order(offer.points(own), offer.ids[own], take, generator)
            chosen += own[found].tolist()
    return chosen


def _slots_by_class(memory: Memory, held: Tensor) -> dict[int, list[int]]:
    """The slots of each class, first those to keep longest: the pinned, then by rank, those
    without one last, then by id."""
    found: dict[int, list[int]] = {}
    for slot in sorted(memory.occupied.tolist(), key=_turns(memory)):
        found.setdefault(int(held[slot]), []).append(slot)
    return found


def _turns(memory: Memory) -> Callable[[int], tuple[bool, bool, int, int]]:
    """When a slot is to be given up, among those of its class; the highest goes first."""
    ranks, ids, pinned = (memory[name].tolist() for name in ("rank", "ids", "pinned"))
    return lambda slot: (not pinned[slot], ranks[slot] == UNRANKED, ranks[slot], ids[slot])


def _fresh(memory: Memory, offer: Offer) -> Tensor:
    """Which rows the memory does not hold yet (n,)."""
    return ~torch.isin(offer.ids, memory.ids[memory.occupied])


def _quota(memory: Memory, held: Tensor, offer: Offer, offered: Tensor) -> dict[int, int]:
    """The slots of each class, out of what is held and offered together."""
    classes = held[memory.occupied].tolist() + offered[_fresh(memory, offer)].tolist()
    return shares(memory.capacity, Counter(classes))


herding = representative(herding_order)
herding_low_loss = representative(herding_order, high_loss)
herding_low_influence = representative(herding_order, high_influence)
kmeans_features = representative(kmeans_order)
kmeans_low_loss = representative(kmeans_order, high_loss)
kmeans_low_influence = representative(kmeans_order, high_influence)

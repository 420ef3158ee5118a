"""Selections that keep what stands for its class: an equal share each, chosen by the features of
the model as it is at the task's end, and kept in the order in which it was chosen.

The order is a column of the memory. A class that gives up slots gives up those that were chosen
last, so what it keeps is what a smaller share would have been chosen as."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.memory.balanced import greedily, high_loss, shares
from metasp.memory.buffer import Column, Decide, Memory, Offer, Placement
from metasp.memory.kmeans import kmeans

UNRANKED = -1
RANK = Column("rank", dtype=torch.long, blank=UNRANKED)
PROBABLY, LIKELY = 0.5, 0.8  # chances that a label is right
MARGIN, LEAST_PART = 0.5, 0.25  # of high losses, in shares of wrong labels; what is left at least
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


def judged(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Herding among the new examples whose label is probably right, first among those of which it
    is likely. What is probably wrong stays out even where its class has room, unless nothing else
    stands for the class: then the likeliest quarter of it enters."""
    if offer.right is None or offer.points is None:
        raise UserError(
            "the selection 'judged' needs a method that judges labels: use metasp-robust, or "
            "another selection."
        )
    held, offered = offer.groups(memory)
    right, kept = offer.right.nan_to_num(nan=1.0), set(held[memory.occupied].tolist())
    allowed = right > PROBABLY
    for group in set(offered.tolist()) - set(offered[allowed].tolist()) - kept:
        rows = torch.nonzero(offered == group).flatten()
        best = rows[right[rows].argsort(descending=True, stable=True)]
        allowed[best[: max(1, len(rows) // 4)]] = True
    late = ((right <= LIKELY) | high_task_loss(offer, offered, right, allowed)).long()
    rows = torch.nonzero(allowed).flatten()
    points = offer.points
    let_in = replace(
        offer,
        labels=offer.labels[rows],
        ids=offer.ids[rows],
        points=lambda few: points(rows[few]),
    )
    made = representative(herding_order, lambda *_: late[rows])(memory, let_in, generator)
    return Placement(rows[made.chosen], made.slots, made.columns)


def high_task_loss(offer: Offer, offered: Tensor, right: Tensor, allowed: Tensor) -> Tensor:
    """Which of the allowed rows have a high mean loss for their class (n,). The loss of a model
    that has not learned wrong labels is a second witness: the larger the share of wrong labels, the
    lower it must be."""
    high = torch.zeros_like(allowed)
    if offer.task_loss is None:
        return high
    loss = offer.task_loss.nan_to_num(nan=torch.inf).double()
    for group in set(offered.tolist()):
        fine = torch.nonzero((offered == group) & allowed).flatten()
        if len(fine):
            share = float(1 - right[offered == group].mean())
            part = min(max(1 - MARGIN * share, LEAST_PART), 1.0)
            high[fine] = loss[fine] > loss[fine].quantile(part)
    return high


herding = representative(herding_order)
herding_low_loss = representative(herding_order, high_loss)
herding_low_influence = representative(herding_order, high_influence)
kmeans_features = representative(kmeans_order)
kmeans_low_loss = representative(kmeans_order, high_loss)
kmeans_low_influence = representative(kmeans_order, high_influence)

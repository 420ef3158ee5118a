"""Selections that keep what stands for its class, and k-means.

Each class has an equal share, chosen by the features of the model as it is at the task's end, and
kept in the order in which it was chosen. The order is a column of the memory. A class that gives up
slots gives up those chosen last, so what it keeps is what a smaller share would have been."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from metasp.errors import UserError
from metasp.memory.balanced import above_class_median, fill_classes, high_loss, shares
from metasp.memory.buffer import Column, Decide, Memory, Offer, Placement

UNRANKED = -1
RANK = Column("rank", dtype=torch.long, blank=UNRANKED)
PROBABLY, LIKELY = 0.5, 0.8  # chances that a label is right
MARGIN, LEAST_PART = 0.5, 0.25  # of high losses, in shares of wrong labels; what is left at least
TIE = 1e-9  # squared distances nearer than this are equal but for rounding
CHUNK = 1024  # rows that k-means reads at a time

Order = Callable[[Tensor, Tensor, int, torch.Generator], Tensor]
"""Features (n, d) and ids (n,) of one class to its best rows (count,), the best first."""

Filter = Callable[[Offer, Tensor], Tensor]
"""An offer and the class of each of its rows to (n,): rows of a higher number come later."""

Points = Callable[[Tensor], Tensor]
"""Row numbers (m,) to float rows (m, d)."""


def representative(order: Order, last: Filter | None = None) -> Decide:
    """Return the decision to keep an equal share of each class seen, its rows in that order; with
    a filter, an order among what it lets in, and the others only to fill a share."""

    def decide(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
        stored, offered = offer.groups(memory)
        late = torch.zeros_like(offer.ids) if last is None else last(offer, offered)
        fresh = ~torch.isin(offer.ids, memory.ids[memory.occupied])
        available = Counter(stored[memory.occupied].tolist() + offered[fresh].tolist())
        slots: dict[int, list[int]] = {}  # of each class, first those to keep longest
        for slot in sorted(memory.occupied.tolist(), key=_turns(memory)):
            slots.setdefault(int(stored[slot]), []).append(slot)
        ranks: dict[int, int] = {}
        free = memory.empty.tolist()
        for group, share in shares(memory.capacity, available).items():
            staying = slots.get(group, [])[:share]
            free += slots.get(group, [])[share:]
            rows = torch.nonzero((offered == group) & fresh).flatten()
            chosen = _best(order, offer, rows, late, share - len(staying), generator)
            first = max((int(memory["rank"][slot]) for slot in staying), default=UNRANKED) + 1
            ranks |= {row: first + position for position, row in enumerate(chosen)}
        placed = Placement.of(list(zip(sorted(ranks), sorted(free))))
        rank = torch.tensor([ranks[row] for row in placed.chosen.tolist()], dtype=torch.long)
        return Placement(placed.chosen, placed.slots, {"rank": rank})

    return decide


def filling(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Give each class met an equal share, step by step in the current task, as its examples come.
    A class that gives way gives up what was chosen last."""
    turn = _turns(memory)
    return fill_classes(memory, offer, generator, lambda slots: [max(slots, key=turn)])


def herding_order(features: Tensor, ids: Tensor, count: int, _: torch.Generator) -> Tensor:
    """Choose greedily the row that brings the mean of those chosen nearest to the mean of all.

    Welling 2009; iCaRL, Alg. 4. Features (n, d) are brought to length 1; of equals, the one of the
    lowest id comes first. Returns `count` rows."""
    by_id = ids.argsort()
    rows = normalize(features[by_id].double())
    mean, sizes = rows.mean(0), rows.square().sum(1)
    missing = torch.zeros_like(mean)  # what the next row should be: k·mean less those chosen
    chosen = torch.empty(count, dtype=torch.long)
    for k in range(count):
        missing += mean
        gaps = sizes - 2 * (rows @ missing)  # squared distances, but for what they all share
        best = int(torch.nonzero(gaps <= gaps.min() + TIE)[0])
        chosen[k] = best
        missing -= rows[best]
        sizes[best] = torch.inf
    return by_id[chosen]


def kmeans_order(features: Tensor, ids: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Choose the row nearest to each of `count` centres, those of the largest clusters first.

    Of equals, the one of the lowest id comes first. Where identical rows leave clusters empty, the
    next nearest follow."""
    by_id = ids.argsort()
    rows = normalize(features[by_id].double())
    cluster, distance = kmeans(lambda at: rows[at], len(rows), count, generator)
    sizes = cluster.bincount(minlength=count)
    nearer = torch.zeros(len(rows), dtype=torch.long)  # how many of its cluster are nearer
    nearest = distance.argsort(stable=True)
    for group in range(count):
        members = nearest[cluster[nearest] == group]
        nearer[members] = torch.arange(len(members))
    order = sizes[cluster].argsort(descending=True, stable=True)
    order = order[nearer[order].argsort(stable=True)]
    return by_id[order[:count]]


def high_influence(offer: Offer, offered: Tensor) -> Tensor:
    """Mark with 1 the rows (n,) whose influence is above the median of their class; unknown
    influences are not."""
    if offer.influence is None:
        return torch.zeros_like(offer.ids)
    return above_class_median(offer.influence, offered)


def _best(
    order: Order, offer: Offer, rows: Tensor, late: Tensor, count: int, generator: torch.Generator
) -> list[int]:
    """Return the best `count` of a class's rows, the best first; those of a higher `late`
    follow."""
    if offer.points is None:
        raise UserError(
            "this selection goes by features, and none were offered: make an Offer with `points` "
            "(see `docs/own-loop.md`)."
        )
    chosen: list[int] = []
    for turn in sorted(set(late[rows].tolist())):
        candidates = rows[late[rows] == turn]
        take = min(count - len(chosen), len(candidates))
        if take > 0:
            best = order(offer.points(candidates), offer.ids[candidates], take, generator)
            chosen += candidates[best].tolist()
    return chosen


def _turns(memory: Memory) -> Callable[[int], tuple[bool, bool, int, int]]:
    """Return when a slot is to be given up among those of its class; the highest goes first: the
    pinned stay longest, then by rank, those without one last, then by id."""
    ranks, ids, pinned = (memory[name].tolist() for name in ("rank", "ids", "pinned"))
    return lambda slot: (not pinned[slot], ranks[slot] == UNRANKED, ranks[slot], ids[slot])


def judged(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Herd among the new examples whose label is probably right, first where it is likely.

    What is probably wrong stays out even where its class has room, unless nothing else stands for
    the class: then the likeliest quarter of it enters."""
    if offer.right is None or offer.points is None:
        raise UserError(
            "the selection 'judged' needs a method that judges labels: use metasp-robust, or "
            "another selection."
        )
    stored, offered = offer.groups(memory)
    right, represented = offer.right.nan_to_num(nan=1.0), set(stored[memory.occupied].tolist())
    allowed = right > PROBABLY
    for group in set(offered.tolist()) - set(offered[allowed].tolist()) - represented:
        rows = torch.nonzero(offered == group).flatten()
        likeliest = rows[right[rows].argsort(descending=True, stable=True)]
        allowed[likeliest[: max(1, len(rows) // 4)]] = True
    late = ((right <= LIKELY) | high_task_loss(offer, offered, right, allowed)).long()
    rows = torch.nonzero(allowed).flatten()
    points = offer.points
    let_in = replace(
        offer,
        labels=offer.labels[rows],
        ids=offer.ids[rows],
        points=lambda few: points(rows[few]),
    )
    placed = representative(herding_order, lambda *_: late[rows])(memory, let_in, generator)
    return Placement(rows[placed.chosen], placed.slots, placed.columns)


def high_task_loss(offer: Offer, offered: Tensor, right: Tensor, allowed: Tensor) -> Tensor:
    """Mark the allowed rows (n,) that have a high mean loss for their class.

    The loss of a model that has not learned wrong labels is a second witness: the larger the share
    of wrong labels, the lower it must be."""
    high = torch.zeros_like(allowed)
    if offer.task_loss is None:
        return high
    loss = offer.task_loss.nan_to_num(nan=torch.inf).double()
    for group in set(offered.tolist()):
        rows = torch.nonzero((offered == group) & allowed).flatten()
        if len(rows):
            share = float(1 - right[offered == group].mean())
            part = min(max(1 - MARGIN * share, LEAST_PART), 1.0)
            high[rows] = loss[rows] > loss[rows].quantile(part)
    return high


herding = representative(herding_order)
herding_low_loss = representative(herding_order, high_loss)
herding_low_influence = representative(herding_order, high_influence)
kmeans_features = representative(kmeans_order)
kmeans_low_loss = representative(kmeans_order, high_loss)
kmeans_low_influence = representative(kmeans_order, high_influence)


def kmeans(
    points: Points, count: int, clusters: int, generator: torch.Generator, iterations: int = 15
) -> tuple[Tensor, Tensor]:
    """Run Lloyd's algorithm over rows that are read in chunks, so that bytes never become a second,
    larger array.

    Returns each row's cluster and its squared distance to the centre, both (count,). A cluster that
    loses all its rows takes the farthest row."""
    centres = first_centres(points, count, clusters, generator)
    nearest, distance = nearest_centres(points, count, centres)
    for _ in range(iterations):
        centres = cluster_means(points, nearest, distance, clusters)
        assigned, distance = nearest_centres(points, count, centres)
        if torch.equal(assigned, nearest):
            break
        nearest = assigned
    return nearest, distance


def first_centres(points: Points, count: int, clusters: int, generator: torch.Generator) -> Tensor:
    """Draw first centres (clusters, d) by the k-means++ rule from a sample ten times their number:
    each next one with a chance proportional to its squared distance from those chosen."""
    sample = points(torch.randperm(count, generator=generator)[: 10 * clusters])
    chosen = [0]
    gap = (sample - sample[0]).square_().sum(1)
    for _ in range(1, clusters):
        weights = gap if gap.sum() > 0 else torch.ones_like(gap)
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
        gap = torch.minimum(gap, (sample - sample[chosen[-1]]).square_().sum(1))
    return sample[chosen]


def nearest_centres(points: Points, count: int, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centre of each row, and the squared distance to it, both (count,)."""
    nearest = torch.empty(count, dtype=torch.long)
    distance = torch.empty(count, dtype=centres.dtype)
    middle = centres.mean(0)  # far from zero, distances would drown in the rounding of norms
    around = centres - middle
    norms = around.square().sum(1)
    for rows in torch.split(torch.arange(count), CHUNK):
        chunk = points(rows)
        gaps = torch.addmm(norms[None], chunk - middle, around.T, alpha=-2)
        nearest[rows] = gaps.argmin(1)
        # Not from the gaps: there a small distance drowns in the rounding of large norms.
        distance[rows] = (chunk - centres[nearest[rows]]).square_().sum(1)
    return nearest, distance


def cluster_means(points: Points, nearest: Tensor, distance: Tensor, clusters: int) -> Tensor:
    """Return the mean row of each cluster (clusters, d); empty ones get the rows that are farthest
    from theirs."""
    sizes = nearest.bincount(minlength=clusters)
    sums: Tensor | None = None
    for rows in torch.split(torch.arange(len(nearest)), CHUNK):
        chunk = points(rows)
        if sums is None:
            sums = chunk.new_zeros(clusters, chunk.shape[1])
        sums.index_add_(0, nearest[rows], chunk)
    assert sums is not None
    centres = sums / sizes.clamp_min(1)[:, None]
    empty = torch.nonzero(sizes == 0).flatten()
    if len(empty):
        farthest = distance.argsort(descending=True, stable=True)[: len(empty)]
        centres[empty] = points(farthest)
    return centres

"""Rehearsal selection by influence (RehSel): store what helps most, spread out; drop what hurts.

Lower influence is better: it lowers the loss on the validation sets."""

from collections import Counter

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.memory.balanced import grouped, shares
from metasp.memory.buffer import Memory, Offer, Placement
from metasp.memory.herding import kmeans


def rehsel(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Store the best of each cluster of the new task, drop the worst of the old ones, evenly over
    tasks and classes as the authors' code does."""
    return replace_worst(memory, offer, best_of_clusters(memory, offer, generator, offer.influence))


def rehsel_as_written(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Store the best of each cluster of the new task, drop the least helpful of all the others."""
    chosen = best_of_clusters(memory, offer, generator, offer.influence)
    chosen = chosen[~torch.isin(offer.ids[chosen], memory.ids[memory.occupied])]
    # Algorithm 2: pop the examples of lowest positive influence, whatever their task and class.
    harm = memory.influence.nan_to_num(nan=0.0)
    turns = {
        slot: (not memory.pinned[slot], float(harm[slot]), int(memory.entered[slot]))
        for slot in memory.occupied.tolist()
    }
    worst = sorted(turns, key=turns.__getitem__, reverse=True)
    slots = [*memory.empty.tolist(), *worst][: len(chosen)]
    return Placement.of(list(zip(chosen.tolist(), sorted(slots))))


def rehsel_without_cluster(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Store the best of the new task outright."""
    noise = torch.rand(len(offer.ids), generator=generator)
    order = noise.argsort() if no_influence(offer.influence) else ranked(offer.influence)
    return replace_worst(memory, offer, order[: new_share(memory, offer)])


def rehsel_without_influence(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Store what is nearest to each cluster's centre, drop at random."""
    return keep_out(memory, offer, generator, None, None)


def rehsel_filter(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Use influence only to keep the harmful half out."""
    return keep_out(memory, offer, generator, offer.influence, memory.influence)


def rehsel_filter_by_loss(memory: Memory, offer: Offer, generator: torch.Generator) -> Placement:
    """Keep the half of higher mean loss out, over the steps that measured influence: the control of
    `rehsel_filter`."""
    return keep_out(memory, offer, generator, offer.loss, offer.held_loss)


CLUSTERING = (
    rehsel,
    rehsel_as_written,
    rehsel_without_influence,
    rehsel_filter,
    rehsel_filter_by_loss,
)
"""The decisions that look at `points`."""


def keep_out(
    memory: Memory,
    offer: Offer,
    generator: torch.Generator,
    offered: Tensor | None,
    stored: Tensor | None,
) -> Placement:
    """Store what is nearest to each cluster's centre among the lower half of `offered` (n,), drop
    at random from the higher half of `stored` (capacity,) first."""
    chosen = best_of_clusters(memory, offer, generator, None, higher_half(offered))
    chance = torch.rand(memory.capacity, generator=generator, dtype=torch.float64)
    return replace_worst(memory, offer, chosen, chance + higher_half(stored))


def higher_half(values: Tensor | None) -> Tensor | float:
    """Return 1 for values above the median of those known, 0 for the others; 0 without values."""
    if values is None:
        return 0.0
    return (values > values.nanmedian()).double()


def best_of_clusters(
    memory: Memory,
    offer: Offer,
    generator: torch.Generator,
    influence: Tensor | None,
    last: Tensor | float = 0.0,
) -> Tensor:
    """Choose one row of each of as many clusters as the new task has slots.

    It is the one of lowest influence, or nearest to the centre where no influence is known (the
    first task has none). Rows whose `last` is higher come after the others."""
    if offer.points is None:
        raise UserError(
            "this selection clusters points, and none were offered: make an Offer with `points` "
            "(see `docs/own-loop.md`)."
        )
    share = new_share(memory, offer)
    if share >= len(offer.ids):
        return torch.arange(len(offer.ids))
    cluster, distance = kmeans(offer.points, len(offer.ids), share, generator)
    order = distance.argsort(stable=True) if no_influence(influence) else ranked(influence)
    if isinstance(last, Tensor):
        order = order[last[order].argsort(stable=True)]
    first: dict[int, int] = {}
    for row in order.tolist():
        first.setdefault(int(cluster[row]), row)
    chosen = list(first.values())
    # Identical examples can leave a cluster empty: the next best fill its place.
    rest = [row for row in order.tolist() if row not in set(chosen)]
    return torch.tensor(chosen + rest[: share - len(chosen)])


def replace_worst(
    memory: Memory, offer: Offer, chosen: Tensor, harm: Tensor | None = None
) -> Placement:
    """Put the chosen rows into free slots and those of the worst old examples, taken evenly over
    tasks, and within a task over classes.

    `harm` (capacity,) says what is worst; by default the influence, with those of unknown influence
    between the harmful and the helpful."""
    harm = memory.influence.nan_to_num(nan=0.0) if harm is None else harm
    chosen = chosen[~torch.isin(offer.ids[chosen], memory.ids[memory.occupied])]
    by_task = grouped(memory.occupied.tolist(), memory.tasks[memory.occupied].tolist())
    sizes = {task: len(slots) for task, slots in by_task.items()}
    free = memory.empty.tolist()
    for task, quota in shares(memory.capacity - len(chosen), sizes).items():
        free += worst_of(by_task[task], quota, memory, harm)
    return Placement.of(list(zip(chosen.tolist(), sorted(free))))


def worst_of(slots: list[int], quota: int, memory: Memory, harm: Tensor) -> list[int]:
    """Return the slots to give up so that `quota` remain, evenly over classes, the most harmful
    first; of equals, the newest first; what is pinned after all others."""
    labels = [0] * len(slots)  # where labels are no classes (regression), all are alike
    if memory.labels.dim() == 1 and not memory.labels.is_floating_point():
        labels = memory.labels[slots].tolist()
    loose = (~memory.pinned[slots]).tolist()
    order = dict(zip(slots, zip(loose, harm[slots].tolist(), memory.entered[slots].tolist())))
    remaining = shares(quota, Counter(labels))
    dropped = []
    for label, same_class in grouped(slots, labels).items():
        dropped += sorted(same_class, key=order.__getitem__)[remaining[label] :]
    return dropped


def new_share(memory: Memory, offer: Offer) -> int:
    """Return the slots due to the new task when all tasks seen share the memory evenly."""
    groups = Counter(memory.tasks[memory.occupied].tolist())
    groups[offer.task] = len(offer.ids)
    return shares(memory.capacity, groups)[offer.task]


def ranked(influence: Tensor | None) -> Tensor:
    """Return the rows from the most helpful to the most harmful; those unknown come last."""
    assert influence is not None
    return influence.nan_to_num(nan=torch.inf).argsort(stable=True)


def no_influence(influence: Tensor | None) -> bool:
    return influence is None or bool(influence.isnan().all())

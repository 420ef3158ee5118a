"""Names of classes, where labels are text: numbered in the order in which classes come."""

from collections.abc import Sequence

import torch

from metasp.errors import UserError
from metasp.learner.data import Arrivals


def adopted(found: Arrivals, known: Sequence[str], learned: bool) -> tuple[Arrivals, list[str]]:
    """What has come under the learner's own numbers, and all names with the new ones at the end.
    `learned` says whether there were labels before, which must then have been of the same kind."""
    if learned and bool(found.names) != bool(known):
        now, before = ("names", "numbers") if found.names else ("numbers", "names")
        raise UserError(
            f"the labels are {now} and were {before} before: a learner keeps to one kind."
        )
    names = [*known, *(name for name in found.names if name not in known)]
    return translated(found, names), names


def translated(found: Arrivals, names: Sequence[str]) -> Arrivals:
    """The same under the numbers of these names; others get numbers beyond, as classes that the
    learner has not met."""
    if not found.names:
        return found
    more = [name for name in found.names if name not in names]
    place = {name: number for number, name in enumerate([*names, *more])}
    numbers = torch.tensor([place[name] for name in found.names])
    return Arrivals(found.inputs, numbers[found.labels])

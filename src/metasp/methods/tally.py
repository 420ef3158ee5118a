"""How each example of the task at hand has fared in the updates so far."""

from collections.abc import Mapping

import torch
from torch import Tensor

from metasp.types import State

QUANTITIES = ("loss", "margin", "weight")


class Tally:
    """Sums over the updates of a task, one row per example of its training data: its loss, its
    margin (the logit of its label less the largest other) and its weight relative to an even one.
    A row is found by a search in the sorted ids, so that a step adds a few microseconds."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids.sort().values
        self.sums = torch.zeros(len(ids), len(QUANTITIES), dtype=torch.float64)
        self.counts = torch.zeros(len(ids), dtype=torch.long)

    def add(self, ids: Tensor, values: Tensor) -> None:
        """Enter (n, quantities) values of the examples of these ids; others do not count."""
        if not len(self.ids):
            return
        place = torch.searchsorted(self.ids, ids).clamp_(max=len(self.ids) - 1)
        known = self.ids[place] == ids
        rows = place[known]
        self.sums.index_add_(0, rows, values[known].double())
        self.counts.index_add_(0, rows, torch.ones_like(rows))

    def means(self, ids: Tensor, quantity: str) -> Tensor:
        """The mean of one quantity of the examples of these ids (n,); NaN: never met."""
        if not len(self.ids):
            return torch.full((len(ids),), torch.nan, dtype=torch.float64)
        place = torch.searchsorted(self.ids, ids).clamp_(max=len(self.ids) - 1)
        found = self.sums[place, QUANTITIES.index(quantity)] / self.counts[place]
        return torch.where(self.ids[place] == ids, found, torch.nan)

    def without(self, ids: Tensor) -> "Tally":
        """The same for all but these ids."""
        kept = ~torch.isin(self.ids, ids)
        other = Tally(self.ids[kept])
        other.sums, other.counts = self.sums[kept], self.counts[kept]
        return other

    def state(self) -> State:
        return {"ids": self.ids, "sums": self.sums, "counts": self.counts}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Tally":
        made = cls(state["ids"].clone())
        made.sums, made.counts = state["sums"].clone(), state["counts"].clone()
        return made


def margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """The logit of each row's label less the largest other (n,); NaN where labels are not
    classes."""
    classes = outputs.dim() == 2 and outputs.shape[1] > 1 and labels.dim() == 1
    if not classes or labels.is_floating_point():
        return torch.full((len(labels),), torch.nan, device=outputs.device)
    own = outputs.gather(1, labels[:, None])
    others = outputs.scatter(1, labels[:, None], -torch.inf)
    return own[:, 0] - others.amax(1)

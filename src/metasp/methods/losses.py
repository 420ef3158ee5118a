"""Loss terms: what a step descends, as rows of one pass through the network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp.types import Batch, LossFn, as_rows


@dataclass(frozen=True)
class Term:
    """`weight` times the mean of `loss(outputs, labels)` over the rows of a prepared batch, one
    loss per row; without a `loss` it is the learner's. Rows that are not `weighable` keep their
    share whatever weighs the others: their loss is not that of a label."""

    batch: Batch
    loss: LossFn | None = None
    weight: float = 1.0
    weighable: bool = True


class Objective:
    """What a step descends: the sum of share × loss over the rows of all terms, one after the
    other in one `batch`. `shares` (n,) is None for a plain mean, `weighable` (n,) where all rows
    are. `goal(outputs, labels)` is the loss that is to become small on other examples."""

    def __init__(self, terms: Sequence[Term], loss_fn: LossFn, goal: LossFn | None = None) -> None:
        self.batch = Batch.join([term.batch for term in terms])
        self.goal = goal or loss_fn
        self.outputs: Tensor | None = None  # of the first pass, with its graph
        present = [term for term in terms if term.batch.size]
        self._parts = [(term.loss or loss_fn, term.batch) for term in present]
        self.shares: Tensor | None = None
        self.weighable: Tensor | None = None
        device = self.batch.labels.device
        if len(terms) > 1 or terms[0].weight != 1:
            shares = [torch.full((t.batch.size,), t.weight / t.batch.size) for t in present]
            self.shares = torch.cat(shares).to(device)
        if not all(term.weighable for term in terms):
            marks = [torch.full((t.batch.size,), t.weighable) for t in present]
            self.weighable = torch.cat(marks).to(device)

    def losses(self, outputs: Tensor) -> Tensor:
        """Return the loss of each row (n,) by the outputs of the batch."""
        if self.outputs is None:
            self.outputs = outputs
        if len(self._parts) == 1:
            loss, batch = self._parts[0]
            return loss(outputs, batch.labels)
        pieces = torch.split(outputs, [batch.size for _, batch in self._parts])
        return torch.cat([loss(out, b.labels) for (loss, b), out in zip(self._parts, pieces)])

    def weights(self, losses: Tensor) -> Tensor:
        """Return the weights of the rows (n,) where nothing else weighs them."""
        if self.shares is None:
            return torch.full_like(losses, 1 / len(losses), requires_grad=False)
        return self.shares.to(losses)

    def scaled(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return losses whose mean an influence is measured on, (n,): of the batch's own rows
        `n × share × loss`, of other examples those of the goal. Rows are the batch's own where
        `labels` is the very tensor of its labels."""
        if labels is not self.batch.labels:
            return self.goal(outputs, labels)
        losses = self.losses(outputs)
        return losses if self.shares is None else self.scale(losses) * losses

    def scale(self, losses: Tensor) -> Tensor:
        """Return n × share of each row (n,)."""
        assert self.shares is not None
        return (self.batch.size * self.shares).to(losses)


def distance_to(stored: Tensor) -> LossFn:
    """Return the mean squared distance (n,) to stored outputs, of those that were there when they
    were stored: a head may have grown since, and its new places are NaN or missing."""

    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        known = ~stored.isnan()
        gaps = as_rows(outputs)[:, : stored.shape[1]] - stored.nan_to_num()
        return (gaps.square() * known).sum(1) / known.sum(1).clamp_min(1)

    return loss


def cross_entropy_among(classes: Sequence[int]) -> LossFn:
    """Return the cross-entropy (n,) among some classes and that of the label, which may be wrong
    and from elsewhere."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        width = outputs.shape[1]
        own = torch.arange(width, device=outputs.device) == labels[:, None]
        competes = members(classes, width, outputs) | own
        masked = outputs.masked_fill(~competes, -torch.inf)
        return F.cross_entropy(masked, labels, reduction="none")

    return loss


def members(classes: Sequence[int], width: int, like: Tensor) -> Tensor:
    """Return which of so many outputs stand for one of the classes, shape (width,)."""
    chosen = torch.zeros(width, dtype=torch.bool)
    chosen[[label for label in classes if label < width]] = True
    return chosen.to(like.device)

"""Loss terms: the parts of a method's loss, as rows of one pass through the network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp.types import Batch, LossFn, as_rows


@dataclass(frozen=True)
class Term:
    """A part of a method's loss: `weight` times the mean of `loss(outputs, labels)` over a batch.

    batch: prepared examples (n rows).
    loss: gives one loss per row (n,); None: the learner's.
    weighable: False where the loss is not that of a label, such as a distance to stored outputs;
        these rows keep their share whatever weighs the others."""

    batch: Batch
    loss: LossFn | None = None
    weight: float = 1.0
    weighable: bool = True


class Objective:
    """The sum of share × loss over the rows of all terms, one after the other in one `batch`.

    shares: (n,); None for a plain mean over the rows of one term.
    weighable: (n,); None where all rows are.
    goal: the loss that is to become small on other examples, which influence is measured on."""

    def __init__(self, terms: Sequence[Term], loss_fn: LossFn, goal: LossFn | None = None) -> None:
        self.batch = Batch.join([term.batch for term in terms])
        self.goal = goal or loss_fn
        self.outputs: Tensor | None = None  # of the first pass, with its graph
        self.shares: Tensor | None = None
        self.weighable: Tensor | None = None
        self._losses: list[LossFn] = []
        self._labels: list[Tensor] = []
        shares, weighable = [], []
        for term in terms:
            size = term.batch.size
            if size:
                self._losses.append(term.loss or loss_fn)
                self._labels.append(term.batch.labels)
                shares.append(torch.full((size,), term.weight / size))
                weighable.append(torch.full((size,), term.weighable))
        device = self.batch.labels.device
        if len(terms) > 1 or terms[0].weight != 1:
            self.shares = torch.cat(shares).to(device)
        if not all(term.weighable for term in terms):
            self.weighable = torch.cat(weighable).to(device)

    def losses(self, outputs: Tensor) -> Tensor:
        """Return the loss of each row (n,) by the outputs of the batch."""
        if self.outputs is None:
            self.outputs = outputs
        if len(self._losses) == 1:
            return self._losses[0](outputs, self._labels[0])
        pieces = torch.split(outputs, [len(labels) for labels in self._labels])
        losses = []
        for loss, piece, labels in zip(self._losses, pieces, self._labels):
            losses.append(loss(piece, labels))
        return torch.cat(losses)

    def weights(self, losses: Tensor) -> Tensor:
        """Return the weights of the rows (n,) where nothing else weighs them."""
        if self.shares is None:
            return torch.full_like(losses, 1 / len(losses), requires_grad=False)
        return self.shares.to(losses)

    def scaled(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return losses whose mean an influence is measured on, (n,).

        Of the batch's own rows, where `labels` is the very tensor of its labels, they are
        n × share × loss; of other examples those of the goal."""
        if labels is not self.batch.labels:
            return self.goal(outputs, labels)
        losses = self.losses(outputs)
        return losses if self.shares is None else self.scale(losses) * losses

    def scale(self, losses: Tensor) -> Tensor:
        """Return n × share of each row (n,)."""
        assert self.shares is not None
        return (self.batch.size * self.shares).to(losses)


def distance_to(stored: Tensor) -> LossFn:
    """Return the loss ‖outputs − stored‖² as a mean (n,) over the outputs that were there when they
    were stored: a head may have grown since, and its new outputs are NaN or missing."""

    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        present = ~stored.isnan()
        gaps = as_rows(outputs)[:, : stored.shape[1]] - stored.nan_to_num()
        return (gaps.square() * present).sum(1) / present.sum(1).clamp_min(1)

    return loss


def cross_entropy_among(classes: Sequence[int]) -> LossFn:
    """Return the cross-entropy (n,) among some classes and that of the label, which may be wrong
    and from elsewhere."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        width = outputs.shape[1]
        is_label = torch.arange(width, device=outputs.device) == labels[:, None]
        competes = members(classes, width, outputs) | is_label
        masked = outputs.masked_fill(~competes, -torch.inf)
        return F.cross_entropy(masked, labels, reduction="none")

    return loss


def members(classes: Sequence[int], width: int, like: Tensor) -> Tensor:
    """Mark which of `width` outputs stand for one of the classes, shape (width,)."""
    chosen = torch.zeros(width, dtype=torch.bool)
    chosen[[label for label in classes if label < width]] = True
    return chosen.to(like.device)

"""How likely a label is right, from one number per example: a mixture of two normal curves."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

ROUNDS = 30  # of expectation and maximisation
FARTHEST = 3.0  # values beyond count as this
LEAST_RIGHT, MOST_WRONG = 0.1, 0.0  # the means stay on their sides
LEAST_VARIANCE = 0.01
FEW = 5.0  # examples that a scatter is believed with
LEAST_SHARE, LARGEST_SHARE = 0.005, 0.97  # of wrong labels in a class


@dataclass(frozen=True)
class Mixture:
    """Values of right labels scatter around `right`, those of wrong ones around `wrong`, each with
    a variance of its own; `shares` (classes,) is the part of each given label that is wrong."""

    right: float
    wrong: float
    right_variance: float
    wrong_variance: float
    shares: Tensor

    @classmethod
    def fit(cls, values: Tensor, labels: Tensor, classes: int) -> Self:
        """The most likely mixture, by expectation and maximisation, of values (n,) of examples with
        given labels (n,)."""
        values = values.double().clamp(-FARTHEST, FARTHEST)
        above = values[values > 0]
        right = max(0.3, float(above.mean())) if len(above) else 0.5
        counts = labels.bincount(minlength=classes).double()
        found = cls(right, -0.3, 0.1, 0.1, torch.full((classes,), 0.2, dtype=torch.float64))
        for _ in range(ROUNDS):
            chance = found.probability(values, labels)
            other = 1 - chance
            right = float((chance * values).sum() / chance.sum().clamp_min(1e-6))
            wrong = float((other * values).sum() / other.sum().clamp_min(1e-6))
            right, wrong = max(right, LEAST_RIGHT), min(wrong, MOST_WRONG)
            near = float((chance * (values - right) ** 2).sum() / chance.sum().clamp_min(1e-6))
            near = max(near, LEAST_VARIANCE)
            # A few wrong labels say little of their scatter, which is never the smaller one.
            far = float((other * (values - wrong) ** 2).sum() + FEW * near)
            far = max(far / float(other.sum() + FEW), near)
            # Half an example more, of either kind: a class of a few is not all right or wrong.
            amiss = torch.zeros_like(counts).index_add_(0, labels, other)
            shares = ((amiss + 0.5) / (counts + 2)).clamp(LEAST_SHARE, LARGEST_SHARE)
            found = cls(right, wrong, near, far, shares)
        return found

    def probability(self, values: Tensor, labels: Tensor) -> Tensor:
        """The probability (n,) that each label is right; a value above the mean of right ones is as
        good as that."""
        values = values.double().clamp(-FARTHEST, FARTHEST).clamp(max=self.right)
        prior = self.shares[labels]
        near = (values - self.right) ** 2 / self.right_variance + math.log(self.right_variance)
        far = (values - self.wrong) ** 2 / self.wrong_variance + math.log(self.wrong_variance)
        return torch.sigmoid((1 - prior).log() - prior.log() + (far - near) / 2)

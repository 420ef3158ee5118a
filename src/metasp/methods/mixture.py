"""How likely a label is right, from one number per example: a mixture of two normal curves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from metasp.types import State

ROUNDS = 30  # of expectation and maximisation
FARTHEST = 3.0  # values beyond count as this
LEAST_RIGHT, MOST_WRONG = 0.1, 0.0  # the means stay on their sides
LEAST_VARIANCE = 0.01
LEAST_SHARE, LARGEST_SHARE = 0.005, 0.97  # of wrong labels in a class


@dataclass(frozen=True)
class Mixture:
    """Values of right labels scatter around `right`, those of wrong ones around `wrong`, with one
    `variance`; `shares` (classes,) is the part of each given label that is wrong."""

    right: float
    wrong: float
    variance: float
    shares: Tensor

    @classmethod
    def fit(cls, values: Tensor, labels: Tensor, classes: int) -> Self:
        """The most likely mixture, by expectation and maximisation, of values (n,) of examples with
        given labels (n,)."""
        values = values.double().clamp(-FARTHEST, FARTHEST)
        above = values[values > 0]
        right = max(0.3, float(above.mean())) if len(above) else 0.5
        counts = labels.bincount(minlength=classes).double()
        found = cls(right, -0.3, 0.1, torch.full((classes,), 0.2, dtype=torch.float64))
        for _ in range(ROUNDS):
            chance = found.probability(values, labels)
            other = 1 - chance
            right = float((chance * values).sum() / chance.sum().clamp_min(1e-6))
            wrong = float((other * values).sum() / other.sum().clamp_min(1e-6))
            right, wrong = max(right, LEAST_RIGHT), min(wrong, MOST_WRONG)
            spread = chance * (values - right) ** 2 + other * (values - wrong) ** 2
            # Half an example more, of either kind: a class of a few is not all right or wrong.
            amiss = torch.zeros_like(counts).index_add_(0, labels, other)
            shares = ((amiss + 0.5) / (counts + 2)).clamp(LEAST_SHARE, LARGEST_SHARE)
            found = cls(right, wrong, max(float(spread.mean()), LEAST_VARIANCE), shares)
        return found

    def probability(self, values: Tensor, labels: Tensor) -> Tensor:
        """The probability (n,) that each label is right."""
        values = values.double().clamp(-FARTHEST, FARTHEST)
        prior = self.shares[labels]
        gap = (values - self.wrong) ** 2 - (values - self.right) ** 2
        return torch.sigmoid((1 - prior).log() - prior.log() + gap / (2 * self.variance))

    def state(self) -> State:
        numbers = torch.tensor([self.right, self.wrong, self.variance], dtype=torch.float64)
        return {"numbers": numbers, "shares": self.shares}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        right, wrong, variance = state["numbers"].tolist()
        return cls(right, wrong, variance, state["shares"].clone())

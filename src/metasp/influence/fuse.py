"""Fuse the two influences into one: the two-objective Pareto problem in closed form."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from metasp.errors import UserError


@dataclass(frozen=True)
class Fused:
    """``fused = gamma * stability + (1 - gamma) * plasticity``, shape (n,)."""

    gamma: float
    fused: Tensor


def fuse(stability: Tensor, plasticity: Tensor, gamma: float | None = None) -> Fused:
    """The point of the segment between both influences that is nearest to zero; shape (n,).

    ``gamma`` fixes the place on the segment instead (1 is only stability, 0 only plasticity).
    Two equal vectors leave gamma undetermined: it is then one half, the symmetric choice, and the
    fused vector is the common one. If one vector is zero, zero is the nearest point.
    """
    if stability.shape != plasticity.shape or stability.dim() != 1:
        raise UserError(
            f"fuse needs two vectors of one length, got shapes {tuple(stability.shape)} and "
            f"{tuple(plasticity.shape)}: pass one number per example for both."
        )
    check_gamma(gamma)
    if gamma is None:
        gamma = nearest_gamma(stability, plasticity)
    return Fused(gamma, gamma * stability + (1.0 - gamma) * plasticity)


def check_gamma(gamma: float | None) -> None:
    if gamma is not None and not 0.0 <= gamma <= 1.0:
        raise UserError(f"gamma is {gamma}: give a number between 0 and 1, or None to compute it.")


def nearest_gamma(stability: Tensor, plasticity: Tensor) -> float:
    """The gamma in [0, 1] that minimises ``|gamma * stability + (1 - gamma) * plasticity|``."""
    s, p = stability.double(), plasticity.double()
    for name, values in (("stability", s), ("plasticity", p)):
        bad = (~values.isfinite()).nonzero()
        if len(bad):
            raise UserError(
                f"{name} influence of example {int(bad[0])} is not finite: "
                "lower the learning rate or remove that example."
            )
    # gamma does not depend on the common scale; dividing it out keeps the squares representable.
    scale = torch.cat([s, p]).abs().max().item() if len(s) else 0.0
    if scale == 0.0:
        return 0.5
    s, p = s / scale, p / scale
    gap = p - s
    square = torch.dot(gap, gap).item()
    if square == 0.0:
        return 0.5
    gamma = torch.dot(gap, p).item() / square
    return min(1.0, max(0.0, gamma)) if math.isfinite(gamma) else 0.5

"""Gradient projections: the update nearest to a gradient that contradicts no reference."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.float64]]


def agreeing(gradient: Tensor, reference: Tensor) -> Tensor:
    """The vector nearest to `gradient` (p,) whose inner product with `reference` (p,) is not
    negative (A-GEM)."""
    inner, square = torch.dot(gradient, reference), torch.dot(reference, reference)
    if inner >= 0 or square == 0:
        return gradient
    return gradient - inner / square * reference


def agreeing_with_all(gradient: Tensor, past: Tensor, margin: float, ridge: float) -> Tensor:
    """The gradient (p,) plus the combination of past ones (t, p) that undoes its conflicts with
    them (GEM); the gradient itself when it has none. Without margin and ridge the answer is the
    nearest vector whose inner product with no past gradient is negative."""
    inner = past @ gradient
    if bool((inner >= 0).all()):
        return gradient
    gram = past @ past.T
    if not bool(inner.isfinite().all() and gram.isfinite().all()):
        return gradient  # it has diverged, which whoever looks at the loss will say
    weights = dual_weights(gram, inner, margin, ridge)
    return gradient + weights.to(past) @ past


def dual_weights(gram: Tensor, inner: Tensor, margin: float = 0.0, ridge: float = 0.0) -> Tensor:
    """argmin over v ≥ margin of ½v'Pv + inner'v with P = gram + ridge·I, shape (t,), float64.

    With v = margin + u and P = A'A this is the non-negative least squares problem of u. A comes
    from the eigenvectors, so that a P without full rank (dependent gradients) is no exception:
    what lies outside its range is rounding, and is left out. Gradients are brought to one length
    first, as beside a long one all of a short one would be left out."""
    size = len(inner)
    given = gram.double().cpu().numpy()
    quadratic = (given + given.T) / 2 + ridge * np.eye(size)
    linear = inner.double().cpu().numpy() + quadratic @ np.full(size, margin)
    lengths = np.sqrt(np.diag(quadratic))
    lengths[lengths == 0] = 1.0
    values, vectors = np.linalg.eigh(quadratic / np.outer(lengths, lengths))
    kept = values > max(values[-1], 0.0) * size * torch.finfo(gram.dtype).eps
    if not kept.any():
        return torch.full((size,), margin, dtype=torch.float64)
    root = np.sqrt(values[kept])
    factor = root[:, None] * vectors.T[kept]
    above = _non_negative(factor, -(vectors.T[kept] @ (linear / lengths)) / root)
    return torch.from_numpy(margin + above / lengths)


def _non_negative(matrix: Array, target: Array) -> Array:
    """argmin over u ≥ 0 of ‖matrix·u − target‖²."""
    from scipy.optimize import lsq_linear, nnls  # slow to load, for whoever only asks for GEM

    try:
        solution: Array = nnls(matrix, target)[0]
    except RuntimeError:  # its active set did not settle: take the solver that always ends
        solution = np.maximum(lsq_linear(matrix, target, bounds=(0, np.inf)).x, 0.0)
    return solution

"""GEM (Lopez-Paz and Ranzato 2017) and A-GEM (Chaudhry et al. 2019): the update opposes no
gradient of what the memory holds of past tasks."""

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from metasp.methods.base import Method, Phase
from metasp.methods.context import Step
from metasp.methods.gradients import (
    descend_along,
    passing_gradient,
    quiet_gradient,
    training_gradient,
)
from metasp.methods.settings import GEMSettings
from metasp.types import Batch, Task

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


PORTION = 128  # examples differentiated at a time, to bound the activations held


@final
class GEM(Method):
    needs = ("boundaries",)
    updates = False
    Settings = GEMSettings
    lr = 0.03
    selection = "class-balanced"
    settings: GEMSettings
    stored = ("current",)
    current = 0

    def begin_task(self, task: Task) -> None:
        self.current = task.index

    def step(self, new: Batch, phase: Phase) -> Step:
        learner, settings = self.learner, self.settings
        past = [self.memory_gradient(task) for task in self.past_tasks()]
        loss, gradient = training_gradient(learner, learner.prepare(new))
        projected = gradient
        if past:
            rows = torch.stack(past)
            projected = agreeing_with_all(gradient, rows, settings.margin, settings.ridge)
        descend_along(learner, projected)
        return Step(loss, {"projected": float(projected is not gradient)})

    def past_tasks(self) -> list[int]:
        """The tasks before this one that the memory holds examples of."""
        held = set(self.learner.memory.tasks.tolist())
        return sorted(task for task in held if 0 <= task < self.current)

    def memory_gradient(self, task: int) -> Tensor:
        """The gradient (p,) of all that the memory holds of one task."""
        learner = self.learner
        slots = torch.nonzero(learner.memory.tasks == task).flatten()
        batch = learner.prepare_replay(learner.memory.read(slots))
        if not self.settings.memory_statistics:
            return quiet_gradient(learner, batch, PORTION)
        return passing_gradient(learner, batch, PORTION)


@final
class AGEM(Method):
    updates = False
    lr = 0.03
    selection = "class-balanced"

    def step(self, new: Batch, phase: Phase) -> Step:
        learner = self.learner
        loss, gradient = training_gradient(learner, learner.prepare(new))
        projected = gradient
        if len(learner.memory):
            reference = quiet_gradient(learner, learner.replay())
            projected = agreeing(gradient, reference)
        descend_along(learner, projected)
        return Step(loss, {"projected": float(projected is not gradient)})

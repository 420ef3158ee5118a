"""The ground truth: what deleting an example and training again really does.

The true influence of example i (Definition 2) is measured by full-batch descent from the same start
without it, everything else held fixed: its weight is 0 and the others keep 1/n. Many retrainings
run at once under ``torch.func.vmap``. Deleting changes the weight by -1/n, so
``n * (loss with all - loss without i)`` is on the scale and sign of an influence.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.func import grad, vmap

from metasp.errors import UserError
from metasp.influence.checks import checked_pair
from metasp.influence.core import example_influence
from metasp.influence.origin import with_tensors
from metasp.influence.pseudo import Loss, Named
from metasp.paper.approximation import one_thread
from metasp.paper.hessian import curvature, exact, larsen, luketina, neumann
from metasp.types import TensorPair as Pair


@dataclass(frozen=True)
class Descent:
    """Full-batch gradient descent: how the model is trained, and trained again."""

    lr: float = 0.1
    steps: int = 200

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.steps < 1:
            raise UserError("descent needs a positive lr and at least one step.")


def descend(
    model: nn.Module, loss_fn: Loss, train: Pair, descent: Descent, weights: Tensor
) -> Named:
    """The parameters after descent on the weighted sum of losses, for one weight vector (n,)."""
    theta = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}

    def objective(at: Named) -> Tensor:
        with with_tensors(model, at):
            return (weights * loss_fn(model(train[0]), train[1])).sum()

    slope = grad(objective)
    for _ in range(descent.steps):
        slopes = slope(theta)
        theta = {k: t - descent.lr * slopes[k] for k, t in theta.items()}
    return theta


def leave_one_out(
    model: nn.Module,
    loss_fn: Loss,
    train: Pair,
    goal: Pair,
    descent: Descent,
    examples: Sequence[int] | None = None,
    chunk: int = 64,
) -> Tensor:
    """True influence on the goal's mean loss of each training example (or of ``examples``).

    ``model`` is the start of all trainings and is left as it is; shape (number of examples,).
    """
    device = next(model.parameters()).device
    checked_pair(train, device, "training set")
    checked_pair(goal, device, "goal")
    n = len(train[0])
    chosen = torch.arange(n) if examples is None else torch.as_tensor(examples)
    dtype = next(model.parameters()).dtype
    full = torch.full((n,), 1.0 / n, dtype=dtype, device=device)

    def goal_loss(weights: Tensor) -> Tensor:
        theta = descend(model, loss_fn, train, descent, weights)
        with with_tensors(model, theta):
            return loss_fn(model(goal[0]), goal[1]).mean()

    with torch.no_grad():
        reference = goal_loss(full)
        parts = []
        for start in range(0, len(chosen), chunk):
            index = chosen[start : start + chunk].to(device)
            weights = full.repeat(len(index), 1)
            weights[torch.arange(len(index)), index] = 0.0
            parts.append(vmap(goal_loss)(weights))
    return n * (reference - torch.cat(parts))


@dataclass(frozen=True)
class Agreement:
    """How well one method predicts the truth."""

    method: str
    rank_correlation: float
    sign_agreement: float


@dataclass(frozen=True)
class TruthReport:
    """The truth, each method's influence (n,), and how they agree."""

    truth: Tensor
    influences: dict[str, Tensor]
    agreements: tuple[Agreement, ...]
    damping: float
    descent: Descent


def agreements(truth: Tensor, influences: Mapping[str, Tensor]) -> tuple[Agreement, ...]:
    """Spearman's rank correlation and the fraction of equal signs, for vectors of shape (n,)."""
    rows = []
    for name, values in influences.items():
        rank = float(spearmanr(truth.numpy(), values.numpy()).statistic)
        rows.append(Agreement(name, rank, float((truth.sign() == values.sign()).double().mean())))
    return tuple(rows)


def truth_report(
    model: nn.Module,
    loss_fn: Loss,
    train: Pair,
    goal: Pair,
    descent: Descent | None = None,
    damping: float | None = None,
    steps: int = 20,
) -> TruthReport:
    """Retrain without each example, and compare all influences with what that did.

    ``model`` is the untrained start. The damping defaults to 1 / (lr * steps of the descent): as
    much of the inverse Hessian as that descent can reach. MetaSP and the Neumann series use
    ``steps`` steps with lr * steps = 1 / damping; "MetaSP from the start" instead follows every
    step of the training, which no later snapshot can.
    """
    descent = descent or Descent()
    strength = damping or 1.0 / (descent.lr * descent.steps)
    with one_thread():
        truth = leave_one_out(model, loss_fn, train, goal, descent)
        n = len(train[0])
        weights = torch.full((n,), 1.0 / n, dtype=truth.dtype)
        theta = descend(model, loss_fn, train, descent, weights)
        start = {k: p.detach().clone() for k, p in model.named_parameters()}
        unrolled = example_influence(
            model, loss_fn, train, goal, lr=descent.lr, steps=descent.steps
        )
        try:
            model.load_state_dict(theta, strict=False)
            found = curvature(model, loss_fn, train)
            v = found.gradient(goal)
            k = max(
                steps, math.ceil(1.0 / (strength * descent.lr))
            )  # steps no longer than training's
            lr = 1.0 / (strength * k)
            influences = {
                "MetaSP": example_influence(model, loss_fn, train, goal, lr=lr, steps=k),
                "MetaSP, one step": example_influence(model, loss_fn, train, goal, lr=lr),
                "exact Hessian": exact(found, v, strength),
                "Larsen": larsen(found, v, strength),
                "Luketina": luketina(found, v),
                "Neumann": neumann(found, v, lr, k),
                "MetaSP from the start": unrolled,
            }
        finally:
            model.load_state_dict(start, strict=False)
    return TruthReport(truth, influences, agreements(truth, influences), strength, descent)


def render(report: TruthReport) -> list[str]:
    """The report as lines of text."""
    d = report.descent
    lines = [
        f"True leave-one-out influence of {len(report.truth)} examples, retrained with "
        f"{d.steps} steps of {d.lr:g}; damping {report.damping:.3g}",
        f"{'method':<24}{'rank correlation':>18}{'equal signs':>14}",
    ]
    lines += [
        f"{a.method:<24}{a.rank_correlation:18.3f}{a.sign_agreement:14.3f}"
        for a in report.agreements
    ]
    return lines

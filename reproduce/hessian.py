"""Influence with the Hessian of small nets: exact with damping, and three approximations.

For the mean loss on a training set with Hessian H, a goal with gradient v and example gradients
g_i, the damped influence is ``I_i = -v (H + damping)^-1 g_i``. One linear system for v serves all
examples. Only products with vectors are formed, in batches; there is no matrix of parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp, vmap

from metasp.errors import UserError
from metasp.influence.checks import check_losses, checked_pair
from metasp.influence.functional import Loss, Named, copies, with_tensors
from metasp.influence.pseudo_step import make_plan
from metasp.types import TensorPair as Pair

DENSE = 2000  # parameters up to which the whole Hessian is cheap
Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Curvature:
    """The training losses of a model around its parameters, as maps of flat vectors.

    P is the number of parameters; ``theta`` has shape (P,).
    """

    model: nn.Module
    loss_fn: Loss
    train: Pair
    shapes: dict[str, torch.Size]
    theta: Tensor

    def losses(self, theta: Tensor, pair: Pair) -> Tensor:
        """One loss per example of ``pair``, shape (n,)."""
        params: Named = {}
        at = 0
        for name, shape in self.shapes.items():
            params[name] = theta[at : at + shape.numel()].view(shape)
            at += shape.numel()
        rest = {k: p.detach() for k, p in self.model.named_parameters() if k not in params}
        buffers = copies(dict(self.model.named_buffers()))
        with with_tensors(self.model, {**rest, **buffers, **params}):
            return self.loss_fn(self.model(pair[0]), pair[1])

    def gradient(self, pair: Pair) -> Tensor:
        """The gradient of the mean loss on ``pair``, shape (P,)."""
        slope: Tensor = grad(lambda t: self.losses(t, pair).mean())(self.theta)
        return slope

    def each_gradient(self, pair: Pair) -> Tensor:
        """The gradient of each example's loss, shape (n, P): for goals, which are few."""
        x, y = pair

        def one(xi: Tensor, yi: Tensor) -> Tensor:
            slope: Tensor = grad(lambda t: self.losses(t, (xi[None], yi[None])).sum())(self.theta)
            return slope

        slopes: Tensor = vmap(one)(x, y)
        return slopes

    def hessian(self, vectors: Tensor) -> Tensor:
        """Products of the Hessian of the mean training loss, shape (m, P)."""
        slope = grad(lambda t: self.losses(t, self.train).mean())
        products: Tensor = vmap(lambda v: jvp(slope, (self.theta,), (v,))[1])(vectors)
        return products

    def outer(self, vectors: Tensor) -> Tensor:
        """Products of the mean of g_i g_i over the training examples, shape (m, P)."""
        n = len(self.train[0])
        back = vjp(lambda t: self.losses(t, self.train), self.theta)[1]
        products: Tensor = vmap(lambda r: back(r / n)[0])(self.examples(vectors))
        return products

    def examples(self, vectors: Tensor) -> Tensor:
        """The slope of each training loss along each vector, shape (m, n)."""
        all_losses = partial(self.losses, pair=self.train)
        slopes: Tensor = vmap(lambda v: jvp(all_losses, (self.theta,), (v,))[1])(vectors)
        return slopes


def curvature(model: nn.Module, loss_fn: Loss, train: Pair) -> Curvature:
    """The training losses around the model's parameters; the model is left alone."""
    params = make_plan(model, 0.0, None).params
    theta = torch.cat([p.reshape(-1) for p in params.values()])
    checked_pair(train, theta.device, "training set")
    made = Curvature(model, loss_fn, train, {k: p.shape for k, p in params.items()}, theta)
    with torch.enable_grad():
        probe = made.losses(theta.clone().requires_grad_(), train)
    check_losses(probe, len(train[0]), "training set")
    return made


def solve(
    operator: Operator,
    rhs: Tensor,
    damping: float,
    tolerance: float | None = None,
    max_steps: int = 500,
) -> Tensor:
    """``(A + damping)^-1 rhs`` by conjugate gradients, all rows of rhs (m, P) together.

    Stops when every residual is below ``tolerance`` times its right-hand side (by default as far
    as the number type reasonably goes). A must leave A + damping positive.
    """
    goal = tolerance or (1e-10 if rhs.dtype == torch.float64 else 1e-5)
    x = torch.zeros_like(rhs)
    r = rhs.clone()
    p = r.clone()
    rr = (r * r).sum(1)
    enough = goal**2 * rr
    for _ in range(max_steps):
        active = rr > enough
        if not bool(active.any()):
            return x
        ap = operator(p) + damping * p
        curved = (p * ap).sum(1)
        if bool((curved[active] <= 0).any()):
            raise UserError(
                f"the Hessian has a direction of curvature below -{damping:g}: raise the damping."
            )
        step = torch.where(active, rr / curved, 0.0)[:, None]
        x += step * p
        r -= step * ap
        fresh = (r * r).sum(1)
        p = r + torch.where(active, fresh / rr, 0.0)[:, None] * p
        rr = fresh
    raise UserError(
        f"conjugate gradients did not converge in {max_steps} steps: raise the damping "
        f"({damping:g})."
    )


def exact(found: Curvature, v: Tensor, damping: float) -> Tensor:
    """``-v (H + damping)^-1 g_i`` for a goal gradient v (P,); shape (n,)."""
    if len(v) <= DENSE:  # a direct solution also serves a Hessian with negative curvature
        matrix = found.hessian(torch.eye(len(v), dtype=v.dtype, device=v.device))
        matrix.diagonal().add_(damping)
        return -found.examples(torch.linalg.solve(matrix, v)[None])[0]
    return -found.examples(solve(found.hessian, v[None], damping))[0]


def larsen(found: Curvature, v: Tensor, damping: float) -> Tensor:
    """Larsen 1996: the Hessian replaced by the mean outer product of the gradients; shape (n,)."""
    return -found.examples(solve(found.outer, v[None], damping))[0]


def luketina(found: Curvature, v: Tensor) -> Tensor:
    """Luketina 2016: the inverse Hessian replaced by the identity; shape (n,)."""
    return -found.examples(v[None])[0]


def neumann(found: Curvature, v: Tensor, lr: float, steps: int) -> Tensor:
    """Lorraine 2020: ``steps`` terms of the series lr * sum_k (1 - lr H)^k; shape (n,)."""
    term, total = v[None], torch.zeros_like(v)[None]
    for _ in range(steps):
        total = total + lr * term
        term = term - lr * found.hessian(term)
    return -found.examples(total)[0]

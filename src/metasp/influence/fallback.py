"""Exact products with the Jacobian of the batch's losses, by whichever way the model allows.

All take directions s (by parameter name, each of shape (directions, *shape of the parameter)) and
give J s, shape (directions, n), with J the derivative of the n losses for the parameters.
"""

from collections.abc import Mapping

import torch
import torch.autograd.forward_ad as fw
from torch import Tensor

from metasp.influence.checks import inner
from metasp.influence.dual_numbers import ObeyingNoGrad, dual, tangent_of
from metasp.influence.jvp_rules import Unsupported
from metasp.influence.origin import differentiable_twice
from metasp.influence.pseudo import Named, Problem, dense


def forward_mode(problem: Problem, theta: Named, directions: Named) -> Tensor:
    """Return J s by dual numbers through the whole model; needs a forward derivative of every
    call."""
    count = next(iter(directions.values())).shape[0]
    rows = []
    try:
        for d in range(count):
            with fw.dual_level(), differentiable_twice():
                duals = {
                    k: dual(t.detach().requires_grad_(), directions[k][d])
                    if k in directions
                    else t.detach()
                    for k, t in theta.items()
                }
                with ObeyingNoGrad(), problem.losses_of_duals(duals) as losses:
                    rows.append(tangent_of(losses).detach())
    except RuntimeError as error:
        raise Unsupported(str(error)) from error
    return torch.stack(rows)


def follows_the_loss(problem: Problem, theta: Named, grads: Named) -> bool:
    """Return whether the gradient is the slope of the mean loss along itself, by differences: the
    only way to see that a backward pass which has no forward counterpart tells the truth."""
    square = sum(float(g.double().square().sum()) for g in grads.values())
    size = sum(float(t.double().square().sum()) for t in theta.values()) ** 0.5
    if square == 0.0:
        return True
    eps = torch.finfo(next(iter(grads.values())).dtype).eps
    step = eps ** (1 / 2) * max(size, 1e-3) / square**0.5
    ends = [{k: t.add(grads[k], alpha=sign * step) if k in grads else t for k, t in theta.items()}
            for sign in (1.0, -1.0)]  # fmt: skip
    up, down = (float(problem.mean_loss(end)) for end in ends)
    slope = (up - down) / (2 * step)
    rounding = 20 * eps * max(abs(up), abs(down)) / step
    return bool(abs(slope - square) <= 100 * eps**0.5 * (abs(slope) + square) + rounding)


def double_backward(problem: Problem, theta: Named, directions: Named) -> tuple[Tensor, Named]:
    """Return J s and H s by differentiating the gradient, where every layer's gradient can be
    differentiated.

    With weights u on the losses, <sum_i u_i grad L_i, s> has derivative J s for u and, at
    u = 1/n, derivative H s for the parameters. H s has the shapes of ``directions``.
    """
    count = next(iter(directions.values())).shape[0]
    products: list[Tensor] = []
    curved: list[Named] = []
    with differentiable_twice(), problem.losses(theta) as (losses, leaves):
        n = len(losses)
        u = losses.new_full((n,), 1.0 / n).requires_grad_()
        grads = torch.autograd.grad(
            losses, list(leaves.values()), u, create_graph=True, allow_unused=True
        )
        used = {k: g for k, g in zip(leaves, grads) if g is not None and g.requires_grad}
        for d in range(count):
            terms = {k: used[k] * directions[k][d] for k in used if k in directions}
            inner = torch.stack([term.sum() for term in terms.values()]).sum()
            try:
                slopes = torch.autograd.grad(
                    inner, [u, *leaves.values()], retain_graph=d + 1 < count, allow_unused=True
                )
            except RuntimeError as error:
                raise Unsupported(str(error)) from error
            products.append(torch.zeros_like(u) if slopes[0] is None else slopes[0])
            # It is linear in u. A layer whose gradient has no graph drops out in silence, with all
            # that lies below it: then this no longer holds.
            size = torch.stack([term.abs().sum() for term in terms.values()]).sum()
            if (u * products[-1]).sum().sub(inner).abs() > 1e3 * torch.finfo(u.dtype).eps * size:
                raise Unsupported("a layer's gradient cannot be differentiated")
            curved.append(
                {k: torch.zeros_like(t) if h is None else dense(h)
                 for (k, t), h in zip(leaves.items(), slopes[1:])}
            )  # fmt: skip
        hs = {k: torch.stack([one[k] for one in curved]).detach() for k in leaves}
    return torch.stack(products).detach(), hs


def one_by_one(losses: Tensor, params: Mapping[str, Tensor], directions: Named) -> Tensor:
    """Return J s from the gradient of each loss on a kept graph: n backward passes, for any model
    that can be trained."""
    columns = []
    for loss in losses:
        grads = torch.autograd.grad(
            loss, [params[k] for k in directions], retain_graph=True, allow_unused=True
        )
        terms = [inner(s, dense(g)) for s, g in zip(directions.values(), grads) if g is not None]
        columns.append(sum(terms, losses.new_zeros(len(next(iter(directions.values()))))))
    return torch.stack(columns, 1).detach()

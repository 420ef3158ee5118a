"""Exact products with the Jacobian of the batch's losses, by whichever way the model allows.

All take directions s (by parameter name, each of shape (directions, *shape of the parameter)) and
give J s, shape (directions, n), with J the derivative of the n losses for the parameters.
"""

from collections.abc import Mapping

import torch
import torch.autograd.forward_ad as fw
from torch import Tensor

from metasp.influence.generic import ObeyingNoGrad, dual, tangent_of
from metasp.influence.origin import differentiable_twice
from metasp.influence.pseudo import Named, Problem, dense
from metasp.influence.rules import Unsupported


def forward_mode(problem: Problem, theta: Named, directions: Named) -> Tensor:
    """J s by dual numbers through the whole model; needs a forward derivative of every call."""
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
                with ObeyingNoGrad(), problem.losses(duals) as losses:
                    rows.append(tangent_of(losses).detach())
    except RuntimeError as error:
        raise Unsupported(str(error)) from error
    return torch.stack(rows)


def double_backward(problem: Problem, theta: Named, directions: Named) -> tuple[Tensor, Named]:
    """J s and H s (H of the mean loss) by differentiating the gradient, where every layer's
    gradient can be differentiated.

    With weights u on the losses, <sum_i u_i grad L_i, s> has derivative J s for u and, at
    u = 1/n, derivative H s for the parameters. H s has the shapes of ``directions``.
    """
    count = next(iter(directions.values())).shape[0]
    leaves = {k: t.detach().requires_grad_() for k, t in theta.items()}
    with differentiable_twice(), problem.losses(leaves) as losses:
        n = len(losses)
        u = losses.new_full((n,), 1.0 / n).requires_grad_()
        grads = torch.autograd.grad(
            losses, list(leaves.values()), u, create_graph=True, allow_unused=True
        )
        used = {k: g for k, g in zip(leaves, grads) if g is not None and g.requires_grad}
        products: list[Tensor] = []
        curved: list[Named] = []
        for d in range(count):
            terms = {k: used[k] * directions[k][d] for k in used}
            inner = torch.stack([term.sum() for term in terms.values()]).sum()
            try:
                found = torch.autograd.grad(
                    inner, [u, *leaves.values()], retain_graph=d + 1 < count, allow_unused=True
                )
            except RuntimeError as error:
                raise Unsupported(str(error)) from error
            products.append(torch.zeros_like(u) if found[0] is None else found[0])
            # It is linear in u. A layer whose gradient has no graph drops out in silence, with all
            # that lies below it: then this no longer holds.
            size = torch.stack([term.abs().sum() for term in terms.values()]).sum()
            if (u * products[-1]).sum().sub(inner).abs() > 1e3 * torch.finfo(u.dtype).eps * size:
                raise Unsupported("a layer's gradient cannot be differentiated")
            curved.append(
                {k: torch.zeros_like(t) if h is None else h
                 for (k, t), h in zip(leaves.items(), found[1:])}
            )  # fmt: skip
    hs = {k: torch.stack([one[k] for one in curved]).detach() for k in leaves}
    return torch.stack(products).detach(), hs


def forward_over_reverse(problem: Problem, theta: Named, directions: Named) -> tuple[Tensor, Named]:
    """J s and H s by dual numbers through the loss and its gradient; cheaper, not always there."""
    count = next(iter(directions.values())).shape[0]
    products: list[Tensor] = []
    curved: list[list[Tensor]] = []
    try:
        for d in range(count):
            with fw.dual_level(), differentiable_twice():
                duals = {
                    k: dual(t.detach().requires_grad_(), directions[k][d]) for k, t in theta.items()
                }
                with ObeyingNoGrad(), problem.losses(duals) as losses:
                    grads = torch.autograd.grad(
                        losses.mean(), list(duals.values()), allow_unused=True
                    )
                products.append(tangent_of(losses).detach())
                curved.append(
                    [torch.zeros_like(t) if g is None else tangent_of(g).detach()
                     for t, g in zip(theta.values(), grads)]
                )  # fmt: skip
    except RuntimeError as error:
        raise Unsupported(str(error)) from error
    hs = {k: torch.stack([one[i] for one in curved]) for i, k in enumerate(theta)}
    return torch.stack(products), hs


def one_by_one(losses: Tensor, params: Mapping[str, Tensor], directions: Named) -> Tensor:
    """J s from the gradient of each loss on a kept graph: n backward passes, for any model that can
    be trained."""
    count = next(iter(directions.values())).shape[0]
    products = losses.new_zeros((count, len(losses)))
    for i, loss in enumerate(losses):
        grads = torch.autograd.grad(
            loss, [params[k] for k in directions], retain_graph=True, allow_unused=True
        )
        for s, g in zip(directions.values(), grads):
            if g is not None:
                products[:, i] += (s * dense(g)).flatten(1).sum(1)
    return products.detach()

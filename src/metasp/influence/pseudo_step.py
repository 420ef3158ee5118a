"""The pseudo step: where the optimizer's next step would take the parameters, without taking it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import nn

from metasp.errors import UserError
from metasp.influence.checks import check_functional, check_steps, check_traps, checked_pair
from metasp.influence.functional import Loss, Named, Origin, Pair, Problem, gradient, untouched
from metasp.influence.updates import Adjoint, State, Stepped, Update, clipped, sgd, update_of

Scope = None | str | Callable[[str], bool]


@dataclass(frozen=True)
class Plan:
    """The parameters that the pseudo step moves, and how; ``clip`` is the largest norm of their
    gradient that the step takes as it is."""

    params: Named
    update: Update
    clip: float | None = None

    def restrict(self, names: Iterable[str]) -> "Plan":
        """Return the same plan for some of the names."""
        chosen = set(names)
        params = {k: v for k, v in self.params.items() if k in chosen}
        return replace(self, params=params, update=self.update.restrict(params))

    def cold(self) -> "Plan":
        """Return the same plan for an optimizer that has not taken a step yet."""
        return replace(self, update=self.update.cold())

    def step(self, theta: Named, grads: Named, state: State) -> Stepped:
        """Take one step from ``theta``; the optimizer's present state is ``update.state``."""
        if self.clip is None:
            return self.update.step(theta, grads, state)
        shorter, unclip = clipped({k: grads[k] for k in self.params}, self.clip)
        taken = self.update.step(theta, shorter, state)

        def back(p: Named, q: State, earlier: bool) -> Adjoint:
            adjoint = taken.back(p, q, earlier)
            return adjoint._replace(gradient=unclip(adjoint.gradient))

        return taken._replace(back=back)


def make_plan(
    model: nn.Module,
    optimizer: float | torch.optim.Optimizer,
    scope: Scope = None,
    lr: float | None = None,
    clip: float | None = None,
) -> Plan:
    """Return who moves and how: the trainable parameters in scope (and in the optimizer, if one is
    given rather than a learning rate). A ``lr`` replaces the optimizer's."""
    named = {k: p for k, p in model.named_parameters() if p.requires_grad}
    if scope is not None:  # a prefix of names, or a predicate on them
        chosen = (lambda name: name.startswith(scope)) if isinstance(scope, str) else scope
        named = {k: p for k, p in named.items() if chosen(k)}
    if isinstance(optimizer, torch.optim.Optimizer):
        moved = set(map(id, chain.from_iterable(g["params"] for g in optimizer.param_groups)))
        named = {k: p for k, p in named.items() if id(p) in moved}
        update = update_of(optimizer, named)
    else:
        update = sgd(float(optimizer), named)
    if not named:
        raise UserError(
            "no trainable parameter is in scope: check the scope's name, requires_grad, "
            "and that the optimizer holds this model's parameters."
        )
    if lr is not None:
        update = update.with_lr(float(lr))
    if clip is not None and not clip > 0:
        raise UserError(f"clip_norm is {clip}: give a norm above zero, or leave it out.")
    return Plan({k: p.detach() for k, p in named.items()}, update, clip)


def checked_plan(
    model: nn.Module,
    optimizer: float | torch.optim.Optimizer | None,
    scope: Scope = None,
    lr: float | None = None,
    clip: float | None = None,
) -> tuple[Plan, torch.device]:
    """Return the plan of a model whose influence is right, and where the model is; refuse others
    by their looks."""
    size = lr if optimizer is None else optimizer
    if size is None:
        raise UserError("the pseudo step has no size: give lr, or an optimizer.")
    check_functional(model)
    plan = make_plan(model, size, scope, lr, clip)
    check_traps(model, plan.params)
    return plan, next(iter(plan.params.values())).device


def virtual_parameters(
    model: nn.Module,
    loss_fn: Loss,
    batch: Pair,
    optimizer: float | torch.optim.Optimizer,
    steps: int = 1,
    scope: Scope = None,
    clip_norm: float | None = None,
) -> Named:
    """Return the parameters after ``steps`` steps on the batch's mean loss, by name.

    ``optimizer`` is one of torch (with its state), or a learning rate.
    The model, its buffers, the optimizer and the random state stay as they are. Parameters that
    do not move (frozen, out of scope, unused) are not in the answer.
    """
    check_steps(steps)
    plan, device = checked_plan(model, optimizer, scope, clip=clip_norm)
    batch = checked_pair(batch, device, "batch")
    with untouched(model, device):
        problem = Problem(model, loss_fn, batch, Origin.of(model, device))
        theta, state = dict(plan.params), plan.update.state
        for _ in range(steps):
            _, grads = gradient(problem, theta)
            plan = plan.restrict(grads)
            theta, state, _ = plan.step(theta, grads, state)
    return theta

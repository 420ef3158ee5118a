"""The pseudo step: where the optimizer's next step would take the parameters, without taking it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence.checks import check_finite, check_steps, checked_pair, example_losses
from metasp.influence.optimizers import (
    Adjoint,
    Rule,
    SGDUpdate,
    State,
    Stepped,
    Update,
    clipped,
    update_of,
)
from metasp.influence.origin import Origin, kept_random_state, kept_values
from metasp.trees import Tree, call, rows

Scope = None | str | Callable[[str], bool]
Outputs = TypeVar("Outputs")
LossOf = Callable[[Outputs, Tensor], Tensor]
"""(outputs of the model, targets) to one loss per example."""
Loss = LossOf[Any]
Pair = tuple[Tree, Tensor]
Named = dict[str, Tensor]


@dataclass(frozen=True)
class Plan:
    """The parameters that the pseudo step moves, and how; ``clip`` is the largest norm of their
    gradient that the step takes as it is."""

    params: Named
    update: Update
    clip: float | None = None

    def restrict(self, names: Iterable[str]) -> "Plan":
        """The same plan for some of the names."""
        kept = set(names)
        params = {k: v for k, v in self.params.items() if k in kept}
        return replace(self, params=params, update=self.update.restrict(params))

    def cold(self) -> "Plan":
        """The same plan for an optimizer that has not taken a step yet."""
        return replace(self, update=self.update.cold())

    def step(self, theta: Named, grads: Named, state: State) -> Stepped:
        """One step from ``theta``; the optimizer's present state is ``update.state``."""
        if self.clip is None:
            return self.update.step(theta, grads, state)
        shorter, unclip = clipped({k: grads[k] for k in self.params}, self.clip)
        taken = self.update.step(theta, shorter, state)

        def back(p: Named, q: State | None, whole: bool) -> Adjoint:
            found = taken.back(p, q, whole)
            decayed = {k: found.theta[k] + found.gradient[k] * d for k, d in found.decay.items()}
            return Adjoint(unclip(found.gradient), decayed or found.theta, found.state, {})

        return taken._replace(back=back)


def in_scope(name: str, scope: Scope) -> bool:
    """Whether a parameter belongs to the scope: all, a prefix of names, or a predicate."""
    if scope is None:
        return True
    return name.startswith(scope) if isinstance(scope, str) else bool(scope(name))


def make_plan(
    model: nn.Module,
    rule: "float | Rule | torch.optim.Optimizer",
    scope: Scope = None,
    lr: float | None = None,
    clip: float | None = None,
) -> Plan:
    """Who moves and how: the trainable parameters in scope (and in the optimizer, if given). A
    ``lr`` replaces the optimizer's."""
    named = {k: p for k, p in model.named_parameters() if p.requires_grad and in_scope(k, scope)}
    if isinstance(rule, torch.optim.Optimizer):
        held = {id(p) for group in rule.param_groups for p in group["params"]}
        named = {k: p for k, p in named.items() if id(p) in held}
        update = update_of(rule, named)
    else:
        one = rule if isinstance(rule, Rule) else Rule(float(rule))
        update = SGDUpdate(dict.fromkeys(named, one), dict.fromkeys(named))
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


@dataclass(frozen=True)
class Problem:
    """The losses of a batch as a function of the parameters: everything else is held fixed."""

    model: nn.Module
    loss_fn: Loss
    batch: Pair
    origin: Origin
    what: str = "batch"  # what a sentence about it calls it

    @contextmanager
    def losses(
        self, theta: Mapping[str, Tensor], seen: AbstractContextManager[Any] | None = None
    ) -> Iterator[Tensor]:
        """The losses at ``theta``, shape (n,), where the model stays until the block ends;
        parameters it does not name are constants, so that no graph is built below the lowest one
        that it does. The pass itself runs within ``seen``."""
        rest = {k: p.detach() for k, p in self.model.named_parameters() if k not in theta}
        with self.origin.at(self.model, {**rest, **theta}):
            with seen or nullcontext():
                outputs = call(self.model, self.batch[0])
                losses = example_losses(self.loss_fn, outputs, self.batch, self.what)
            yield losses


def gradient(problem: Problem, theta: Named) -> tuple[Tensor, Named]:
    """The mean loss and its gradient for each parameter of ``theta``; one that the loss does not
    use has no entry."""
    leaves = {k: t.detach().requires_grad_() for k, t in theta.items()}
    with problem.losses(leaves) as losses:
        mean = losses.mean()
        found = torch.autograd.grad(mean, list(leaves.values()), allow_unused=True)
    grads = {k: dense(g) for k, g in zip(leaves, found) if g is not None}
    check_finite(losses.detach(), grads, problem.what, lambda: find_culprit(problem, theta))
    return mean.detach(), grads


def dense(grad: Tensor) -> Tensor:
    """The gradient of an embedding may hold its rows alone (sparse=True): all of it."""
    return grad.to_dense() if grad.is_sparse else grad


def find_culprit(problem: Problem, theta: Named) -> int | None:
    """The first example whose loss has a slope that is not finite, or None.

    Looked for in the loss alone, then one example at a time: a sum over the batch would spread
    the bad number over all of them.
    """
    model, loss_fn, (inputs, targets) = problem.model, problem.loss_fn, problem.batch
    n = len(targets)
    with problem.origin.at(model, theta):
        outputs = call(model, inputs)
    if isinstance(outputs, Tensor) and outputs.shape[:1] == (n,):
        leaf = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss_fn(leaf, targets).sum(), leaf)
        bad = (~slope.reshape(n, -1).isfinite().all(1)).nonzero()
        if len(bad):
            return int(bad[0])
    leaves = {k: t.detach().requires_grad_() for k, t in theta.items()}
    for i in range(n):
        one = slice(i, i + 1)
        try:
            with problem.origin.at(model, leaves):
                loss = loss_fn(call(model, rows(inputs, one)), targets[one]).sum()
                slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        except (RuntimeError, ValueError):  # a layer that needs several examples
            return None
        if any(g is not None and not bool(dense(g).isfinite().all()) for g in slopes):
            return i
    return None


def virtual_parameters(
    model: nn.Module,
    loss_fn: Loss,
    batch: Pair,
    rule: "float | Rule | torch.optim.Optimizer",
    steps: int = 1,
    scope: Scope = None,
    clip_norm: float | None = None,
) -> Named:
    """The parameters after ``steps`` steps on the batch's mean loss, by name.

    ``rule`` is a learning rate, a `Rule` of SGD or an optimizer of torch (with its state).
    The model, its buffers, the optimizer and the random state stay as they are. Parameters that
    do not move (frozen, out of scope, unused) are not in the answer.
    """
    check_steps(steps)
    plan = make_plan(model, rule, scope, clip=clip_norm)
    device = next(iter(plan.params.values())).device
    batch = checked_pair(batch, device, "batch")
    with (
        kept_random_state(device),
        kept_values(model),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        problem = Problem(model, loss_fn, batch, Origin.of(model, device))
        theta, state = dict(plan.params), plan.update.state
        for _ in range(steps):
            _, grads = gradient(problem, theta)
            plan = plan.restrict(grads)
            theta, state, _ = plan.step(theta, grads, state)
    return theta

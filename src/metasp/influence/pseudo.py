"""The pseudo step: where one step of SGD would take the parameters, without taking it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence.checks import check_finite, check_pair, check_steps, example_losses
from metasp.influence.origin import Origin, kept_random_state, kept_values

Scope = None | str | Callable[[str], bool]
Loss = Callable[[Any, Tensor], Tensor]
Pair = tuple[Tensor, Tensor]
Named = dict[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """One step of ``torch.optim.SGD`` for one parameter."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.lr < float("inf"):
            raise UserError(f"lr is {self.lr}: give a finite learning rate that is not negative.")

    @classmethod
    def of(cls, group: torch.optim.Optimizer | Mapping[str, Any]) -> "Rule":
        """The rule of an SGD with one parameter group, or of one of its groups."""
        if isinstance(group, torch.optim.Optimizer):
            groups = sgd(group).param_groups
            rules = {cls.of(one) for one in groups}
            if len(rules) > 1:
                raise UserError(
                    "this optimizer has parameter groups with different settings: "
                    "pass the optimizer itself instead of one rule."
                )
            return rules.pop()
        if group.get("maximize"):
            raise UserError("the optimizer maximizes: use maximize=False for an influence.")
        return cls(
            float(group["lr"]),
            float(group["momentum"]),
            float(group["dampening"]),
            bool(group["nesterov"]),
            float(group["weight_decay"]),
        )

    def step(self, theta: Tensor, grad: Tensor, buffer: Tensor | None) -> tuple[Tensor, Any]:
        """The next value and momentum buffer, both new tensors of the shape of ``theta``."""
        if self.weight_decay:
            grad = grad.add(theta, alpha=self.weight_decay)
        if self.momentum:
            # torch's first step takes the gradient as it is, without dampening.
            buffer = (
                grad
                if buffer is None
                else (buffer * self.momentum).add_(grad, alpha=1.0 - self.dampening)
            )
            grad = grad.add(buffer, alpha=self.momentum) if self.nesterov else buffer
        return theta.sub(grad, alpha=self.lr), buffer

    def adjoint(self, p: Tensor, q: Tensor | None, first: bool) -> tuple[Tensor, Tensor | None]:
        """Back through one step: the adjoint of its gradient and the one of its momentum.

        ``p`` and ``q`` are the adjoints of the parameter and of the momentum after the step;
        ``first`` says that no momentum buffer existed before it.
        """
        if not self.momentum:
            return p * -self.lr, None
        keep = 1.0 if first else 1.0 - self.dampening
        inner = p * (-self.lr * (self.momentum if self.nesterov else 1.0))
        if q is not None:
            inner = inner + q
        s = inner * keep
        if self.nesterov:
            s = s.sub(p, alpha=self.lr)
        return s, inner * self.momentum


def sgd(optimizer: torch.optim.Optimizer) -> torch.optim.SGD:
    """The optimizer, if its step is one we can differentiate."""
    if not isinstance(optimizer, torch.optim.SGD):
        raise UserError(
            f"the pseudo step follows torch.optim.SGD, not {type(optimizer).__name__}: "
            "pass an SGD, or pass lr alone."
        )
    return optimizer


@dataclass(frozen=True)
class Plan:
    """The parameters that the pseudo step moves, how, and from which momentum."""

    params: Named
    rules: dict[str, Rule]
    momenta: dict[str, Tensor | None]

    def restrict(self, names: Iterable[str]) -> "Plan":
        """The same plan for some of the names."""
        kept = set(names)
        return Plan(
            {k: v for k, v in self.params.items() if k in kept},
            {k: v for k, v in self.rules.items() if k in kept},
            {k: v for k, v in self.momenta.items() if k in kept},
        )

    def step(self, theta: Named, grads: Named, momenta: dict[str, Any]) -> tuple[Named, Any]:
        """One step from ``theta``: the new parameters and momenta."""
        moved: Named = {}
        kept: dict[str, Tensor | None] = {}
        for name, rule in self.rules.items():
            moved[name], kept[name] = rule.step(theta[name], grads[name], momenta[name])
        return moved, kept


def in_scope(name: str, scope: Scope) -> bool:
    """Whether a parameter belongs to the scope: all, a prefix of names, or a predicate."""
    if scope is None:
        return True
    return name.startswith(scope) if isinstance(scope, str) else bool(scope(name))


def make_plan(
    model: nn.Module, rule: "float | Rule | torch.optim.Optimizer", scope: Scope = None
) -> Plan:
    """Who moves and how: the trainable parameters in scope (and in the optimizer, if given)."""
    named = {k: p for k, p in model.named_parameters() if p.requires_grad and in_scope(k, scope)}
    momenta: dict[str, Tensor | None]
    if isinstance(rule, torch.optim.Optimizer):
        groups = [(p, Rule.of(group)) for group in sgd(rule).param_groups for p in group["params"]]
        found = {id(p): one for p, one in groups}
        named = {k: p for k, p in named.items() if id(p) in found}
        rules = {k: found[id(p)] for k, p in named.items()}
        state = rule.state
        momenta = {k: state.get(p, {}).get("momentum_buffer") for k, p in named.items()}
    else:
        one = rule if isinstance(rule, Rule) else Rule(float(rule))
        rules = dict.fromkeys(named, one)
        momenta = dict.fromkeys(named)
    if not named:
        raise UserError(
            "no trainable parameter is in scope: check the scope's name, requires_grad, "
            "and that the optimizer holds this model's parameters."
        )
    return Plan({k: p.detach() for k, p in named.items()}, rules, momenta)


def with_lr(plan: Plan, lr: float | None) -> Plan:
    """The plan with another step size everywhere."""
    if lr is None:
        return plan
    return replace(plan, rules={k: replace(r, lr=float(lr)) for k, r in plan.rules.items()})


@dataclass(frozen=True)
class Problem:
    """The losses of a batch as a function of the parameters: everything else is held fixed."""

    model: nn.Module
    loss_fn: Loss
    batch: Pair
    origin: Origin
    what: str = "batch"  # what a sentence about it calls it

    @contextmanager
    def losses(self, theta: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """The losses at ``theta``, shape (n,), where the model stays until the block ends;
        parameters it does not name are constants, so that no graph is built below the lowest one
        that it does."""
        rest = {k: p.detach() for k, p in self.model.named_parameters() if k not in theta}
        with self.origin.at(self.model, {**rest, **theta}):
            outputs = self.model(self.batch[0])
            yield example_losses(self.loss_fn, outputs, self.batch, self.what)


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
    n = len(inputs)
    with problem.origin.at(model, theta):
        outputs = model(inputs)
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
                loss = loss_fn(model(inputs[one]), targets[one]).sum()
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
) -> Named:
    """The parameters after ``steps`` SGD steps on the batch's mean loss, by name.

    ``rule`` is a learning rate, a `Rule` or a ``torch.optim.SGD`` (with its momentum buffers).
    The model, its buffers, the optimizer and the random state stay as they are. Parameters that
    do not move (frozen, out of scope, unused) are not in the answer.
    """
    check_steps(steps)
    plan = make_plan(model, rule, scope)
    device = check_pair(batch, next(iter(plan.params.values())).device, "batch")
    with (
        kept_random_state(device),
        kept_values(model),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        problem = Problem(model, loss_fn, batch, Origin.of(model, device))
        theta, momenta = dict(plan.params), plan.momenta
        for _ in range(steps):
            _, grads = gradient(problem, theta)
            plan = plan.restrict(grads)
            moved, momenta = plan.step(theta, grads, momenta)
            theta = moved
    return theta

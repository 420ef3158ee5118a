"""Example influence on Stability and Plasticity: exact, and leaving the model untouched."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence import checks
from metasp.influence.checks import Disagree
from metasp.influence.fallback import double_backward, follows_the_loss
from metasp.influence.functional import (
    Loss,
    LossOf,
    Named,
    Outputs,
    Pair,
    Problem,
    copies,
    gradient,
    untouched,
)
from metasp.influence.jvp_rules import Unsupported
from metasp.influence.pseudo_step import Plan, Scope, checked_plan
from metasp.influence.second_order import Layout
from metasp.influence.tape import Recorded, products_from_tape, record_in_scope
from metasp.influence.updates import Adjoint, State


@dataclass(frozen=True)
class Fused:
    """``fused = gamma * stability + (1 - gamma) * plasticity``, shape (n,)."""

    gamma: float
    fused: Tensor


def fuse(stability: Tensor, plasticity: Tensor, gamma: float | None = None) -> Fused:
    """Return the point of the segment between two influences that is nearest to zero; shape (n,).

    ``gamma`` fixes the point on the segment instead (1 is only stability, 0 only plasticity).
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
    """Raise unless it is a weight between 0 and 1, or None."""
    if gamma is not None and not 0.0 <= gamma <= 1.0:
        raise UserError(f"gamma is {gamma}: give a number between 0 and 1, or None to compute it.")


def nearest_gamma(stability: Tensor, plasticity: Tensor) -> float:
    """Return the gamma in [0, 1] that minimises
    ``|gamma * stability + (1 - gamma) * plasticity|``."""
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


@dataclass(frozen=True)
class Influence:
    """Influence of each example of a batch; vectors of shape (n,), negative is helpful.

    ``path`` says which exact way computed it: "tape", "double-backward" or "one-by-one".
    ``old_loss`` and ``new_loss`` are the mean losses of the goals after the pseudo update.
    """

    stability: Tensor
    plasticity: Tensor
    path: str
    old_loss: float
    new_loss: float
    fixed_gamma: float | None = None

    @property
    def fused(self) -> Tensor:
        """Both influences in one, (n,): the Pareto solution, or as the fixed gamma weighs them."""
        return self._fusion.fused

    @property
    def gamma(self) -> float:
        """The weight of stability in the fused influence."""
        return self._fusion.gamma

    @cached_property
    def _fusion(self) -> Fused:  # not before it is asked for: some rules fuse otherwise
        return fuse(self.stability, self.plasticity, self.fixed_gamma)


def sp_influence(
    model: nn.Module,
    loss_fn: LossOf[Outputs],
    batch: Pair,
    old: Pair,
    new: Pair,
    lr: float | None = None,
    steps: int = 1,
    optimizer: torch.optim.Optimizer | None = None,
    scope: Scope = None,
    clip_norm: float | None = None,
    gamma: float | None = None,
    recorded: Recorded | None = None,
) -> Influence:
    """Compute how each example of ``batch`` moves the loss on ``old`` and ``new`` data, and both
    fused.

    ``I_i`` is the derivative of the goal's mean loss after ``steps`` pseudo updates on the batch
    for the weight of example i (weights are 1/n + E_i, E is not divided by n). ``loss_fn(outputs,
    targets)`` gives one loss per example. Each of ``batch``, ``old`` and ``new`` is a pair (inputs,
    targets): inputs may be a tensor, a tuple of tensors for ``model(*inputs)``, or a dictionary of
    them for ``model(**inputs)``; of outputs that have ``logits`` the loss is given these. Options:

    - ``optimizer``: one of torch's optimizers that act on each number by itself (SGD, Adam, AdamW,
      NAdam, RMSprop, Adagrad ...), whose next step, with its state, is the pseudo step; ``lr``, if
      given too, replaces its learning rate;
    - ``clip_norm``: the norm to which gradients are clipped before each step, as by
      ``clip_grad_norm_``;
    - ``scope``: a prefix of parameter names or a predicate on them; only those parameters move;
    - ``gamma``: fix the weight of stability instead of fusing;
    - ``recorded``: an earlier `record` of this batch, to share its forward pass.

    The model, its buffers, gradients and mode, and the random state stay as they are. The result is
    right or refused: the products behind it are compared with the gradient of the mean loss.
    """
    check_gamma(gamma)
    goals = {"old goal": old, "new goal": new}
    pseudo = _PseudoSteps(lr, steps, optimizer, scope, clip_norm)
    result = _influence(model, loss_fn, batch, goals, pseudo, recorded)
    stability, plasticity = result.values
    old_loss, new_loss = result.goal_losses
    return Influence(stability, plasticity, result.path, old_loss, new_loss, gamma)


def example_influence(
    model: nn.Module,
    loss_fn: LossOf[Outputs],
    batch: Pair,
    goal: Pair,
    lr: float | None = None,
    steps: int = 1,
    optimizer: torch.optim.Optimizer | None = None,
    scope: Scope = None,
    clip_norm: float | None = None,
    recorded: Recorded | None = None,
) -> Tensor:
    """Compute the influence of each example of ``batch`` on the mean loss of one ``goal``, shape
    (n,).

    See `sp_influence` for scale, sign and options.
    """
    pseudo = _PseudoSteps(lr, steps, optimizer, scope, clip_norm)
    return _influence(model, loss_fn, batch, {"goal": goal}, pseudo, recorded).values[0]


class _PseudoSteps(NamedTuple):
    """The steps that the influence asks about, as the user gave them."""

    lr: float | None
    steps: int
    optimizer: torch.optim.Optimizer | None
    scope: Scope
    clip_norm: float | None


@dataclass(frozen=True)
class _Result:
    """Influences (goals, n), the way that computed the first step's part, and the goals' losses."""

    values: Tensor  # (goals, n)
    path: str
    goal_losses: list[float]


def _influence(
    model: nn.Module,
    loss_fn: Loss,
    batch: Pair,
    goals: Mapping[str, Pair],
    pseudo: _PseudoSteps,
    recorded: Recorded | None,
) -> _Result:
    """Compute the influence on each goal, after checking everything the user gave."""
    checks.check_steps(pseudo.steps)
    plan, device = checked_plan(model, pseudo.optimizer, pseudo.scope, pseudo.lr, pseudo.clip_norm)
    batch = checks.checked_pair(batch, device, "batch")
    goals = {what: checks.checked_pair(pair, device, what) for what, pair in goals.items()}
    if recorded is not None and not isinstance(recorded, Recorded):
        raise UserError(
            "recorded must be what `record(model, loss_fn, batch)` returned, not the function."
        )
    if recorded is not None:
        recorded.check(batch)
    exact = torch.autocast(device.type, enabled=False)
    with untouched(model, device), exact, checks.translated():
        if recorded is None or recorded.tape.autocast:
            origin = None if recorded is None else recorded.origin
            plan = replace(plan, params=copies(plan.params))  # a pass may write into them
            recorded = record_in_scope(model, loss_fn, batch, plan, origin)
        recorded.tape.check(pseudo.steps)
        problem = Problem(model, loss_fn, batch, recorded.origin)
        try:
            return _by_adjoint(problem, goals, recorded, plan, pseudo.steps)
        except Disagree as error:
            raise UserError(checks.DISAGREE) from error


def _by_adjoint(
    problem: Problem, goals: Mapping[str, Pair], recorded: Recorded, plan: Plan, steps: int
) -> _Result:
    """Go forward along the pseudo steps, then back with the adjoint recursion; no graph is kept."""
    grads = recorded.gradient(recorded.losses.mean(), plan.params)
    checks.check_finite(recorded.losses.detach(), grads, "batch")
    if not grads:
        raise UserError(
            "the batch's loss uses no parameter in scope: check the scope's name or the model."
        )
    plan = plan.restrict(grads)
    taken = plan.step(plan.params, grads, plan.update.state)
    trail = [_At(plan.params, grads, recorded.losses.detach().abs().mean(), taken.back)]
    theta = _laid_out(taken.theta, recorded)
    for _ in range(1, steps):
        loss, grads = gradient(problem, theta)
        if lost := plan.params.keys() - grads.keys():
            raise UserError(
                f"{min(lost)} has no gradient after a pseudo step, because the model then takes "
                "another path: use steps=1."
            )
        taken = plan.step(theta, grads, taken.state)
        trail.append(_At(theta, grads, loss, taken.back))
        theta = _laid_out(taken.theta, recorded)

    # p = the gradient of each goal's mean loss at the parameters after the last step.
    ends = [gradient(replace(problem, batch=g, what=what), theta) for what, g in goals.items()]
    losses = [float(loss) for loss, _ in ends]
    p = {k: torch.stack([v.get(k, torch.zeros_like(t)) for _, v in ends]) for k, t in theta.items()}
    del ends, theta, taken

    q: State = {}
    total: Tensor | None = None
    while len(trail) > 1:
        at = trail.pop()
        s, p, q = at.back(p, q, True)
        product, curved = _curvature(problem, at, s)
        total = product if total is None else total + product
        p = {k: t + curved[k] for k, t in p.items()}
    s = trail[0].back(p, q, False).gradient
    product, path = _first_product(problem, recorded, trail[0], s)
    return _Result(product if total is None else total + product, path, losses)


class _At(NamedTuple):
    """Where a pseudo step began, and the way back through it."""

    theta: Named
    grads: Named
    loss: Tensor
    back: Callable[[Named, State, bool], Adjoint]

    def check(self, product: Tensor, s: Named, curved: Named | None = None) -> None:
        """Raise `Disagree` unless J s fits the gradient, and H s is symmetric."""
        checks.check_slopes(product, s, self.grads, self.loss)
        if curved is not None and len(product) == 2:
            checks.check_symmetric(curved, s)


def _laid_out(theta: Named, recorded: Recorded) -> Named:
    """Return parameters that make the passes through the model faster, where it does not look at
    how images lie in memory: convolutions follow their weights; see `Layout`."""
    free = recorded.tape.usable() and recorded.tape.any_layout
    layout = Layout()
    return {k: layout.of(t) for k, t in theta.items()} if free else theta


def _curvature(problem: Problem, at: _At, s: Named) -> tuple[Tensor, Named]:
    """Return J s and H s of the batch where a step began."""
    try:
        product, curved = products_from_tape(problem, at.theta, s)
        at.check(product, s, curved)
        return product, curved
    except (Unsupported, Disagree):
        pass
    if not follows_the_loss(problem, at.theta, at.grads):
        raise Disagree
    try:
        product, curved = double_backward(problem, at.theta, s)
        at.check(product, s, curved)
        return product, curved
    except (Unsupported, Disagree) as error:
        lost = "a layer's gradient cannot be differentiated"
        reason = str(error).split("\n")[0].rstrip(".") or lost
        raise UserError(
            "more than one pseudo step needs second derivatives, and this model has none "
            f"({reason}): use steps=1."
        ) from error


def _first_product(problem: Problem, recorded: Recorded, at: _At, s: Named) -> tuple[Tensor, str]:
    """Return J s at the parameters themselves, by the fastest way that agrees with the gradient,
    and its name."""
    ways: dict[str, Callable[[], Tensor]] = {
        "tape": lambda: recorded.products(s),
        "double-backward": lambda: double_backward(problem, at.theta, s)[0],
        "one-by-one": lambda: recorded.products_one_by_one(s),
    }
    for path, products in ways.items():
        if path == "double-backward" and not follows_the_loss(problem, at.theta, at.grads):
            break
        try:
            product = products()
            at.check(product, s)
            return product, path
        except (Unsupported, Disagree):
            pass
    raise Disagree

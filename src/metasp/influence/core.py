"""Example influence on Stability and Plasticity: exact, and leaving the model untouched."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence.checks import (
    check_finite,
    check_steps,
    checked_pair,
    enough_values,
)
from metasp.influence.curved import from_tape
from metasp.influence.fuse import Fused, check_gamma, fuse
from metasp.influence.layout import Layout
from metasp.influence.optimizers import State
from metasp.influence.origin import kept_random_state, kept_values
from metasp.influence.parallel import Alone, Part, Sharing, refuse_synchronised
from metasp.influence.paths import (
    double_backward,
    forward_mode,
    forward_over_reverse,
    one_by_one,
)
from metasp.influence.pseudo import (
    Loss,
    LossOf,
    Named,
    Outputs,
    Pair,
    Plan,
    Problem,
    Scope,
    dense,
    find_culprit,
    gradient,
    make_plan,
)
from metasp.influence.recorded import Recorded, record_in_scope
from metasp.influence.rules import Unsupported

LOSS = ""  # beside the gradients, whose names are those of parameters
BATCHNORM_NEEDS_TWO = (
    "needs two examples or more in the batch and in each goal: give more of them, larger pictures, "
    "or a network without it."
)


@dataclass(frozen=True)
class Influence:
    """Influence of each example of a batch; vectors of shape (n,), negative is helpful.

    ``path`` says which exact way computed it: "tape", "dot", "forward-mode", "double-backward" or
    "one-by-one".
    ``old_loss`` and ``new_loss`` are the mean losses of the goals after the pseudo update.
    With ``ranks`` the vectors are those of the whole batch, and ``own`` is this rank's part.
    """

    stability: Tensor
    plasticity: Tensor
    path: str
    old_loss: float
    new_loss: float
    own: "slice[int | None, int | None, int | None]" = field(default_factory=lambda: slice(None))
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


class Options(TypedDict, total=False):
    """The optional settings of an influence; see `sp_influence`."""

    optimizer: torch.optim.Optimizer | None
    scope: Scope
    clip_norm: float | None
    gamma: float | None
    recorded: Recorded | None
    ranks: Sharing | None


def sp_influence(
    model: nn.Module,
    loss_fn: LossOf[Outputs],
    batch: Pair,
    old: Pair,
    new: Pair,
    lr: float | None = None,
    steps: int = 1,
    **options: Unpack[Options],
) -> Influence:
    """How each example of ``batch`` moves the loss on ``old`` and ``new`` data, and both fused.

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
    - ``recorded``: an earlier `record` of this batch, to share its forward pass;
    - ``ranks``: a `Ranks` over which batch and goals are split; each rank passes its shards and
      gets the influence of the whole batch.

    The model, its buffers, gradients and mode, and the random state stay as they are.
    """
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise TypeError(f"sp_influence() got an unexpected keyword argument {min(unknown)!r}")
    check_gamma(options.get("gamma"))
    if options.get("ranks") is not None:
        refuse_synchronised(model)
    goals = {"old goal": old, "new goal": new}
    found = _influence(model, loss_fn, (batch, goals), (lr, steps), options)
    (stability, plasticity), own = (options.get("ranks") or Alone()).gather(found.values)
    old_loss, new_loss = found.goal_losses
    gamma = options.get("gamma")
    return Influence(stability, plasticity, found.path, old_loss, new_loss, own, gamma)


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
    """The influence of each example of ``batch`` on the mean loss of one ``goal``, shape (n,).

    See `sp_influence` for scale, sign and options.
    """
    options: Options = {"optimizer": optimizer, "scope": scope, "clip_norm": clip_norm}
    options["recorded"] = recorded
    found = _influence(model, loss_fn, (batch, {"goal": goal}), (lr, steps), options)
    return found.values[0]


@dataclass(frozen=True)
class _Found:
    values: Tensor  # (goals, n)
    path: str
    goal_losses: list[float]


def _influence(
    model: nn.Module,
    loss_fn: Loss,
    data: tuple[Pair, Mapping[str, Pair]],
    step: tuple[float | None, int],
    options: Options,
) -> _Found:
    """The influence on each goal, after checking everything the user gave."""
    batch, goals = data
    lr, steps = step
    optimizer, recorded = options.get("optimizer"), options.get("recorded")
    if lr is None and optimizer is None:
        raise UserError("the pseudo step has no size: give lr, or an optimizer.")
    check_steps(steps)
    rule: Any = lr if optimizer is None else optimizer
    plan = make_plan(model, rule, options.get("scope"), lr, options.get("clip_norm"))
    device = next(iter(plan.params.values())).device
    batch = checked_pair(batch, device, "batch")
    goals = {what: checked_pair(pair, device, what) for what, pair in goals.items()}
    if recorded is not None and not isinstance(recorded, Recorded):
        raise UserError(
            "recorded must be what `record(model, loss_fn, batch)` returned, not the function."
        )
    if recorded is not None:
        recorded.check(batch)
    with (
        kept_random_state(device),
        kept_values(model),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        if recorded is None:
            with enough_values(BATCHNORM_NEEDS_TWO):
                recorded = record_in_scope(model, loss_fn, batch, plan)
        problem = Problem(model, loss_fn, batch, recorded.origin)
        ranks = options.get("ranks") or Alone()
        return _by_adjoint(problem, recorded, plan, (goals, ranks), steps)


def _batch_gradient(problem: Problem, recorded: Recorded, plan: Plan) -> Named:
    """The gradient of the batch's mean loss on the kept graph. Where examples are apart, the
    gradients where parameters enter the rows are left in ``recorded.deltas``."""
    names = list(plan.params)
    edges = recorded.tape.edges() if recorded.tape.separable() else {}
    targets: list[Any] = [recorded.params[k] for k in names]
    try:
        found = torch.autograd.grad(
            recorded.losses.mean(), [*targets, *edges.values()], retain_graph=True,
            allow_unused=True,
        )  # fmt: skip
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise UserError(
            "the graph of this recorded pass is used up: measure its influence before backward()."
        ) from error
    grads = {k: dense(g) for k, g in zip(names, found) if g is not None}
    at_rows = zip(edges, found[len(names) :])
    recorded.deltas.update({i: g for i, g in at_rows if g is not None})
    check_finite(
        recorded.losses.detach(), grads, "batch", lambda: find_culprit(problem, plan.params)
    )
    return grads


def _by_adjoint(
    problem: Problem,
    recorded: Recorded,
    plan: Plan,
    shared: tuple[Mapping[str, Pair], Sharing],
    steps: int,
) -> _Found:
    """Forward along the pseudo steps, then back with the adjoint recursion; no graph is kept."""
    goals, ranks = shared
    n = len(recorded.losses)

    def first() -> list[Part]:
        return [(_batch_gradient(problem, recorded, plan), n)]

    (grads,) = ranks.means(first, [plan.params])
    if not grads:
        raise UserError(
            "the batch's loss uses no parameter in scope: check the scope's name or the model."
        )
    plan = plan.restrict(grads)
    taken = plan.step(plan.params, grads, plan.update.state)
    trail, theta = [(plan.params, taken.back)], _laid_out(taken.theta, recorded)
    for _ in range(1, steps):
        (grads,) = ranks.means(
            partial(_gradients, problem, {"batch": problem.batch}, theta), [theta]
        )
        if lost := plan.params.keys() - grads.keys():
            raise UserError(
                f"{min(lost)} has no gradient after a pseudo step, because the model then takes "
                "another path: use steps=1."
            )
        taken = plan.step(theta, grads, taken.state)
        trail.append((theta, taken.back))
        theta = _laid_out(taken.theta, recorded)

    like = {**theta, LOSS: recorded.losses.new_zeros(())}
    ps = ranks.means(partial(_gradients, problem, goals, theta), [like] * len(goals))
    losses = [float(v.pop(LOSS)) for v in ps]
    p = {k: torch.stack([v.get(k, torch.zeros_like(t)) for v in ps]) for k, t in theta.items()}
    del ps, theta, taken

    q: State | None = None
    total: Tensor | None = None
    for _ in range(1, steps):
        theta, back = trail.pop()
        s, direct, q, decay = back(p, q, True)
        product, curved = _curvature(problem, theta, s)
        (curved,) = ranks.means(partial(_whole, curved, n), [curved])
        total = product if total is None else total + product
        p = {k: t + curved[k] + s[k] * decay.get(k, 0.0) for k, t in direct.items()}
    s = trail.pop()[1](p, q, False).gradient
    product, path = _first_product(problem, recorded, plan, s)
    return _Found(product if total is None else total + product, path, losses)


def _laid_out(theta: Named, recorded: Recorded) -> Named:
    """Parameters that make the passes through the model faster, where it does not look at how
    images lie in memory: convolutions follow their weights; see `Layout`."""
    free = recorded.tape.usable() and recorded.tape.any_layout
    return {k: Layout().of(t) for k, t in theta.items()} if free else theta


def _gradients(problem: Problem, pairs: Mapping[str, Pair], theta: Named) -> list[Part]:
    """The gradient of each pair's mean loss at ``theta``, with that loss under a name of its own,
    and the number of examples."""
    parts = []
    for what, pair in pairs.items():
        with enough_values(BATCHNORM_NEEDS_TWO):  # here, so that other ranks hear of it
            loss, grads = gradient(replace(problem, batch=pair, what=what), theta)
        parts.append(({**grads, LOSS: loss}, len(pair[1])))
    return parts


def _whole(values: Named, count: int) -> list[Part]:
    """One part that is there already."""
    return [(values, count)]


def _curvature(problem: Problem, theta: Named, s: Named) -> tuple[Tensor, Named]:
    """J s and H s of the batch at ``theta``."""
    for way in (from_tape, forward_over_reverse):
        try:
            return way(problem, theta, s)
        except Unsupported:
            pass
    try:
        return double_backward(problem, theta, s)
    except Unsupported as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UserError(
            "more than one pseudo step needs second derivatives, and this model has none "
            f"({reason}): use steps=1."
        ) from error


def _first_product(
    problem: Problem, recorded: Recorded, plan: Plan, s: Named
) -> tuple[Tensor, str]:
    """J s at the parameters themselves, from the recorded pass where that is possible."""
    tape = recorded.tape
    if tape.usable():
        shape = (next(iter(s.values())).shape[0], len(recorded.losses))
        seeds = tape.seeds({id(recorded.params[k]): t for k, t in s.items()})
        try:
            with torch.no_grad():
                if tape.separable():
                    return tape.dot(seeds, recorded.deltas, shape), "dot"
                return tape.push(seeds, shape), "tape"
        except Unsupported:
            pass
    try:
        return forward_mode(problem, plan.params, s), "forward-mode"
    except Unsupported:
        pass
    try:
        return double_backward(problem, plan.params, s)[0], "double-backward"
    except Unsupported:
        return one_by_one(recorded.losses, recorded.params, s), "one-by-one"

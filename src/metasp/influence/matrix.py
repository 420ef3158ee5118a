"""The influence of every example of a batch on every example of a goal, to first order.

The gradients of two examples in a linear layer are outer products, so that theirs is the product of
two small ones: that of what enters the layer, and that of the gradients at its outputs. No gradient
of a single example is formed where all parameters are in such layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence.checks import (
    DISAGREE,
    Disagree,
    check_functional,
    check_slopes,
    check_tape,
    check_traps,
    checked_pair,
)
from metasp.influence.fallback import one_by_one
from metasp.influence.functional import (
    LossOf,
    Named,
    Outputs,
    Pair,
    dense,
    kept_random_state,
    kept_values,
)
from metasp.influence.jvp_rules import Unsupported
from metasp.influence.pseudo_step import make_plan
from metasp.influence.tape import Recorded, record_in_scope

CHUNK = 64  # goals whose gradients are in memory at one time, where they must be
ELEMENTWISE = frozenset((
    F.relu, torch.relu, Tensor.relu, F.gelu, F.silu, F.leaky_relu, F.elu, F.selu, F.softplus,
    F.hardswish, F.mish, F.relu6, F.hardtanh, torch.tanh, Tensor.tanh, torch.sigmoid,
    Tensor.sigmoid, F.dropout, F.cross_entropy,
))  # fmt: skip
"""Calls after which each row still belongs to one example."""


def influence_matrix(
    model: nn.Module, loss_fn: LossOf[Outputs], batch: Pair, goal: Pair, lr: float = 1.0
) -> Tensor:
    """Compute -lr <gradient of goal j's loss, gradient of example i's loss>, shape (goals,
    examples): what `example_influence` tends to for small steps, on each goal alone; negative is
    helpful. The model stays as it is."""
    check_functional(model)
    plan = make_plan(model, lr).copied()
    check_traps(model, plan.params)
    device = next(iter(plan.params.values())).device
    batch, goal = checked_pair(batch, device, "batch"), checked_pair(goal, device, "goal")
    with kept_random_state(device), kept_values(model), torch.enable_grad():
        goals, examples = (record_in_scope(model, loss_fn, pair, plan) for pair in (goal, batch))
        for recorded in (goals, examples):
            check_tape(recorded.tape.trap)
        products = _by_layers(goals, examples)
        if products is None:
            products = _by_gradients(goals, examples, list(plan.params))
    return products.mul_(-lr)


def _by_layers(goals: Recorded, examples: Recorded) -> Tensor | None:
    """Return the inner products of gradients, where each parameter is in one linear layer of
    rows."""
    layers = [_layers(recorded) for recorded in (goals, examples)]
    if layers[0] is None or layers[1] is None or len(layers[0]) != len(layers[1]):
        return None
    total: Tensor | None = None
    for (x, delta, params), (z, other, same) in zip(*layers):
        if params != same:
            return None
        part = delta @ other.T
        part *= (x @ z.T).add_(len(params) - 1)  # a bias is the weight of an input of one
        total = part if total is None else total.add_(part)
    return total


def _layers(recorded: Recorded) -> list[tuple[Tensor, Tensor, tuple[int, ...]]] | None:
    """Return of each linear layer what enters it, the gradient at its outputs, and its parameters;
    None where the network is not made of linear layers and functions of single numbers alone."""
    tape = recorded.tape
    if not tape.usable():
        return None
    layers = [entry for entry in tape.entries if entry.how.fan is not None]
    others = [entry for entry in tape.entries if entry.how.fan is None]
    plain = all(
        entry.func in ELEMENTWISE and len(entry.inputs) == 1 and entry.inputs[0] not in tape.leaves
        for entry in others
    )
    slots = [tuple(s for s in entry.inputs if s in tape.leaves) for entry in layers]
    used = [slot for group in slots for slot in group]
    if not plain or not layers or len(set(used)) != len(used):
        return None
    n = len(recorded.losses)
    fans = [entry.how.fan for entry in layers if entry.how.fan is not None]
    weighted = all(entry.inputs[1] in tape.leaves for entry in layers)
    if not weighted or any(entry.inputs[0] in tape.leaves for entry in layers):
        return None
    if any(len(fan) != n for fan in fans):
        return None
    ends = [entry.ends[0] for entry in layers]
    deltas = torch.autograd.grad(recorded.losses.sum(), ends, retain_graph=True)
    params = [tuple(id(tape.leaves[slot]) for slot in group) for group in slots]
    return list(zip(fans, deltas, params))


def _by_gradients(goals: Recorded, examples: Recorded, names: list[str]) -> Tensor:
    """Return the same for any model: the gradient of each goal, along which the losses of the
    examples are pushed."""
    mean = _gradient(examples, examples.losses.mean(), names)
    parts = []
    for some in torch.split(goals.losses, CHUNK):
        rows = [_gradient(goals, loss, names) for loss in some]
        along = {k: torch.stack([row[k] for row in rows]) for k in names}
        product = _slopes(examples, along)
        try:
            check_slopes(product, along, mean, examples.losses.detach().abs().mean())
        except Disagree as error:
            raise UserError(DISAGREE) from error
        parts.append(product)
    return torch.cat(parts)


def _gradient(recorded: Recorded, loss: Tensor, names: list[str]) -> Named:
    """Return the gradient of a loss for each parameter."""
    leaves = [recorded.params[name] for name in names]
    grads = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    return {
        k: torch.zeros_like(p) if g is None else dense(g) for k, p, g in zip(names, leaves, grads)
    }


def _slopes(recorded: Recorded, along: Named) -> Tensor:
    """Return the slope of each loss along each direction, by the tape or one example at a time."""
    count, tape = next(iter(along.values())).shape[0], recorded.tape
    if tape.usable():
        seeds = tape.seeds({id(recorded.params[k]): t for k, t in along.items()})
        try:
            with torch.no_grad():
                return tape.push(seeds, (count, len(recorded.losses)))
        except Unsupported:
            pass
    return one_by_one(recorded.losses, recorded.params, along)

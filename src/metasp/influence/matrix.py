"""The influence of every example of a batch on every example of a goal, to first order.

The gradients of two examples in a linear layer are outer products, so that theirs is the product of
two small ones: that of what enters the layer, and that of the gradients at its outputs. No gradient
of a single example is formed where all parameters are in such layers.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence.checks import DISAGREE, Disagree, check_slopes, checked_pair
from metasp.influence.functional import LossOf, Named, Outputs, Pair, copies, untouched
from metasp.influence.jvp_rules import Unsupported
from metasp.influence.pseudo_step import checked_plan
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
    plan, device = checked_plan(model, lr)
    plan = replace(plan, params=copies(plan.params))  # a pass may write into them
    batch, goal = checked_pair(batch, device, "batch"), checked_pair(goal, device, "goal")
    with untouched(model, device):
        goals, examples = (record_in_scope(model, loss_fn, pair, plan) for pair in (goal, batch))
        for recorded in (goals, examples):
            recorded.tape.check(steps=1)
        products = _by_layers(goals, examples)
        if products is None:
            products = _by_gradients(goals, examples, list(plan.params))
    return products.mul_(-lr)


def _by_layers(goals: Recorded, examples: Recorded) -> Tensor | None:
    """Return the inner products of gradients, where each parameter is in one linear layer of
    rows."""
    ahead, layers = _layers(goals), _layers(examples)
    if not ahead or [layer.params for layer in ahead] != [layer.params for layer in layers]:
        return None
    total = torch.zeros(len(goals.losses), len(examples.losses)).to(goals.losses)
    for goal, layer in zip(ahead, layers):
        product = goal.delta @ layer.delta.T
        biases = len(layer.params) - 1  # a bias is the weight of an input of one
        total += product.mul_((goal.entering @ layer.entering.T).add_(biases))
    return total


class _Layer(NamedTuple):
    """A linear layer in a pass: what enters it (n, d), the gradient at its outputs (n, k), and the
    ids of its parameters, a weight and perhaps a bias."""

    entering: Tensor
    delta: Tensor
    params: tuple[int, ...]


def _layers(recorded: Recorded) -> list[_Layer]:
    """Return the linear layers of a pass; none where the network is not made of linear layers,
    each used once, and functions of single numbers alone."""
    tape, n = recorded.tape, len(recorded.losses)
    layers, ends, used = [], [], []
    for node in tape.entries:
        params = [slot for slot in node.inputs if slot in tape.leaves]
        entering = node.linear.fan
        if entering is not None and len(entering) == n and params == list(node.inputs[1:]):
            ids = tuple(id(leaf) for slot, leaf in tape.leaves.items() if slot in params)
            layers.append((entering, ids))
            ends.append(node.ends[0])
            used += params
        elif node.func not in ELEMENTWISE or len(node.inputs) != 1 or params:
            return []
    if not tape.usable() or not layers or len(set(used)) != len(used):
        return []
    deltas = torch.autograd.grad(recorded.losses.sum(), ends, retain_graph=True)
    return [_Layer(entering, delta, ids) for (entering, ids), delta in zip(layers, deltas)]


def _by_gradients(goals: Recorded, examples: Recorded, names: list[str]) -> Tensor:
    """Return the same for any model: the gradient of each goal, along which the losses of the
    examples are pushed."""
    mean, loss = _gradient(examples, examples.losses.mean(), names), examples.losses.detach()
    products = []
    for chunk in torch.split(goals.losses, CHUNK):
        rows = [_gradient(goals, goal, names) for goal in chunk]
        along = {k: torch.stack([row[k] for row in rows]) for k in names}
        try:
            product = examples.products(along)
        except Unsupported:
            product = examples.products_one_by_one(along)
        try:
            check_slopes(product, along, mean, loss.abs().mean())
        except Disagree as error:
            raise UserError(DISAGREE) from error
        products.append(product)
    return torch.cat(products)


def _gradient(recorded: Recorded, loss: Tensor, names: list[str]) -> Named:
    """Return the gradient of a loss for each parameter, zero for those that it does not use."""
    grads = recorded.gradient(loss, names)
    return {k: grads[k] if k in grads else torch.zeros_like(recorded.params[k]) for k in names}

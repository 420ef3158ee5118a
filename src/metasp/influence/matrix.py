"""The influence of every example of a batch on every example of a goal, to first order.

The gradients of two examples in a linear layer are outer products, so that theirs is the product of
two small ones: that of what enters the layer, and that of the gradients at its outputs. No gradient
of a single example is formed where all parameters are in such layers.
"""

import torch
from torch import Tensor, nn

from metasp.influence.checks import checked_pair
from metasp.influence.origin import kept_random_state, kept_values
from metasp.influence.paths import one_by_one
from metasp.influence.pseudo import LossOf, Named, Outputs, Pair, dense, make_plan
from metasp.influence.recorded import Recorded, record_in_scope
from metasp.influence.rules import Unsupported

CHUNK = 64  # goals whose gradients are held at one time, where they must be


def influence_matrix(
    model: nn.Module, loss_fn: LossOf[Outputs], batch: Pair, goal: Pair, lr: float = 1.0
) -> Tensor:
    """-lr <gradient of goal j's loss, gradient of example i's loss>, shape (goals, examples): what
    `example_influence` tends to for small steps, on each goal alone; negative is helpful. The model
    stays as it is."""
    plan = make_plan(model, lr)
    device = next(iter(plan.params.values())).device
    batch, goal = checked_pair(batch, device, "batch"), checked_pair(goal, device, "goal")
    with kept_random_state(device), kept_values(model), torch.enable_grad():
        aims, rows = (record_in_scope(model, loss_fn, pair, plan) for pair in (goal, batch))
        products = _by_layers(aims, rows)
        if products is None:
            products = _by_gradients(aims, rows, list(plan.params))
    return products.mul_(-lr)


def _by_layers(goal: Recorded, batch: Recorded) -> Tensor | None:
    """The inner products of gradients, where each parameter is in one linear layer of rows."""
    layers = [_layers(each) for each in (goal, batch)]
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
    """Of each linear layer what enters it, the gradient at its outputs, and its parameters."""
    tape = recorded.tape
    if not tape.separable():
        return None
    edges = tape.edges()
    fans = [tape.entries[i].how.fan for i in edges]
    params = [tuple(s for s in tape.entries[i].inputs if s in tape.leaves) for i in edges]
    used = [slot for entry in tape.entries for slot in entry.inputs if slot in tape.leaves]
    inside = [slot for slots in params for slot in slots]
    if len(set(used)) != len(used) or sorted(used) != sorted(inside):
        return None
    if any(fan is None for fan in fans):
        return None
    ends = list(edges.values())
    deltas = torch.autograd.grad(recorded.losses.sum(), ends, retain_graph=True)
    return [
        (fan, delta, tuple(id(tape.leaves[slot]) for slot in slots))
        for fan, delta, slots in zip(fans, deltas, params)
        if fan is not None
    ]


def _by_gradients(goal: Recorded, batch: Recorded, names: list[str]) -> Tensor:
    """The same for any model: the gradient of each goal, along which the losses are pushed."""
    leaves: list[Tensor] = [goal.params[name] for name in names]
    parts = []
    for some in torch.split(goal.losses, CHUNK):
        rows: list[Named] = []
        for loss in some:
            grads = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
            rows.append(
                {k: torch.zeros_like(p) if g is None else dense(g)
                 for k, p, g in zip(names, leaves, grads)}
            )  # fmt: skip
        along = {k: torch.stack([row[k] for row in rows]) for k in names}
        parts.append(_slopes(batch, along))
    return torch.cat(parts)


def _slopes(recorded: Recorded, along: Named) -> Tensor:
    """The slope of each loss along each direction, by the tape or one example at a time."""
    count, tape = next(iter(along.values())).shape[0], recorded.tape
    if tape.usable():
        seeds = tape.seeds({id(recorded.params[k]): t for k, t in along.items()})
        try:
            with torch.no_grad():
                return tape.push(seeds, (count, len(recorded.losses)))
        except Unsupported:
            pass
    return one_by_one(recorded.losses, recorded.params, along)

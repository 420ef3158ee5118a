"""Products with Jacobian and Hessian of a batch's losses, from one recorded pass.

The tangents of the losses are pushed forward as the tape does; then the tangents of all gradients
travel back along it. Both directions share the pass and its gradients, and an operation is at work
where its second order is known: a convolution is run as such.
"""

import torch
from torch import Tensor

from metasp.influence.bends import Tangents
from metasp.influence.layout import Layout
from metasp.influence.pseudo import Named, Problem
from metasp.influence.rules import Unsupported
from metasp.influence.tape import Recorder, Tape


def from_tape(problem: Problem, theta: Named, directions: Named) -> tuple[Tensor, Named]:
    """J s, shape (directions, n), and H s (H of the mean loss), in the shapes of ``directions``."""
    targets = problem.batch[1]
    leaves = {k: t.detach().requires_grad_() for k, t in theta.items()}
    recorder = Recorder(len(targets), targets.device)
    with problem.losses(leaves, recorder) as losses:
        tape = recorder.finish(losses)
        if not tape.usable() or any(
            e.how.pull is None and e.how.bend is None for e in tape.entries
        ):
            raise Unsupported(tape.broken or "the second order of an operation is not known")
        edges = [edge for entry in tape.entries for edge in entry.ends]
        found = iter(torch.autograd.grad(losses.mean(), edges, allow_unused=True))
        deltas: list[list[Tensor | None]] = [
            [next(found) for _ in entry.ends] for entry in tape.entries
        ]
    seeds = tape.seeds({id(leaves[k]): s for k, s in directions.items()})
    count, kept = next(iter(directions.values())).shape[0], dict[int, Tangents]()
    with torch.no_grad():
        product = tape.push(seeds, (count, len(targets)), kept)
        bent = _bend(tape, kept, deltas, count)
    by_leaf = {id(leaf): bent.get(slot) for slot, leaf in tape.leaves.items()}
    moved = {k: by_leaf.get(id(leaf)) for k, leaf in leaves.items()}
    zero = {k: torch.zeros_like(s) for k, s in directions.items() if moved[k] is None}
    return product, {k: zero[k] if h is None else h for k, h in moved.items()}


def _bend(
    tape: Tape, kept: dict[int, Tangents], deltas: list[list[Tensor | None]], count: int
) -> dict[int, Tensor]:
    """How the gradients of the leaves move, by slot."""
    moves: dict[int, Tensor] = {}
    layout = Layout()
    for i in range(len(tape.entries) - 1, -1, -1):
        entry, here = tape.entries[i], deltas.pop()
        bents = [moves.pop(slot, None) for slot in entry.outputs]
        found: Tangents = []
        if entry.how.bend is not None and any(delta is not None for delta in here):
            moving = [_there(bent, delta, count) for bent, delta in zip(bents, here)]
            found = entry.how.bend(kept.pop(i), here, moving, layout)
        elif entry.how.pull is not None and bents[0] is not None:
            found = entry.how.pull(bents[0], layout)
        for slot, part in zip(entry.inputs, found):
            if slot is not None and part is not None:
                moves[slot] = moves[slot] + part if slot in moves else part
    return moves


def _there(bent: Tensor | None, delta: Tensor | None, count: int) -> Tensor | None:
    """Zero where a gradient does not move; None where there is none."""
    if delta is None or bent is not None:
        return bent
    return delta.new_zeros(count, *delta.shape)

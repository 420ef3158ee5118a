"""Derivatives where no rule is known: of one call, run once more, or of a whole model.

The products of a whole model take directions s (by parameter name, each of shape (directions,
*shape of the parameter)) and give J s, shape (directions, n), with J the derivative of the n losses
for the parameters.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as fw
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from metasp.influence.functional import (
    Named,
    Problem,
    RandomState,
    dense,
    differentiable_twice,
    kept_random_state,
)
from metasp.influence.jvp_rules import Linearised, Unsupported
from metasp.influence.second_order import Layout, Tangents

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def tensors_in(tree: Any) -> list[Tensor]:
    """Return all tensors in nested tuples, lists and dictionaries, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def dual(primal: Tensor, tangent: Tensor) -> Tensor:
    """Return a dual number at the present level."""
    made: Tensor = fw.make_dual(primal, tangent)  # type: ignore[no-untyped-call]
    return made


def tangent_of(value: Tensor) -> Tensor:
    """Return the tangent of a dual number; zero where it has none."""
    primal, tangent = fw.unpack_dual(value)  # type: ignore[no-untyped-call]
    return torch.zeros_like(primal) if tangent is None else tangent


def in_memory(tensor: Tensor) -> Tensor:
    """Return the values without graph; dual numbers need a cell for each number of an expanded
    tensor."""
    shared = any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride()))
    return tensor.detach().contiguous() if shared else tensor.detach()


@dataclass(frozen=True)
class Repeated:
    """A call that can be made again on other tensors: all its `tensors`, those of them (`inputs`)
    that need a gradient, which of its results are `wanted`, and the state from which it drew random
    numbers, if it did."""

    func: Callable[..., Any]
    arguments: Arguments
    tensors: list[Tensor]
    inputs: tuple[Tensor, ...]
    wanted: list[bool]
    drew_from: RandomState | None

    def results(self, values: list[Tensor]) -> list[Tensor]:
        """Return the differentiable results for other inputs. What needs no gradient is copied, for
        it may be running statistics that the call moves."""
        if self.drew_from is not None:
            self.drew_from.restore()
        by = {id(t): t.clone() for t in self.tensors if not t.requires_grad}
        by.update((id(t), value) for t, value in zip(self.inputs, values))
        args, kwargs = tree_map(lambda leaf: by.get(id(leaf), leaf), self.arguments)
        made = tensors_in(self.func(*args, **kwargs))
        if len(made) != len(self.wanted):
            raise Unsupported(f"{self._name} has changing results")
        return [t for t, wanted in zip(made, self.wanted) if wanted]

    def push(self, tangents: Tangents, layout: Layout) -> Tangents:
        """Return the results' tangents, by dual numbers, for one direction after the other."""
        rows = []
        with self._repeating():
            for d in range(next(len(t) for t in tangents if t is not None)):
                with fw.dual_level():
                    duals = [t.detach() if tangent is None else dual(in_memory(t), tangent[d])
                             for t, tangent in zip(self.inputs, tangents)]  # fmt: skip
                    rows.append([tangent_of(t) for t in self.results(duals)])
        return [torch.stack(column) for column in zip(*rows)]

    def bend(
        self, tangents: Tangents, deltas: Tangents, bents: Tangents, layout: Layout
    ) -> Tangents:
        """Return how the inputs' gradients move, by differentiating the gradient: of the result f
        with gradient delta the inputs' gradients move by J' bent + H dx, where H, the Hessian of
        <delta, f>, is symmetric."""
        rows = []
        with self._repeating(), torch.enable_grad():
            leaves = [in_memory(t).requires_grad_() for t in self.inputs]
            triples = zip(self.results(leaves), deltas, bents)
            ends = [triple for triple in triples if triple[1] is not None]
            results = [result for result, _, _ in ends]
            grads = torch.autograd.grad(
                results, leaves, [delta for _, delta, _ in ends], create_graph=True,
                allow_unused=True,
            )  # fmt: skip
            pairs = [
                (grad, tangent)
                for grad, tangent in zip(grads, tangents)
                if grad is not None and tangent is not None and grad.requires_grad
            ]
            for d in range(next(len(bent) for bent in bents if bent is not None)):
                terms = [(result * bent[d]).sum() for result, _, bent in ends if bent is not None]
                terms += [(grad * tangent[d]).sum() for grad, tangent in pairs]
                slopes = torch.autograd.grad(
                    torch.stack(terms).sum(), leaves, retain_graph=True, materialize_grads=True
                )
                rows.append([dense(slope) for slope in slopes])
        return [torch.stack(column) for column in zip(*rows)]

    @property
    def _name(self) -> Any:
        return getattr(self.func, "__name__", self.func)

    @contextmanager
    def _repeating(self) -> Iterator[None]:
        """Draw the same numbers, keep the random state, and say what cannot be differentiated."""
        drew, device = self.drew_from is not None, self.inputs[0].device
        try:
            with kept_random_state(device) if drew else nullcontext(), differentiable_twice():
                yield
        except RuntimeError as error:
            raise Unsupported(f"{self._name}: {error}") from error


def again(
    func: Callable[..., Any],
    arguments: Arguments,
    tensors: list[Tensor],
    out: Any,
    state: RandomState | None,
) -> Linearised:
    """Return the linearisation of any call that has forward-mode derivatives. If it drew random
    numbers after `state`, it draws the same ones again."""
    inputs = tuple({id(t): t for t in tensors if t.requires_grad}.values())
    drew = state is not None and not torch.equal(state.cpu, torch.get_rng_state())
    drew = drew or (state is not None and state.accelerator is not None)
    wanted = [t.requires_grad for t in tensors_in(out)]
    call = Repeated(func, arguments, tensors, inputs, wanted, state if drew else None)
    return Linearised(inputs, call.push, tuple(tensors), bend=call.bend)


def follows_the_loss(problem: Problem, theta: Named, grads: Named) -> bool:
    """Return whether the gradient is the slope of the mean loss along itself, by differences: the
    only way to see that a backward pass which has no forward counterpart tells the truth."""
    square = sum(float(g.double().square().sum()) for g in grads.values())
    size = sum(float(t.double().square().sum()) for t in theta.values()) ** 0.5
    if square == 0.0:
        return True
    eps = torch.finfo(next(iter(grads.values())).dtype).eps
    step = eps ** (1 / 2) * max(size, 1e-3) / square**0.5
    ends = [{k: t.add(grads[k], alpha=sign * step) if k in grads else t for k, t in theta.items()}
            for sign in (1.0, -1.0)]  # fmt: skip
    up, down = (float(problem.mean_loss(end)) for end in ends)
    slope = (up - down) / (2 * step)
    rounding = 20 * eps * max(abs(up), abs(down)) / step
    return bool(abs(slope - square) <= 100 * eps**0.5 * (abs(slope) + square) + rounding)


def double_backward(problem: Problem, theta: Named, directions: Named) -> tuple[Tensor, Named]:
    """Return J s and H s by differentiating the gradient, where every layer's gradient can be
    differentiated.

    With weights u on the losses, <sum_i u_i grad L_i, s> has derivative J s for u and, at
    u = 1/n, derivative H s for the parameters. H s has the shapes of ``directions``.
    """
    rows: list[tuple[Tensor, ...]] = []
    with differentiable_twice(), problem.losses(theta) as (losses, leaves):
        u = torch.full_like(losses, 1.0 / len(losses)).requires_grad_()
        grads = torch.autograd.grad(
            losses, list(leaves.values()), u, create_graph=True, allow_unused=True
        )
        pairs = [(grad, directions[k]) for k, grad in zip(leaves, grads)
                 if grad is not None and grad.requires_grad]  # fmt: skip
        for d in range(len(next(iter(directions.values())))):
            terms = [(grad * s[d]).sum() for grad, s in pairs]
            try:
                slopes = torch.autograd.grad(
                    torch.stack(terms).sum(), [u, *leaves.values()], retain_graph=True,
                    materialize_grads=True,
                )  # fmt: skip
            except RuntimeError as error:
                raise Unsupported(str(error)) from error
            rows.append(slopes)
    products, *curved = (torch.stack([dense(t) for t in column]) for column in zip(*rows))
    return products, dict(zip(leaves, curved))

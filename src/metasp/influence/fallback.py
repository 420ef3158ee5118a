"""Derivatives where no rule is known: of one call, run once more on dual numbers, or of a whole
model.

The products of a whole model take directions s (by parameter name, each of shape (directions,
*shape of the parameter)) and give J s, shape (directions, n), with J the derivative of the n losses
for the parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metasp.influence.checks import inner
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


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors in nested tuples, lists and dictionaries, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, tuple | list):
        return [t for item in tree for t in tensors_in(item)]
    if isinstance(tree, dict):
        return [t for item in tree.values() for t in tensors_in(item)]
    return []


def replaced(tree: Any, by: Mapping[int, Tensor]) -> Any:
    """The same nest with tensors exchanged by ``id``."""
    if isinstance(tree, Tensor):
        return by.get(id(tree), tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(replaced(item, by) for item in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(replaced(item, by) for item in tree)
    if isinstance(tree, dict):
        return {key: replaced(item, by) for key, item in tree.items()}
    return tree


def dual(primal: Tensor, tangent: Tensor) -> Tensor:
    """A dual number at the present level."""
    made: Tensor = fw.make_dual(primal, tangent)  # type: ignore[no-untyped-call]
    return made


def tangent_of(value: Tensor) -> Tensor:
    """The tangent of a dual number; zero where it has none."""
    primal, tangent = fw.unpack_dual(value)  # type: ignore[no-untyped-call]
    return torch.zeros_like(primal) if tangent is None else tangent


class ObeyingNoGrad(TorchFunctionMode):
    """Lets ``torch.no_grad()`` hold for tangents too: torch lets dual numbers through it, where
    its gradients stop."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        with fw._set_fwd_grad_enabled(False):
            return func(*args, **(kwargs or {}))


def own_memory(tensor: Tensor) -> Tensor:
    """The values without graph; an expanded tensor is copied, for dual numbers need own cells."""
    shared = any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride()))
    return tensor.detach().contiguous() if shared else tensor.detach()


@dataclass(frozen=True)
class _Call:
    """A call that can be repeated on other tensors: which of its `tensors` need a gradient, which
    of its results are `wanted`, and the state from which it drew random numbers, if it did."""

    func: Callable[..., Any]
    call: tuple[tuple[Any, ...], dict[str, Any]]
    tensors: list[Tensor]
    inputs: tuple[Tensor, ...]
    wanted: list[bool]
    drew_from: RandomState | None

    @property
    def name(self) -> Any:
        return getattr(self.func, "__name__", self.func)

    def results(self, duals: Mapping[int, Tensor]) -> list[Tensor]:
        """The differentiable results of the same call on other tensors."""
        if self.drew_from is not None:
            self.drew_from.restore()
        copied = {id(t): t.clone() for t in self.tensors if not t.requires_grad}
        args, kwargs = replaced(self.call, {**duals, **copied})
        made = tensors_in(self.func(*args, **kwargs))
        if len(made) != len(self.wanted):
            raise Unsupported(f"{self.name} has changing results")
        return [t for t, want in zip(made, self.wanted) if want]

    def one(self, tangents: Tangents) -> list[Tensor]:
        """The results' tangents of one direction."""
        with fw.dual_level():
            duals = {
                id(t): t.detach() if d is None else dual(own_memory(t), d)
                for t, d in zip(self.inputs, tangents)
            }
            return [tangent_of(t) for t in self.results(duals)]

    def one_bent(self, tangents: Tangents, deltas: Tangents, bents: Tangents) -> list[Tensor]:
        """Return how the inputs' gradients move along one direction, by dual numbers."""
        with fw.dual_level(), torch.enable_grad():
            leaves = [own_memory(t).requires_grad_() for t in self.inputs]
            duals = [t if d is None else dual(t, d) for t, d in zip(leaves, tangents)]
            made = self.results({id(t): d for t, d in zip(self.inputs, duals)})
            moved = [
                None if delta is None or bent is None else dual(own_memory(delta), bent)
                for delta, bent in zip(deltas, bents)
            ]
            needed = [t for t, grad in zip(made, moved) if grad is not None]
            grads = [grad for grad in moved if grad is not None]
            slopes = torch.autograd.grad(needed, duals, grads, allow_unused=True)
            return [torch.zeros_like(t) if g is None else tangent_of(g).detach()
                    for t, g in zip(leaves, slopes)]  # fmt: skip

    def bent_twice_back(
        self, tangents: Tangents, deltas: Tangents, bents: Tangents, count: int
    ) -> list[list[Tensor]]:
        """Return the same for each direction, by differentiating the gradient: of the result f with
        gradient delta the inputs' gradients move by J' bent + H dx, where H, the Hessian of
        <delta, f>, is symmetric."""
        with torch.enable_grad():
            leaves = [own_memory(t).requires_grad_() for t in self.inputs]
            made = self.results({id(t): leaf for t, leaf in zip(self.inputs, leaves)})
            ends = [t for t, delta in zip(made, deltas) if delta is not None]
            grads = torch.autograd.grad(
                ends, leaves, [d for d in deltas if d is not None], create_graph=True,
                allow_unused=True,
            )  # fmt: skip
            rows = []
            for d in range(count):
                along = [bent[d] for bent in bents if bent is not None]
                parts = [_sum_along(ends, along)]
                for grad, tangent in zip(grads, _at(tangents, d)):
                    if grad is not None and tangent is not None and grad.requires_grad:
                        parts.append((grad * tangent).sum())
                slopes = torch.autograd.grad(
                    torch.stack(parts).sum(), leaves, retain_graph=True, allow_unused=True
                )
                rows.append(
                    [torch.zeros_like(t) if g is None else g.to_dense() if g.is_sparse else g
                     for t, g in zip(leaves, slopes)]
                )  # fmt: skip
            return rows

    def each(self, ways: Callable[[], list[list[Tensor]]]) -> Tangents:
        """The ways of all directions, side by side."""
        try:
            with kept_random_state(self.inputs[0].device), differentiable_twice():
                return [torch.stack(parts) for parts in zip(*ways())]
        except RuntimeError as error:
            raise Unsupported(f"{self.name}: {error}") from error


def again(
    func: Callable[..., Any],
    call: tuple[tuple[Any, ...], dict[str, Any]],
    tensors: list[Tensor],
    out: Any,
    state: RandomState | None,
) -> Linearised:
    """The linearisation of any call that has forward-mode derivatives.

    The call is repeated for each direction; if it drew random numbers it draws the same ones. What
    needs no gradient is copied, for it may be running statistics that the call moves.
    """
    inputs = tuple({id(t): t for t in tensors if t.requires_grad}.values())
    drew = state is not None and not torch.equal(state.cpu, torch.get_rng_state())
    drew = drew or (state is not None and state.accelerator is not None)
    wanted = [t.requires_grad for t in tensors_in(out)]
    it = _Call(func, call, tensors, inputs, wanted, state if drew else None)

    def push(tangents: Tangents, layout: Layout) -> Tangents:
        count = next(t.shape[0] for t in tangents if t is not None)
        return it.each(lambda: [it.one(_at(tangents, d)) for d in range(count)])

    def bend(tangents: Tangents, deltas: Tangents, bents: Tangents, layout: Layout) -> Tangents:
        count = next(t.shape[0] for t in bents if t is not None)
        if func not in TWICE_BY_DUALS:
            return it.each(lambda: it.bent_twice_back(tangents, deltas, bents, count))
        return it.each(
            lambda: [it.one_bent(_at(tangents, d), deltas, _at(bents, d)) for d in range(count)]
        )

    return Linearised(inputs, push, tuple(tensors), bend=bend)


TWICE_BY_DUALS = frozenset((
    F.gelu, F.leaky_relu, F.elu, F.selu, F.softplus, F.hardswish, F.relu6, F.hardtanh, torch.tanh,
    Tensor.tanh, torch.sigmoid, Tensor.sigmoid, F.logsigmoid, torch.exp, Tensor.exp, torch.mul,
    Tensor.mul, torch.div, Tensor.div, Tensor.__truediv__, F.max_pool2d, torch.max_pool2d,
    torch.mean, Tensor.mean, torch.sum, Tensor.sum, torch.softmax, Tensor.softmax,
    torch.log_softmax, Tensor.log_softmax, F.softmax, F.log_softmax, torch.matmul, Tensor.matmul,
    torch.bmm, Tensor.bmm, F.scaled_dot_product_attention, F.layer_norm, F.cross_entropy,
    F.nll_loss,
))  # fmt: skip
"""Calls whose gradient has right tangents. That of others may read a result that it saved, such as
the factors of a matrix, as if it were constant: torch's solve and determinants do."""


def _sum_along(ends: list[Tensor], along: list[Tensor]) -> Tensor:
    return torch.stack([(end * move).sum() for end, move in zip(ends, along)]).sum()


def _at(tangents: Tangents, d: int) -> list[Tensor | None]:
    """The tangents of one direction."""
    return [None if t is None else t[d] for t in tangents]


def forward_mode(problem: Problem, theta: Named, directions: Named) -> Tensor:
    """Return J s by dual numbers through the whole model; needs a forward derivative of every
    call."""
    count = next(iter(directions.values())).shape[0]
    rows = []
    try:
        for d in range(count):
            with fw.dual_level(), differentiable_twice():
                duals = {
                    k: dual(t.detach().requires_grad_(), directions[k][d])
                    if k in directions
                    else t.detach()
                    for k, t in theta.items()
                }
                with ObeyingNoGrad(), problem.losses_of_duals(duals) as losses:
                    rows.append(tangent_of(losses).detach())
    except RuntimeError as error:
        raise Unsupported(str(error)) from error
    return torch.stack(rows)


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
    count = next(iter(directions.values())).shape[0]
    products: list[Tensor] = []
    curved: list[Named] = []
    with differentiable_twice(), problem.losses(theta) as (losses, leaves):
        n = len(losses)
        u = losses.new_full((n,), 1.0 / n).requires_grad_()
        grads = torch.autograd.grad(
            losses, list(leaves.values()), u, create_graph=True, allow_unused=True
        )
        used = {k: g for k, g in zip(leaves, grads) if g is not None and g.requires_grad}
        for d in range(count):
            terms = {k: used[k] * directions[k][d] for k in used if k in directions}
            inner = torch.stack([term.sum() for term in terms.values()]).sum()
            try:
                slopes = torch.autograd.grad(
                    inner, [u, *leaves.values()], retain_graph=d + 1 < count, allow_unused=True
                )
            except RuntimeError as error:
                raise Unsupported(str(error)) from error
            products.append(torch.zeros_like(u) if slopes[0] is None else slopes[0])
            # It is linear in u. A layer whose gradient has no graph drops out in silence, with all
            # that lies below it: then this no longer holds.
            size = torch.stack([term.abs().sum() for term in terms.values()]).sum()
            if (u * products[-1]).sum().sub(inner).abs() > 1e3 * torch.finfo(u.dtype).eps * size:
                raise Unsupported("a layer's gradient cannot be differentiated")
            curved.append(
                {k: torch.zeros_like(t) if h is None else dense(h)
                 for (k, t), h in zip(leaves.items(), slopes[1:])}
            )  # fmt: skip
        hs = {k: torch.stack([one[k] for one in curved]).detach() for k in leaves}
    return torch.stack(products).detach(), hs


def one_by_one(losses: Tensor, params: Mapping[str, Tensor], directions: Named) -> Tensor:
    """Return J s from the gradient of each loss on a kept graph: n backward passes, for any model
    that can be trained."""
    columns = []
    for loss in losses:
        grads = torch.autograd.grad(
            loss, [params[k] for k in directions], retain_graph=True, allow_unused=True
        )
        terms = [inner(s, dense(g)) for s, g in zip(directions.values(), grads) if g is not None]
        columns.append(sum(terms, losses.new_zeros(len(next(iter(directions.values()))))))
    return torch.stack(columns, 1).detach()

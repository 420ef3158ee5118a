"""Record one ordinary forward pass, then push tangents through what was recorded.

The recorder sees the calls a model makes (convolution, BatchNorm, addition, loss ...) as wholes.
Each call leaves a *linearised* call on the tape: which tensors it read and a function that turns
their tangents into the tangent of its result. All directions travel together: the tangent of a
tensor of shape s has shape (directions, *s).

Whatever the recorder cannot follow exactly (an unknown in-place call, writing through a view, a
tensor from an operation it did not see) marks the tape as broken with the reason; the caller then
takes a slower exact path. A tape is never approximately right.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from metasp.errors import UserError
from metasp.influence.checks import (
    REWRITTEN,
    TRAPS,
    WEIGHT_NORM,
    checked_pair,
    inner,
    scales_by_frequency,
)
from metasp.influence.fallback import Arguments, again, tensors_in
from metasp.influence.functional import (
    Loss,
    LossOf,
    Named,
    Origin,
    Outputs,
    Pair,
    Problem,
    RandomState,
    by_name,
    example_losses,
    norms,
    shortened,
    uncompiled,
    with_values,
)
from metasp.influence.jvp_rules import RULES, Linearised, Unsupported
from metasp.influence.pseudo_step import Plan
from metasp.influence.second_order import LAYOUT_BOUND, Layout, Tangents
from metasp.trees import same


@dataclass(frozen=True)
class Entry:
    """One linearised call. Slots number the values on the tape; None is a constant."""

    func: Callable[..., Any]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    linear: Linearised
    saved: tuple[tuple[Tensor, int], ...]  # with their versions
    ends: tuple[GradientEdge, ...]  # of the outputs: where their gradients arrive


@dataclass
class Tape:
    """The recorded calls of one forward pass, from parameters to per-example losses."""

    entries: list[Entry] = field(default_factory=list)
    leaves: dict[int, Tensor] = field(default_factory=dict)
    broken: str | None = None
    trap: str | None = None  # a call through which no influence is right, as a sentence
    second_order_trap: str | None = None  # or none of several steps
    losses: int | None = None
    any_layout: bool = True  # whether images may lie in memory otherwise than they did
    autocast: bool = False

    def usable(self) -> bool:
        """Return whether tangents can be pushed: nothing unknown happened and no saved value
        changed."""
        if self.broken is None:
            for node in self.entries:
                for tensor, version in node.saved:
                    if tensor._version != version:
                        self.broken = "a saved value was changed in place"
        return self.broken is None

    def check(self, steps: int) -> None:
        """Raise if the pass made a call through which no influence over so many steps is right."""
        sentence = self.trap or (self.second_order_trap if steps > 1 else None)
        if sentence is not None:
            raise UserError(sentence)

    def seeds(self, tangents: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Return tangents by slot, from tangents by ``id`` of the leaf tensor."""
        return {slot: tangents[id(t)] for slot, t in self.leaves.items() if id(t) in tangents}

    def push(
        self,
        seeds: Mapping[int, Tensor],
        shape: tuple[int, int],
        incoming_of: dict[int, Tangents] | None = None,
    ) -> Tensor:
        """Return the tangents of the losses, ``shape`` = (directions, n). Into ``incoming_of`` go
        those that enter each entry whose gradients move with them, by entry."""
        tangents, layout = dict(seeds), Layout()
        last: dict[int | None, int] = {}
        for i, node in enumerate(self.entries):
            last.update(dict.fromkeys(node.inputs, i))
        for i, node in enumerate(self.entries):
            incoming = [None if s is None else tangents.get(s) for s in node.inputs]
            for slot in node.inputs:
                if slot is not None and last[slot] == i:
                    tangents.pop(slot, None)
            if incoming_of is not None and node.linear.bend is not None:
                incoming_of[i] = incoming
            if any(t is not None for t in incoming):
                for slot, out in zip(node.outputs, node.linear.push(incoming, layout)):
                    if out is not None:
                        tangents[slot] = out
        assert self.losses is not None
        product = tangents.get(self.losses)
        return next(iter(seeds.values())).new_zeros(shape) if product is None else product

    def pull(
        self, incoming_of: dict[int, Tangents], deltas: list[Tangents], count: int
    ) -> dict[int, Tensor]:
        """Return how the gradients of the leaves move, by slot, when the tangents of `push` move
        the values; ``deltas`` are the gradients of each entry's outputs."""
        moves: dict[int, Tensor] = {}
        layout = Layout()
        for i in range(len(self.entries) - 1, -1, -1):
            node, delta = self.entries[i], deltas.pop()
            bents = [moves.pop(slot, None) for slot in node.outputs]
            pulled: Tangents = []
            if node.linear.bend is not None and any(d is not None for d in delta):
                moving = [_zero_if_still(bent, d, count) for bent, d in zip(bents, delta)]
                pulled = node.linear.bend(incoming_of.pop(i), delta, moving, layout)
            elif node.linear.pull is not None and bents[0] is not None:
                pulled = node.linear.pull(bents[0], layout)
            for slot, part in zip(node.inputs, pulled):
                if slot is not None and part is not None:
                    moves[slot] = moves[slot] + part if slot in moves else part
        return moves


def _zero_if_still(bent: Tensor | None, delta: Tensor | None, count: int) -> Tensor | None:
    """Return zeros where a gradient does not move; None where there is none."""
    if delta is None or bent is not None:
        return bent
    return delta.new_zeros(count, *delta.shape)


_EMBEDDINGS = (F.embedding, F.embedding_bag)


class Recorder(TorchFunctionMode):
    """Runs every call unchanged and writes its linearisation on a tape."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.tape = Tape()
        self._device = device
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._slots = 0
        if torch.is_autocast_enabled(device.type):
            self.tape.broken = "autocast changes the types inside the operations"
            self.tape.autocast = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in TRAPS and (func not in _EMBEDDINGS or scales_by_frequency(args, kwargs)):
            self.tape.trap = TRAPS[func]
        elif func is torch._weight_norm:
            self.tape.second_order_trap = WEIGHT_NORM
        tensors = tensors_in((args, kwargs))
        if func in LAYOUT_BOUND:
            images = (t for t in tensors if t.dim() == 4)
            self.tape.any_layout &= all(t.shape[2:] == (1, 1) for t in images)
        if self.tape.broken is not None or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if not any(t.requires_grad for t in tensors):
            out = func(*args, **kwargs)
            # requires_grad_() on a fresh tensor is a new leaf; anything else came from nowhere.
            if isinstance(out, Tensor) and out.requires_grad and not out.is_leaf:
                self.tape.broken = "a graph began inside an operation"
            return out
        slots = {id(t): self._slot(t) for t in tensors if t.requires_grad}
        versions = [t._version for t in tensors]
        # A rule that fits most kernels may not fit this one: then dropout is repeated as it was.
        repeats = func not in RULES or func is F.dropout
        state = RandomState.capture(self._device, torch_only=True) if repeats else None
        out = func(*args, **kwargs)
        if self.tape.broken is None:
            out = _separate(out) if type(out) is tuple else out
            self._write(func, (args, kwargs), out, (tensors, versions, slots), state)
        return out

    def finish(self, losses: Tensor) -> Tape:
        """Return the tape that ends in ``losses``, shape (n,)."""
        if self.tape.broken is None:
            self.tape.losses = self._slot(losses)
        self._seen.clear()
        return self.tape

    def _slot(self, tensor: Tensor) -> int:
        """Return the slot of a tensor that requires grad; a new one for a leaf."""
        seen = self._seen.get(id(tensor))
        if seen is not None and seen[0]() is tensor:
            if seen[2] != tensor._version:
                self.tape.broken = "a tensor was changed in place through another name"
            return seen[1]
        slot = self._new_slot(tensor)
        if tensor.is_leaf:
            self.tape.leaves[slot] = tensor
        else:
            self.tape.broken = "a tensor comes from an operation that the tape cannot see"
        return slot

    def _new_slot(self, tensor: Tensor) -> int:
        """Number a tensor that an operation has just made, or a leaf."""
        self._slots += 1
        self._seen[id(tensor)] = (weakref.ref(tensor), self._slots, tensor._version)
        return self._slots

    def _write(
        self,
        func: Callable[..., Any],
        arguments: Arguments,
        out: Any,
        read: tuple[list[Tensor], list[int], dict[int, int]],
        state: RandomState | None,
    ) -> None:
        """Put the linearised form of a call on the tape, by its rule or as one to repeat; ``read``
        has the tensors it read, their versions before it, and their slots."""
        tensors, versions, slots = read
        outputs = [t for t in tensors_in(out) if t.requires_grad]
        changed = any(t._version != v for t, v in zip(tensors, versions))
        if not outputs or (not changed and any(out is t for t in tensors)):
            return  # nothing differentiable, or the very tensor that came in
        linear: Linearised | None = None
        if func in RULES:
            try:
                linear = RULES[func](out, *arguments[0], **arguments[1])
            except TypeError:  # an argument the rule does not know
                linear = None
        if linear is None:
            # BatchNorm statistics are constants and may move; a differentiable value may not.
            if any(t._version != v and t.requires_grad for t, v in zip(tensors, versions)):
                self.tape.broken = f"{getattr(func, '__name__', func)} works in place"
                return
            linear = again(func, arguments, tensors, out, state)
        inputs = tuple(slots.get(id(t)) for t in linear.inputs)
        results = tuple(self._new_slot(t) for t in outputs)
        saved = tuple((t, t._version) for t in linear.saved)
        ends = tuple(get_gradient_edge(t) for t in outputs)
        linear = replace(linear, inputs=())  # the tape keeps no value alive that nobody needs
        self.tape.entries.append(Entry(func, inputs, results, linear, saved, ends))


def _separate(out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return results of one call, none of which is computed from another: the gradient that
    arrives at each is then that of what follows the call alone. (The cell of an LSTM makes its
    output of its state.)"""
    return tuple(t.view_as(t) if isinstance(t, Tensor) and t.requires_grad else t for t in out)


@dataclass(frozen=True)
class Recorded:
    """One ordinary forward pass on a batch, with its graph and its tape.

    ``losses`` has shape (n,). After the influence the same graph serves the real update:
    ``(weights * recorded.losses).sum().backward()``.
    """

    losses: Tensor
    batch: Pair
    origin: Origin
    tape: Tape
    params: dict[str, nn.Parameter]
    versions: dict[str, int]  # of the parameters, which count every change but through `.data`

    def check(self, batch: Pair) -> None:
        """Raise unless it is of this batch, at the parameters as they are."""
        if not same(self.batch, batch):
            raise UserError(
                "this recorded pass is of another batch: record the batch that you pass."
            )
        if any(self.params[k]._version != version for k, version in self.versions.items()):
            raise UserError(
                "the parameters have moved since this pass was recorded: record the batch again."
            )

    def products(self, directions: Named) -> Tensor:
        """Return J s, shape (directions, n), from the tape."""
        if not self.tape.usable():
            raise Unsupported(self.tape.broken)
        seeds = self.tape.seeds({id(self.params[k]): s for k, s in directions.items()})
        with torch.no_grad():
            return self.tape.push(seeds, (len(next(iter(directions.values()))), len(self.losses)))

    def gradient(self, loss: Tensor, names: Iterable[str]) -> Named:
        """Return the gradient of a loss of this pass for named parameters that it uses."""
        leaves = {k: self.params[k] for k in names}
        slopes = torch.autograd.grad(
            loss, list(leaves.values()), retain_graph=True, allow_unused=True
        )
        return by_name(leaves, slopes)

    def products_one_by_one(self, directions: Named) -> Tensor:
        """Return J s from the gradient of each loss: n backward passes, for any model that can be
        trained."""
        columns = []
        for loss in self.losses:
            grads = self.gradient(loss, directions)
            terms = [inner(directions[k], g) for k, g in grads.items()]
            columns.append(sum(terms, loss.new_zeros(len(next(iter(directions.values()))))))
        return torch.stack(columns, 1).detach()


def record(model: nn.Module, loss_fn: LossOf[Outputs], batch: Pair) -> Recorded:
    """Run the ordinary training forward pass on ``batch``, remembered for its influence.

    Losses have the bits of ``loss_fn(model(x), y)``; BatchNorm statistics move once and random
    numbers are drawn, as in any forward pass.
    """
    params = dict(model.named_parameters())
    if not params:
        raise UserError("the model has no parameters: an influence needs trainable ones.")
    device = next(iter(params.values())).device
    batch = checked_pair(batch, device, "batch")
    origin = Origin.of(model, device)
    with uncompiled():
        losses, tape = _taped(model, loss_fn, batch)
    # How often each parameter was written to, but for those that every forward pass writes.
    passing = {id(weight) for weight in shortened(model)}
    versions = {k: p._version for k, p in params.items() if id(p) not in passing}
    return Recorded(losses, batch, origin, tape, params, versions)


def record_in_scope(
    model: nn.Module, loss_fn: Loss, batch: Pair, plan: Plan, origin: Origin | None = None
) -> Recorded:
    """Run a forward pass whose graph reaches the parameters in scope and nothing below them; it
    leaves no trace."""
    origin = origin or Origin.of(model, batch[1].device)
    with origin.at(model), with_values(model, plan.params):
        losses, tape = _taped(model, loss_fn, batch)
    return Recorded(losses, batch, origin, tape, dict(model.named_parameters()), {})


def _taped(model: nn.Module, loss_fn: Loss, batch: Pair) -> tuple[Tensor, Tape]:
    """Return the losses of a forward pass and its tape."""
    recorder, before = Recorder(batch[1].device), norms(model)
    with recorder:
        losses = example_losses(model, loss_fn, batch)
    tape = recorder.finish(losses)
    if not torch.equal(before, norms(model)):
        tape.trap = REWRITTEN
    return losses, tape


def products_from_tape(problem: Problem, theta: Named, directions: Named) -> tuple[Tensor, Named]:
    """Return J s, shape (directions, n), and H s (H of the mean loss), in the shapes of
    ``directions``.

    The tangents of the losses are pushed forward; then the tangents of all gradients travel back.
    Both share one pass and its gradients.
    """
    recorder = Recorder(problem.batch[1].device)
    with problem.losses(theta, recorder) as (losses, leaves):
        tape = recorder.finish(losses)
        entries = [node.linear for node in tape.entries]
        if not tape.usable() or any(e.pull is None and e.bend is None for e in entries):
            raise Unsupported(tape.broken or "the second order of an operation is not known")
        edges = list(chain.from_iterable(node.ends for node in tape.entries))
        grads = iter(torch.autograd.grad(losses.mean(), edges, allow_unused=True))
        deltas: list[Tangents] = [[next(grads) for _ in node.ends] for node in tape.entries]
        seeds = tape.seeds({id(leaves[k]): s for k, s in directions.items()})
        count = len(next(iter(directions.values())))
        incoming_of: dict[int, Tangents] = {}
        with torch.no_grad():
            product = tape.push(seeds, (count, len(losses)), incoming_of)
            moves = tape.pull(incoming_of, deltas, count)
        by_leaf = {id(leaf): moves.get(slot) for slot, leaf in tape.leaves.items()}
        moved = {k: by_leaf.get(id(leaf)) for k, leaf in leaves.items()}
    return product, {k: torch.zeros_like(directions[k]) if h is None else h
                     for k, h in moved.items()}  # fmt: skip

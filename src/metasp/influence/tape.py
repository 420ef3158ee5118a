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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from metasp.influence.bends import Tangents
from metasp.influence.generic import again, tensors_in
from metasp.influence.layout import Layout
from metasp.influence.origin import RandomState
from metasp.influence.rowwise import TESTS, makes_rows, stays_in_rows
from metasp.influence.rules import RULES, Linearised


@dataclass(frozen=True)
class Entry:
    """One linearised call. Slots number the values on the tape; None is a constant."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    how: Linearised
    saved: tuple[tuple[Tensor, int], ...]
    edge: GradientEdge | None  # where parameters enter the rows of the batch: see `dot`
    ends: tuple[GradientEdge, ...]  # of the outputs: see `metasp.influence.curved`


@dataclass
class Tape:
    """The recorded calls of one forward pass, from parameters to per-example losses."""

    entries: list[Entry] = field(default_factory=list)
    leaves: dict[int, Tensor] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)
    coupled: str | None = None
    broken: str | None = None
    losses: int | None = None
    any_layout: bool = True  # whether images may lie in memory otherwise than they did

    def usable(self) -> bool:
        """Whether tangents can be pushed: nothing unknown happened and no saved value changed."""
        if self.broken is None:
            for entry in self.entries:
                for tensor, version in entry.saved:
                    if tensor._version != version:
                        self.broken = "a saved value was changed in place"
        return self.broken is None

    def separable(self) -> bool:
        """Whether each example's loss is provably computed from its own row alone."""
        return self.usable() and self.coupled is None and self.losses in self.rows

    def seeds(self, tangents: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Tangents by slot, from tangents by ``id`` of the leaf tensor."""
        return {slot: tangents[id(t)] for slot, t in self.leaves.items() if id(t) in tangents}

    def push(
        self,
        seeds: Mapping[int, Tensor],
        shape: tuple[int, int],
        kept: dict[int, Tangents] | None = None,
    ) -> Tensor:
        """The tangents of the losses, ``shape`` = (directions, n). Into ``kept`` go those that
        enter each entry whose gradients move with them, by entry."""
        tangents, layout = dict(seeds), Layout()
        last = {
            slot: i for i, e in enumerate(self.entries) for slot in e.inputs if slot is not None
        }
        for i, entry in enumerate(self.entries):
            incoming = [None if s is None else tangents.get(s) for s in entry.inputs]
            for slot in entry.inputs:
                if slot is not None and last[slot] == i:
                    tangents.pop(slot, None)
            if kept is not None and entry.how.bend is not None:
                kept[i] = incoming
            if any(t is not None for t in incoming):
                for slot, out in zip(entry.outputs, entry.how.push(incoming, layout)):
                    if out is not None:
                        tangents[slot] = out
        assert self.losses is not None
        found = tangents.get(self.losses)
        return next(iter(seeds.values())).new_zeros(shape) if found is None else found

    def dot(
        self, seeds: Mapping[int, Tensor], deltas: Mapping[int, Tensor], shape: tuple[int, int]
    ) -> Tensor:
        """The tangents of the losses of a `separable` tape, ``shape`` = (directions, n).

        Where a parameter enters the rows, the tangent it causes is weighted with that row's
        ``deltas`` (by entry: the gradient of the mean of the losses for the entry's result) and
        need not travel any further, for it reaches no other row.
        """
        tangents, layout = dict(seeds), Layout()
        total = next(iter(seeds.values())).new_zeros(shape)
        rows = shape[1]
        for i, entry in enumerate(self.entries):
            incoming = [None if s is None else tangents.get(s) for s in entry.inputs]
            if all(t is None for t in incoming):
                continue
            ends = entry.outputs[0] in self.rows
            if ends and i not in deltas:
                continue
            if ends and entry.how.dot is not None and len(incoming) > 1 and incoming[0] is None:
                total += rows * entry.how.dot(incoming, deltas[i], layout)
                continue
            outgoing = entry.how.push(incoming, layout)
            if ends:
                if outgoing[0] is not None:
                    delta = (deltas[i] * rows).reshape(1, rows, -1)
                    total += torch.linalg.vecdot(outgoing[0].reshape(*shape, -1), delta)
            else:
                tangents.update({s: t for s, t in zip(entry.outputs, outgoing) if t is not None})
        return total

    def edges(self) -> dict[int, GradientEdge]:
        """The gradient edges that `dot` needs, by entry."""
        return {i: e.edge for i, e in enumerate(self.entries) if e.edge is not None}

    def slopes(
        self, deltas: Mapping[int, Tensor], weights: Tensor
    ) -> list[tuple[Tensor, Tensor]] | None:
        """The leaves of a `separable` tape, each with a part of its gradient for the weighted sum
        of the losses; None where an operation makes that difficult.

        ``deltas`` are those of `dot`: each row is that of its own loss, whatever its weight."""
        found: list[tuple[Tensor, Tensor]] = []
        factors = weights * len(weights)
        for i, entry in enumerate(self.entries):
            first, *others = entry.inputs
            if entry.edge is None and not any(slot in self.leaves for slot in entry.inputs):
                continue
            plain = first not in self.leaves and all(s is None or s in self.leaves for s in others)
            if entry.edge is None or entry.how.slope is None or not plain:
                return None
            if i in deltas:
                by_row = factors.view(-1, *[1] * (deltas[i].dim() - 1))
                grads = entry.how.slope(deltas[i] * by_row)
                found += [(self.leaves[s], g) for s, g in zip(others, grads) if s is not None]
        return found


LAYOUT_BOUND = frozenset((
    Tensor.view, Tensor.view_as, Tensor.as_strided, torch.as_strided, Tensor.stride,
    Tensor.is_contiguous, Tensor.data_ptr, Tensor.numpy, Tensor.untyped_storage,
))  # fmt: skip
"""Calls on images whose answer hangs on how these lie in memory."""


class Recorder(TorchFunctionMode):
    """Runs every call unchanged and writes its linearisation on a tape."""

    def __init__(self, rows: int, device: torch.device) -> None:
        super().__init__()
        self.tape = Tape()
        self._n = rows
        self._device = device
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._slots = 0
        if torch.is_autocast_enabled(device.type):
            self.tape.broken = "autocast changes the types inside the operations"

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in LAYOUT_BOUND:
            images = (t for t in tensors_in((args, kwargs)) if t.dim() == 4)
            self.tape.any_layout &= all(t.shape[2:] == (1, 1) for t in images)
        if self.tape.broken is not None or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        if not any(t.requires_grad for t in tensors):
            out = func(*args, **kwargs)
            if isinstance(out, Tensor) and out.requires_grad:
                self._note_inplace(out)
            return out
        slots = {id(t): self._slot(t) for t in tensors if t.requires_grad}
        versions = [t._version for t in tensors]
        rule = RULES.get(func)
        # A rule that fits most kernels may not fit this one: then dropout is repeated as it was.
        repeats = rule is None or func is F.dropout
        state = RandomState.capture(self._device, torch_only=True) if repeats else None
        out = func(*args, **kwargs)
        if self.tape.broken is None:
            self._write(func, (args, kwargs), out, (tensors, versions, slots), state)
        return out

    def finish(self, losses: Tensor) -> Tape:
        """The tape that ends in ``losses``, shape (n,)."""
        if self.tape.broken is None:
            self.tape.losses = self._slot(losses)
        self._seen.clear()
        return self.tape

    def _note_inplace(self, out: Tensor) -> None:
        # requires_grad_() on a fresh tensor is a new leaf; anything else came from nowhere.
        if not out.is_leaf:
            self.tape.broken = "a graph began inside an operation"

    def _slot(self, tensor: Tensor) -> int:
        """The slot of a tensor that requires grad; a new one for a leaf."""
        known = self._seen.get(id(tensor))
        if known is not None and known[0]() is tensor:
            if known[2] != tensor._version:
                self.tape.broken = "a tensor was changed in place through another name"
            return known[1]
        slot = self._new_slot(tensor)
        if tensor.is_leaf:
            self.tape.leaves[slot] = tensor
        else:
            self.tape.broken = "a tensor comes from an operation that the tape cannot see"
        return slot

    def _new_slot(self, tensor: Tensor) -> int:
        self._slots += 1
        self._seen[id(tensor)] = (weakref.ref(tensor), self._slots, tensor._version)
        return self._slots

    def _write(
        self,
        func: Callable[..., Any],
        call: tuple[tuple[Any, ...], dict[str, Any]],
        out: Any,
        read: tuple[list[Tensor], list[int], dict[int, int]],
        state: RandomState | None,
    ) -> None:
        tensors, versions, slots = read
        outputs = [t for t in tensors_in(out) if t.requires_grad]
        changed = any(t._version != v for t, v in zip(tensors, versions))
        if not outputs or (not changed and any(out is t for t in tensors)):
            return  # nothing differentiable, or the very tensor that came in
        rule = RULES.get(func)
        if rule is None and func not in TESTS:  # it may look at how its arguments lie in memory
            self.tape.any_layout = False
        linear: Linearised | None = None
        if rule is not None:
            try:
                linear = rule(out, *call[0], **call[1])
            except TypeError:  # an argument the rule does not know
                linear = None
        if linear is None:
            # BatchNorm statistics are constants and may move; a differentiable value may not.
            if any(t._version != v and t.requires_grad for t, v in zip(tensors, versions)):
                self.tape.broken = f"{getattr(func, '__name__', func)} works in place"
                return
            linear = again(func, call, tensors, out, state)
        inputs = tuple(slots.get(id(t)) for t in linear.inputs)
        row = self._place(func, call, out, {i for i in inputs if i is not None}, slots)
        results = tuple(self._new_slot(t) for t in outputs)
        edge = None
        if row:
            self.tape.rows.update(results)
            if any(i is not None and i not in self.tape.rows for i in inputs):
                edge = get_gradient_edge(outputs[0])
                if len(outputs) > 1:
                    self.tape.coupled = "a parametrised operation with several results"
        saved = tuple((t, t._version) for t in linear.saved)
        ends = tuple(get_gradient_edge(t) for t in outputs)
        how = replace(linear, inputs=())  # the tape keeps no value alive that nobody needs
        self.tape.entries.append(Entry(inputs, results, how, saved, edge, ends))

    def _place(
        self,
        func: Callable[..., Any],
        call: tuple[tuple[Any, ...], dict[str, Any]],
        out: Any,
        inputs: set[int],
        slots: Mapping[int, int],
    ) -> bool:
        """Whether the result has one row per example; notes where rows meet."""

        def is_row(tensor: Tensor) -> bool:
            return slots.get(id(tensor), 0) in self.tape.rows

        if inputs & self.tape.rows:
            if self.tape.coupled is None and not stays_in_rows(func, call, out, is_row, self._n):
                self.tape.coupled = getattr(func, "__name__", str(func))
            return True
        return makes_rows(func, call, out, self._n)

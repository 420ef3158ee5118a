"""What an optimizer's next step would do, as a function without side effects, and the way back.

SGD is written out. Every other optimizer whose step acts on each number by itself is run by torch's
own code on copies. The derivative of such a step is a diagonal, and dual numbers through the same
code give it: a tangent of ones reads off one column, so no rule has derivatives of its own.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import torch
import torch.autograd.forward_ad as fw
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from metasp.errors import UserError
from metasp.influence.fallback import dual, tangent_of

Named = dict[str, Tensor]
State = dict[str, Any]
"""What the optimizer keeps for each parameter, by name."""

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.Adamax, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta,
    torch.optim.ASGD,
)  # fmt: skip
"""Optimizers whose step moves each number by a smooth function of its own gradient and state."""


class Adjoint(NamedTuple):
    """Derivatives of the goals for what one step reads, each of shape (goals, *shape).

    The gradient that the step read depends on ``theta`` too: that part is the caller's to add,
    with ``decay`` times ``gradient`` for a weight decay that is part of the gradient.
    """

    gradient: Named
    theta: Named
    state: State | None
    decay: Mapping[str, float]


class Stepped(NamedTuple):
    """Parameters and state after a step, and the way back through it.

    ``back(theta, state, whole)`` takes the adjoints after the step, None for a state that nothing
    depends on. ``whole`` says whether those of theta and state before the step are needed too.
    """

    theta: Named
    state: State
    back: Callable[[Named, State | None, bool], Adjoint]


class Update(Protocol):
    """The steps of one optimizer for named parameters."""

    @property
    def state(self) -> State: ...

    def restrict(self, names: Iterable[str]) -> Self:
        """The same for some of the names."""
        ...

    def with_lr(self, lr: float) -> Self:
        """The same with another learning rate everywhere."""
        ...

    def cold(self) -> Self:
        """The same before the first step."""
        ...

    def step(self, theta: Named, grads: Named, state: State) -> Stepped:
        """One step from ``theta``; all that it gives are new tensors."""
        ...


@dataclass(frozen=True)
class Rule:
    """One step of ``torch.optim.SGD`` for one parameter."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_lr(self.lr)

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "Rule":
        """The rule of one parameter group."""
        return cls(
            float(group["lr"]),
            float(group["momentum"]),
            float(group["dampening"]),
            bool(group["nesterov"]),
            float(group["weight_decay"]),
        )

    def step(self, theta: Tensor, grad: Tensor, buffer: Tensor | None) -> tuple[Tensor, Any]:
        """The next value and momentum buffer, both new tensors of the shape of ``theta``."""
        if self.weight_decay:
            grad = grad.add(theta, alpha=self.weight_decay)
        if self.momentum:
            # torch's first step takes the gradient as it is, without dampening.
            buffer = (
                grad
                if buffer is None
                else (buffer * self.momentum).add_(grad, alpha=1.0 - self.dampening)
            )
            grad = grad.add(buffer, alpha=self.momentum) if self.nesterov else buffer
        return theta.sub(grad, alpha=self.lr), buffer

    def adjoint(self, p: Tensor, q: Tensor | None, first: bool) -> tuple[Tensor, Tensor | None]:
        """Back through one step: the adjoint of its gradient and the one of its momentum.

        ``p`` and ``q`` are the adjoints of the parameter and of the momentum after the step;
        ``first`` says that no momentum buffer existed before it.
        """
        if not self.momentum:
            return p * -self.lr, None
        keep = 1.0 if first else 1.0 - self.dampening
        inner = p * (-self.lr * (self.momentum if self.nesterov else 1.0))
        if q is not None:
            inner = inner + q
        s = inner * keep
        if self.nesterov:
            s = s.sub(p, alpha=self.lr)
        return s, inner * self.momentum


@dataclass(frozen=True)
class SGDUpdate:
    """`Rule` for each parameter; the state is its momentum buffer, or None."""

    rules: dict[str, Rule]
    state: State

    def restrict(self, names: Iterable[str]) -> Self:
        kept = set(names)
        rules = {k: v for k, v in self.rules.items() if k in kept}
        return replace(self, rules=rules, state={k: self.state[k] for k in rules})

    def with_lr(self, lr: float) -> Self:
        return replace(self, rules={k: replace(r, lr=lr) for k, r in self.rules.items()})

    def cold(self) -> Self:
        return replace(self, state=dict.fromkeys(self.rules))

    def step(self, theta: Named, grads: Named, state: State) -> Stepped:
        moved: Named = {}
        kept: State = {}
        for name, rule in self.rules.items():
            moved[name], kept[name] = rule.step(theta[name], grads[name], state[name])
        fresh = {name for name, buffer in state.items() if buffer is None}

        def back(p: Named, q: State | None, whole: bool) -> Adjoint:
            s: Named = {}
            before: State = {}
            for name, rule in self.rules.items():
                after = None if q is None else q[name]
                s[name], before[name] = rule.adjoint(p[name], after, name in fresh)
            decay = {name: rule.weight_decay for name, rule in self.rules.items()}
            return Adjoint(s, p, before, decay)

        return Stepped(moved, kept, back)


@dataclass(frozen=True)
class TorchUpdate:
    """The step of an optimizer of torch, by its own code; the state has a dictionary for each
    parameter, as the optimizer has."""

    kind: type[Optimizer]
    groups: tuple[tuple[dict[str, Any], tuple[str, ...]], ...]  # settings, and whose they are
    state: State

    def restrict(self, names: Iterable[str]) -> Self:
        kept = set(names)
        groups = tuple(
            (settings, tuple(n for n in own if n in kept)) for settings, own in self.groups
        )
        return replace(
            self, groups=groups, state={k: v for k, v in self.state.items() if k in kept}
        )

    def with_lr(self, lr: float) -> Self:
        return replace(self, groups=tuple(({**s, "lr": lr}, names) for s, names in self.groups))

    def cold(self) -> Self:
        return replace(self, state={name: {} for name in self.state})

    def step(self, theta: Named, grads: Named, state: State) -> Stepped:
        moved, kept = self._take(theta, grads, state)

        def back(p: Named, q: State | None, whole: bool) -> Adjoint:
            def adjoint(which: str) -> Named:
                return self._column(which, (theta, grads, state), (p, q))

            gradient = adjoint(GRADIENT)
            if not whole:
                return Adjoint(gradient, p, None, {})
            keys = {k for name in self.state for k in with_slopes(state[name], theta[name])}
            columns = {key: adjoint(key) for key in sorted(keys)}
            before = {name: {key: column[name] for key, column in columns.items()
                             if key in state[name]} for name in self.state}  # fmt: skip
            return Adjoint(gradient, adjoint(THETA), before, dict.fromkeys(self.state, 0.0))

        return Stepped(moved, kept, back)

    def _column(
        self, which: str, read: tuple[Named, Named, State], after: tuple[Named, State | None]
    ) -> Named:
        """The adjoint of one of the things that the step read, from those of all that it left."""
        (theta, grads, state), (p, q) = read, after
        with fw.dual_level():
            if which == THETA:
                theta = {name: ones(theta[name]) for name in self.state}
            elif which == GRADIENT:
                grads = {name: ones(grads[name]) for name in self.state}
            else:
                state = {name: {**state[name], which: ones(state[name][which])}
                         if which in with_slopes(state[name], theta[name]) else state[name]
                         for name in self.state}  # fmt: skip
            moved, kept = self._take(theta, grads, state)
            found = {}
            for name, value in moved.items():
                found[name] = p[name] * tangent_of(value)
                for key, adjoint in ({} if q is None else q[name]).items():
                    found[name] = found[name].addcmul(adjoint, tangent_of(kept[name][key]))
        return found

    def _take(self, theta: Named, grads: Named, state: State) -> tuple[Named, State]:
        """The step on copies of parameters and state."""
        copies = {name: theta[name].clone() for name in self.state}
        held: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        for name, copy in copies.items():
            copy.grad = grads[name]
            if state[name]:
                held[copy] = {key: v.clone() if isinstance(v, Tensor) else v
                              for key, v in state[name].items()}  # fmt: skip
        groups = [
            {**settings, "params": [copies[name] for name in names]}
            for settings, names in self.groups
        ]
        twin = object.__new__(self.kind)
        defaults = self.groups[0][0]
        twin.__setstate__({"defaults": defaults, "state": held, "param_groups": groups})
        # Below torch's wrappers, which would call the hooks that others set on every optimizer.
        with torch.no_grad(), _Differentiable():
            inspect.unwrap(self.kind.step)(twin)
        for copy in copies.values():
            copy.grad = None
        return copies, {name: held[copy] for name, copy in copies.items()}


THETA, GRADIENT = "parameter", "gradient"  # beside the keys of an optimizer's state


def ones(value: Tensor) -> Tensor:
    """The value as a dual number whose tangent is one everywhere."""
    return dual(value.detach(), torch.ones_like(value))


def with_slopes(entry: Mapping[str, Any], like: Tensor) -> list[str]:
    """The keys of a parameter's state that hold a number for each of its numbers. (Counts of steps
    may look so where the parameter has no dimension; nothing depends smoothly on them.)"""
    return [k for k, v in entry.items() if isinstance(v, Tensor) and v.shape == like.shape]


_SCALING = (
    Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.div, Tensor.__truediv__,
)  # fmt: skip
_SCALING_IN_PLACE = (Tensor.mul_, Tensor.div_)


class _Differentiable(TorchFunctionMode):
    """Lets dual numbers through the few calls of torch's optimizers that would stop them, and
    through a product with a number, for which torch takes a detour, at the speed of others."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        out = kwargs.pop("out", None)
        if out is not None:
            return out.copy_(func(*args, **kwargs))
        if func is Tensor.detach:
            return args[0]
        if func in (Tensor.sqrt, Tensor.sqrt_):
            return root(args[0])
        by_number = len(args) == 2 and isinstance(args[1], float | int)
        if by_number and (func in _SCALING or func in _SCALING_IN_PLACE):
            primal, tangent = fw.unpack_dual(args[0])  # type: ignore[no-untyped-call]
            if tangent is not None:
                scaled = [func(part, args[1]) for part in (primal, tangent)]
                return args[0] if func in _SCALING_IN_PLACE else dual(*scaled)
        if by_number and func is Tensor.add_:
            with fw._set_fwd_grad_enabled(False):
                return func(*args)
        return func(*args, **kwargs)


def root(x: Tensor) -> Tensor:
    """The square root. Its slope at zero is zero: there x is the square of gradients that are zero,
    and what stands above the root in every step is zero as well."""
    primal, tangent = fw.unpack_dual(x)  # type: ignore[no-untyped-call]
    value: Tensor = primal.sqrt()
    if tangent is None:
        return value
    slope = (tangent / value).mul_(0.5).masked_fill_(value == 0, 0.0)
    return dual(value, slope)


def check_lr(lr: float) -> None:
    if not 0.0 <= lr < float("inf"):
        raise UserError(f"lr is {lr}: give a finite learning rate that is not negative.")


def clipped(grads: Named, limit: float) -> tuple[Named, Callable[[Named], Named]]:
    """Gradients shortened as by ``clip_grad_norm_``, and what that does to adjoints."""
    norm = torch.stack([g.norm() for g in grads.values()]).norm()
    scale = limit / (norm + 1e-6)
    if scale >= 1:
        return grads, lambda s: s

    def unclip(s: Named) -> Named:
        along = torch.stack([(s[k] * g).flatten(1).sum(1) for k, g in grads.items()]).sum(0)
        factor = along * (-scale / ((norm + 1e-6) * norm))
        return {k: scale * s[k] + factor.view(-1, *[1] * g.dim()) * g for k, g in grads.items()}

    return {k: g * scale for k, g in grads.items()}, unclip


def update_of(optimizer: Optimizer, named: Mapping[str, Tensor]) -> Update:
    """How the optimizer moves these parameters, from its state as it is."""
    kind = elementwise(optimizer)
    names = {id(p): name for name, p in named.items()}
    states = {name: dict(optimizer.state.get(p, {})) for name, p in named.items()}
    groups = [
        (settings_of(group), tuple(names[id(p)] for p in group["params"] if id(p) in names))
        for group in optimizer.param_groups
    ]
    for settings, _ in groups:
        check_lr(settings["lr"])
    if kind is torch.optim.SGD and not any(settings["maximize"] for settings, _ in groups):
        rules = {name: Rule.of(settings) for settings, own in groups for name in own}
        buffers = {name: states[name].get("momentum_buffer") for name in named}
        return SGDUpdate({name: rules[name] for name in named}, buffers)
    return TorchUpdate(kind, tuple(groups), states)


STEPS_LIKE = "steps_like"
"""Where a class that takes the step of another, written otherwise, names that one."""


def elementwise(optimizer: Optimizer) -> type[Optimizer]:
    """The class whose step the optimizer takes, if it is one that we can differentiate."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UserError(
            f"the {type(optimizer).__name__} has hooks around its step, for instance to clip "
            "gradients, which the pseudo step would not take: remove them and clip with "
            "clip_norm=, or use a method that simulates no steps, such as er."
        )
    patched: Any = vars(optimizer).get("step")
    while getattr(patched, "_wrapped_by_lr_sched", False):  # it counts the steps, and takes them
        patched = patched.__wrapped__
    if getattr(patched, "__func__", patched) not in (None, type(optimizer).step):
        raise UserError(
            f"the step of this {type(optimizer).__name__} was replaced, and the pseudo step would "
            "not take the new one: leave optimizer.step as it is, or give lr= instead."
        )
    base = getattr(type(optimizer), STEPS_LIKE, type(optimizer))
    for kind in reversed(ELEMENTWISE):  # an AdamW is an Adam too
        if issubclass(base, kind) and base.step is kind.step:
            return kind
    *most, last = (kind.__name__ for kind in ELEMENTWISE)
    raise UserError(
        f"the pseudo step cannot follow {type(optimizer).__name__}, whose step is not known to be "
        "a smooth function of each parameter's own gradient: use "
        f"{', '.join(most)} or {last} of torch.optim, or a method that simulates no steps, "
        "such as er."
    )


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's settings as plain numbers, for the variant of the step that works on one tensor
    after the other with numbers in float64."""
    numbers = {key: value for key, value in group.items() if key != "params"}
    for key, value in numbers.items():
        if isinstance(value, Tensor):
            numbers[key] = float(value)
        elif isinstance(value, tuple):
            numbers[key] = tuple(float(v) if isinstance(v, Tensor) else v for v in value)
    loops = ("foreach", "fused", "capturable", "differentiable")
    return {**numbers, **dict.fromkeys(loops, False)}

"""An optimizer's next step as a function without side effects, and the way back through it.

SGD is written out. Every other optimizer whose step acts on each number by itself is run by torch's
own code on copies. The derivative of such a step is a diagonal, and dual numbers through the same
code give it: a tangent of ones reads off one column, so no rule has derivatives of its own.
"""

import inspect
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import torch
import torch.autograd.forward_ad as fw
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from metasp.errors import UserError
from metasp.influence.fallback import dual, tangent_of

Named = dict[str, Tensor]
State = dict[str, dict[str, Any]]
"""Stored tensors and numbers of an optimizer for each parameter, by name."""
Groups = tuple[tuple[dict[str, Any], tuple[str, ...]], ...]
"""The settings of each parameter group, and the names of its parameters."""

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.Adamax, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta,
    torch.optim.ASGD,
)  # fmt: skip
"""Optimizers whose step moves each number by a smooth function of its own gradient and state."""


class Adjoint(NamedTuple):
    """Derivatives of the goals for what one step reads, each of shape (goals, *shape).

    The gradient that the step read depends on ``theta`` too: that part is the caller's to add.
    """

    gradient: Named
    theta: Named
    state: State


class Stepped(NamedTuple):
    """Parameters and state after a step, and the way back through it.

    ``back(theta, state, earlier)`` takes the adjoints after the step; the state's are empty where
    nothing depends on it. ``earlier`` says whether those of theta and state before the step are
    needed too.
    """

    theta: Named
    state: State
    back: Callable[[Named, State, bool], Adjoint]


@dataclass(frozen=True)
class Update(ABC):
    """The steps of one optimizer for named parameters."""

    groups: Groups
    state: State

    def restrict(self, names: Iterable[str]) -> Self:
        """Return the same for some of the names."""
        chosen = set(names)
        groups = [(settings, tuple(n for n in members if n in chosen))
                  for settings, members in self.groups]  # fmt: skip
        state = {name: values for name, values in self.state.items() if name in chosen}
        return replace(self, groups=tuple(groups), state=state)

    def with_lr(self, lr: float) -> Self:
        """Return the same with another learning rate everywhere."""
        check_lr(lr)
        return replace(self, groups=tuple(({**s, "lr": lr}, names) for s, names in self.groups))

    def cold(self) -> Self:
        """Return the same before the first step."""
        return replace(self, state={name: {} for name in self.state})

    @abstractmethod
    def step(self, theta: Named, grads: Named, state: State) -> Stepped:
        """Take one step from ``theta``; all that it gives are new tensors."""


class SGDUpdate(Update):
    """The step of ``torch.optim.SGD``, written out."""

    def step(self, theta: Named, grads: Named, state: State) -> Stepped:
        """Take a step: g ← g + λθ, m ← μm + (1 − τ)g, θ ← θ − lr·m, or by Nesterov
        θ − lr·(g + μm)."""
        moved: Named = {}
        after: State = {}
        for settings, names in self.groups:
            momentum, decay = settings["momentum"], settings["weight_decay"]
            for name in names:
                grad, buffer = grads[name], state[name].get(BUFFER)
                if decay:
                    grad = grad.add(theta[name], alpha=decay)
                if momentum:
                    # torch's first step takes the gradient as it is, without dampening.
                    damped = 1.0 - settings["dampening"]
                    first = buffer is None
                    buffer = grad if first else (buffer * momentum).add_(grad, alpha=damped)
                    grad = grad.add(buffer, alpha=momentum) if settings["nesterov"] else buffer
                moved[name] = theta[name].sub(grad, alpha=settings["lr"])
                after[name] = {BUFFER: buffer}
        return Stepped(moved, after, partial(self._back, state))

    def _back(self, state: State, p: Named, q: State, _: bool) -> Adjoint:
        """Return the adjoints before a step from p and q, those of θ and m after it:

        s = ∂/∂g = (1 − τ)(q − lr·p), ∂/∂m = μ(q − lr·p), ∂/∂θ = p + λs."""
        adjoint = Adjoint({}, {}, {})
        for settings, names in self.groups:
            lr, momentum, decay = settings["lr"], settings["momentum"], settings["weight_decay"]
            for name in names:
                s = p[name] * (-lr * (momentum if settings["nesterov"] else 1.0))
                if momentum:
                    if name in q:
                        s = s + q[name][BUFFER]
                    adjoint.state[name] = {BUFFER: s * momentum}
                    first = state[name].get(BUFFER) is None
                    s = s * (1.0 if first else 1.0 - settings["dampening"])
                    if settings["nesterov"]:
                        s = s.sub(p[name], alpha=lr)
                adjoint.gradient[name] = s
                adjoint.theta[name] = p[name] + s * decay if decay else p[name]
        return adjoint


BUFFER = "momentum_buffer"


@dataclass(frozen=True)
class TorchUpdate(Update):
    """The step of an optimizer of torch, by its own code."""

    kind: type[Optimizer]

    def step(self, theta: Named, grads: Named, state: State) -> Stepped:
        """Take a step by the optimizer's own code. The way back reads off columns by dual
        numbers."""
        moved, after = self._take(theta, grads, state)

        def back(p: Named, q: State, earlier: bool) -> Adjoint:
            column = partial(self._column, (theta, grads, state), (p, q))
            if not earlier:
                return Adjoint(column(GRADIENT), p, {})
            before: State = {name: {} for name in self.state}
            keys: set[str] = set()
            for name in before:
                keys.update(with_slopes(state[name], theta[name]))
            for key in sorted(keys):
                adjoints = column(key)
                for name in before:
                    if key in state[name]:
                        before[name][key] = adjoints[name]
            return Adjoint(column(GRADIENT), column(THETA), before)

        return Stepped(moved, after, back)

    def _column(
        self, before: tuple[Named, Named, State], after: tuple[Named, State], which: str
    ) -> Named:
        """Return the adjoint of one of the things that the step read, from those of all that it
        left."""
        (theta, grads, state), (p, q) = before, after
        with fw.dual_level():
            if which == THETA:
                theta = {name: ones(theta[name]) for name in self.state}
            elif which == GRADIENT:
                grads = {name: ones(grads[name]) for name in self.state}
            else:
                state = {name: {**state[name], which: ones(state[name][which])}
                         if which in with_slopes(state[name], theta[name]) else state[name]
                         for name in self.state}  # fmt: skip
            moved, left = self._take(theta, grads, state)
            column = {}
            for name, value in moved.items():
                column[name] = p[name] * tangent_of(value)
                for key, adjoint in q.get(name, {}).items():
                    column[name] = column[name].addcmul(adjoint, tangent_of(left[name][key]))
        return column

    def _take(self, theta: Named, grads: Named, state: State) -> tuple[Named, State]:
        """Take the step on copies of parameters and state."""
        copies = {name: theta[name].clone() for name in self.state}
        stored: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        for name, copy in copies.items():
            copy.grad = grads[name]
            if state[name]:
                stored[copy] = {key: v.clone() if isinstance(v, Tensor) else v
                                for key, v in state[name].items()}  # fmt: skip
        groups = [
            {**settings, "params": [copies[name] for name in names]}
            for settings, names in self.groups
        ]
        twin = object.__new__(self.kind)
        defaults = self.groups[0][0]
        twin.__setstate__({"defaults": defaults, "state": stored, "param_groups": groups})
        # Below torch's wrappers, which would call the hooks that others set on every optimizer.
        with torch.no_grad(), _Differentiable():
            inspect.unwrap(self.kind.step)(twin)
        for copy in copies.values():
            copy.grad = None
        return copies, {name: stored[copy] for name, copy in copies.items()}


THETA, GRADIENT = "parameter", "gradient"  # beside the keys of an optimizer's state


def ones(value: Tensor) -> Tensor:
    """Return the value as a dual number whose tangent is one everywhere."""
    return dual(value.detach(), torch.ones_like(value))


def with_slopes(stored: Mapping[str, Any], like: Tensor) -> list[str]:
    """Return the keys of a parameter's state that hold a number for each of its numbers. (Counts of
    steps may look so where the parameter has no dimension; nothing depends smoothly on them.)"""
    return [k for k, v in stored.items() if isinstance(v, Tensor) and v.shape == like.shape]


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
    """Return the square root. Its slope at zero is zero: there x is the square of gradients that
    are zero, and what stands above the root in every step is zero as well."""
    primal, tangent = fw.unpack_dual(x)  # type: ignore[no-untyped-call]
    value: Tensor = primal.sqrt()
    if tangent is None:
        return value
    slope = (tangent / value).mul_(0.5).masked_fill_(value == 0, 0.0)
    return dual(value, slope)


def check_lr(lr: float) -> None:
    """Raise unless it is a learning rate."""
    if not 0.0 <= lr < float("inf"):
        raise UserError(f"lr is {lr}: give a finite learning rate that is not negative.")


def clipped(grads: Named, limit: float) -> tuple[Named, Callable[[Named], Named]]:
    """Return gradients shortened as by ``clip_grad_norm_``, and what that does to adjoints."""
    norm = torch.stack([g.norm() for g in grads.values()]).norm()
    scale = limit / (norm + 1e-6)
    if scale >= 1:
        return grads, lambda s: s

    def unclip(s: Named) -> Named:
        """Return the adjoints (goals, *shape) of the gradients before they were shortened."""
        along = torch.stack([(s[k] * g).flatten(1).sum(1) for k, g in grads.items()]).sum(0)
        factor = along * (-scale / ((norm + 1e-6) * norm))
        return {k: scale * s[k] + factor.view(-1, *[1] * g.dim()) * g for k, g in grads.items()}

    return {k: g * scale for k, g in grads.items()}, unclip


def sgd(lr: float, names: Iterable[str]) -> Update:
    """Return plain gradient descent of named parameters."""
    check_lr(lr)
    settings = {"lr": lr, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}
    return SGDUpdate(((settings, tuple(names)),), {name: {} for name in names})


def update_of(optimizer: Optimizer, named: Mapping[str, Tensor]) -> Update:
    """Return how the optimizer moves these parameters, from its state as it is."""
    kind = elementwise(optimizer)
    names = {id(p): name for name, p in named.items()}
    state = {name: dict(optimizer.state.get(p, {})) for name, p in named.items()}
    groups: Groups = tuple(
        (settings_of(group), tuple(names[id(p)] for p in group["params"] if id(p) in names))
        for group in optimizer.param_groups
    )
    for settings, _ in groups:
        check_lr(settings["lr"])
    if kind is torch.optim.SGD and not any(settings["maximize"] for settings, _ in groups):
        return SGDUpdate(groups, state)
    return TorchUpdate(groups, state, kind)


STEPS_LIKE = "steps_like"
"""Where a class that takes the step of another, written otherwise, names that one."""


def elementwise(optimizer: Optimizer) -> type[Optimizer]:
    """Return the class whose step the optimizer takes, or refuse it if its step has no derivative
    that we know."""
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
    """Return a group's settings as plain numbers, for the variant of the step that works on one
    tensor after the other with numbers in float64."""
    numbers = {key: value for key, value in group.items() if key != "params"}
    for key, value in numbers.items():
        if isinstance(value, Tensor):
            numbers[key] = float(value)
        elif isinstance(value, tuple):
            numbers[key] = tuple(float(v) if isinstance(v, Tensor) else v for v in value)
    loops = ("foreach", "fused", "capturable", "differentiable")
    return {**numbers, **dict.fromkeys(loops, False)}

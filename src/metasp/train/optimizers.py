"""Optimizers by name, their state as tensors, and learning rates that follow a schedule."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from metasp.errors import UserError
from metasp.influence.updates import STEPS_LIKE
from metasp.types import State


@dataclass(frozen=True)
class Kind:
    """An optimizer that a run may ask for; without a default of its own it has the method's."""

    make: type[Optimizer]
    lr: float | None = None
    weight_decay: float | None = None
    momentum: bool = False  # whether it has one

    def build(self, params: Any, lr: float, momentum: float, weight_decay: float) -> Optimizer:
        more = {"momentum": momentum} if self.momentum else {}
        make: Callable[..., Optimizer] = without_compiler(self.make)
        return make(params, lr=lr, weight_decay=weight_decay, **more)


def without_compiler(kind: type[Optimizer]) -> type[Optimizer]:
    """The same optimizer, step for step, that does not load torch's compiler. Torch wraps these
    methods to keep the compiler out of them, and loads it, which takes a second, to tell it so."""
    kept_out = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    body = {name: inspect.unwrap(getattr(kind, name)) for name in kept_out}
    body["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**body, STEPS_LIKE: kind, "__doc__": kind.__doc__})


OPTIMIZERS = {
    "sgd": Kind(torch.optim.SGD, momentum=True),
    "adam": Kind(torch.optim.Adam, 1e-3, 0.0),
    "adamw": Kind(torch.optim.AdamW, 1e-3, 0.01),
    "nadam": Kind(torch.optim.NAdam, 1e-3, 0.0),
    "rmsprop": Kind(torch.optim.RMSprop, 1e-3, 0.0, momentum=True),
    "adagrad": Kind(torch.optim.Adagrad, 1e-2, 0.0),
}
"""Their learning rates and decays are torch's own but for RMSprop's rate, which is Adam's."""


def check_momentum(name: str, momentum: float | None) -> None:
    if momentum and not OPTIMIZERS[name].momentum:
        raise UserError(f"{name} has no momentum of its own: leave it out, or use sgd or rmsprop.")


class OptimizerState:
    """What an optimizer keeps for its parameters, as tensors, to the bit: torch's own `state_dict`
    would turn counters into the type of the parameter."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> State:
        """Return tensors by parameter and name; a plain number is one under a name that says so."""
        tensors: State = {}
        for index, parameter in enumerate(_parameters(self.optimizer)):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{index}/{name}"] = value
                elif isinstance(value, bool | int | float):
                    tensors[f"{index}/{name}/number"] = torch.tensor(value, dtype=_exact(value))
                elif value is not None:
                    raise UserError(
                        f"{type(self.optimizer).__name__} keeps a {type(value).__name__} ({name}), "
                        "which cannot be stored: use an optimizer that keeps tensors and numbers."
                    )
        return tensors

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        parameters = _parameters(self.optimizer)
        self.optimizer.state.clear()
        for key, value in state.items():
            index, name, *number = key.split("/")
            parameter = parameters[int(index)]
            stored = value.item() if number else value.clone()
            if isinstance(stored, Tensor) and stored.dim():
                stored = stored.to(parameter.device)
            self.optimizer.state[parameter][name] = stored


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [*chain.from_iterable(group["params"] for group in optimizer.param_groups)]


def _exact(value: bool | int | float) -> torch.dtype:
    return torch.float64 if isinstance(value, float) else torch.int64


@dataclass(frozen=True)
class LearningRate:
    """Constant, or dropped by a factor at given epochs of each task."""

    drop_at: tuple[int, ...] = ()
    drop: float = 0.1

    def at(self, start: float, epoch: int) -> float:
        return start * self.drop ** sum(epoch >= mark for mark in self.drop_at)


class Schedule:
    """A scheduler of torch that begins anew with each task and moves with each epoch or step.

    Where it stands is a count: to stand somewhere it is made anew and moved so often. So nothing of
    it needs to be stored, and what it is made of may be any code.
    """

    def __init__(
        self, make: Callable[[Optimizer], LRScheduler], every: str, optimizer: Optimizer
    ) -> None:
        self.make, self.every, self.optimizer = make, every, optimizer
        self._given = [_numbers(group) for group in optimizer.param_groups]
        self.stand_at(0)

    def stand_at(self, count: int) -> None:
        """As after `count` moves of this task."""
        for group, given in zip(self.optimizer.param_groups, self._given):
            for key in _numbers(group).keys() - given.keys():
                del group[key]  # such as initial_lr
            group.update(given)
        try:
            self.scheduler = self.make(self.optimizer)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"scheduler cannot be made ({error}): give a function from the optimizer to a "
                "scheduler, for instance lambda o: torch.optim.lr_scheduler.StepLR(o, 5)."
            ) from error
        if not isinstance(self.scheduler, LRScheduler) or isinstance(
            self.scheduler, ReduceLROnPlateau
        ):
            raise UserError(
                f"scheduler returned a {type(self.scheduler).__name__}: return a scheduler of "
                "torch.optim.lr_scheduler that needs nothing but the count of its steps."
            )
        with warnings.catch_warnings():  # that the optimizer took no step in between
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(count):
                self.scheduler.step()

    def move(self) -> None:
        try:
            self.scheduler.step()
        except ValueError as error:  # one that knows its end
            raise UserError(
                f"the scheduler cannot go on ({error}): make it for as many moves as a task has, "
                f"one per {self.every}."
            ) from error


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}

"""State that survives a kill: each part of a run names its attributes once, and has them stored,
restored and forgotten."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from metasp import trees
from metasp.types import Batch, State

Value = TypeVar("Value")


@runtime_checkable
class HasState(Protocol):
    """What a trainer collects: everything that a part must keep, as tensors by name."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State, /) -> Any: ...


class Stateful:
    """A part whose state is made of the attributes that it names in `stored`: tensors, numbers,
    lists of whole numbers, batches, dictionaries of tensors, and what has a `state_dict` itself.
    None is no tensor or batch yet. The rows of a tensor `x` that belong to examples have their ids
    in `x_ids`, which is stored too, so that `forget` can drop them."""

    stored: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> State:
        """Return all that must survive a kill, as tensors by name."""
        state: State = {}
        for name in self.stored:
            value = getattr(self, name)
            if isinstance(value, HasState):
                state |= under(name, value.state_dict())
            elif isinstance(value, Batch):
                state |= under(name, batch_state(value))
            elif isinstance(value, dict):
                state |= under(name, value)
            elif value is not None:
                state[name] = as_tensor(value)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        """Stand where `state` was taken."""
        for name in self.stored:
            now = getattr(self, name)
            if isinstance(now, HasState):
                now.load_state_dict(below(name, state))
            elif isinstance(now, dict):
                setattr(self, name, {key: t.clone() for key, t in below(name, state).items()})
            elif isinstance(now, bool | int | float):
                setattr(self, name, type(now)(state[name].item()))
            elif isinstance(now, list):
                setattr(self, name, state[name].tolist())
            elif name in state:
                setattr(self, name, state[name].clone())
            else:
                batch = below(name, state)
                setattr(self, name, batch_from(batch) if batch else None)

    def forget(self, ids: Tensor) -> None:
        """Drop what is kept of the examples of these ids."""
        for name in self.stored:
            value = getattr(self, name)
            if isinstance(value, Batch):
                setattr(self, name, value.at(~torch.isin(value.ids, ids)))
            elif hasattr(value, "forget"):
                value.forget(ids)
            elif name.endswith("_ids") and value is not None:
                rows = ~torch.isin(value, ids)
                for column in {name, name.removesuffix("_ids")} & {*self.stored}:
                    setattr(self, column, getattr(self, column)[rows])


def as_tensor(value: Any) -> Any:
    """Return a number or a list of whole numbers as a tensor; anything else as it is."""
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    if isinstance(value, int):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.long) if isinstance(value, list) else value


def under(name: str, state: Mapping[str, Tensor]) -> State:
    """Return the state of a part by the names that it has in the whole."""
    return {f"{name}/{key}": tensor for key, tensor in state.items()}


def below(name: str, state: Mapping[str, Value]) -> dict[str, Value]:
    """Return the state of a part out of that of the whole."""
    start = f"{name}/"
    return {key[len(start) :]: t for key, t in state.items() if key.startswith(start)}


def batch_state(batch: Batch) -> State:
    rest = {"labels": batch.labels, "ids": batch.ids}
    return {**trees.to_columns("inputs", batch.inputs), **rest}


def batch_from(state: Mapping[str, Tensor]) -> Batch:
    """Return a copy of the batch that `batch_state` was taken of."""
    inputs = trees.from_columns("inputs", state)
    assert inputs is not None
    copies = trees.each(Tensor.clone, inputs)
    return Batch(copies, state["labels"].clone(), state["ids"].clone())

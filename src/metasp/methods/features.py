"""What enters a model's head while it makes a pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from metasp.influence.splitting import all_rows
from metasp.types import as_rows


def head_of(model: nn.Module) -> nn.Module | None:
    """The layer that makes outputs of features: the attribute `head`, or else the model's last
    linear layer; None where it has neither."""
    named = getattr(model, "head", None)
    if isinstance(named, nn.Module):
        return named
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else None


@contextmanager
def features_seen(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what enters the model's head in each pass, or its outputs where no head is called,
    as rows (n, d)."""
    seen: list[Tensor] = []

    def entered(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(all_rows(as_rows(inputs[0])))

    def left(_: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
        if not seen:
            seen.append(as_rows(getattr(out, "logits", out)))

    handles = [model.register_forward_hook(left)]
    if (head := head_of(model)) is not None:
        handles.append(head.register_forward_pre_hook(entered))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()

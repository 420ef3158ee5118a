"""What a memory keeps of each example: one declaration per column, for everything that is done."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

EMPTY = -1

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Column:
    """One value per slot. A method or a selection that declares it needs to do nothing else: the
    memory writes, clears, forgets, checkpoints, restores, lists and widens it.

    `of` is "scalar", a shape, or "outputs" or "features": what the model says of an example or what
    its head sees, whose width is that of the first rows written. Outputs become wider when a head
    grows; older rows then hold `blank` in their new places. `blank` is also what an empty slot
    holds, and a slot whose writer gives no value."""

    name: str
    of: str | Shape = "scalar"
    dtype: torch.dtype = torch.float32
    blank: float = math.nan

    def __post_init__(self) -> None:
        if isinstance(self.of, str) and self.of not in ("scalar", "outputs", "features"):
            raise ValueError(
                f"column {self.name!r} is of {self.of!r}: say scalar, outputs, features or a shape."
            )
        if not self.dtype.is_floating_point and math.isnan(self.blank):
            object.__setattr__(self, "blank", 0)

    @property
    def scalar(self) -> bool:
        return self.of == "scalar"

    def empty(self, slots: int) -> Tensor:
        """The column of a memory that holds nothing; outputs and features have no width yet."""
        shape = () if self.scalar else (0,) if isinstance(self.of, str) else self.of
        return torch.full((slots, *shape), self.blank, dtype=self.dtype)

    def widened(self, values: Tensor, width: int) -> Tensor:
        """The same rows with `width` values each, unknown ones blank."""
        more = values.new_full((len(values), width - values.shape[1]), self.blank)
        return torch.cat([values, more], dim=1)

    def fitted(self, values: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        """New values and what is held, both as wide as the wider of the two."""
        values = values.detach().to(held)
        if isinstance(self.of, str) and not self.scalar:
            values = values.flatten(1) if values.dim() > 1 else values[:, None]
            width = max(values.shape[1], held.shape[1])
            if self.of == "features" and held.shape[1] not in (0, width):
                raise ValueError(f"column {self.name!r} held rows of another width before.")
            return self.widened(values, width), self.widened(held, width)
        return values, held


CORE = (
    Column("ids", dtype=torch.long, blank=EMPTY),
    Column("tasks", dtype=torch.long, blank=EMPTY),
    Column("entered", dtype=torch.long, blank=EMPTY),
    Column("influence", dtype=torch.float64),
    Column("pinned", dtype=torch.bool),
)
"""What every memory keeps beside inputs and labels."""

Values = Mapping[str, Tensor]
"""Values of columns by their names, aligned with the rows they are of."""

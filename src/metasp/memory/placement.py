"""A decision about the memory: which of the offered rows go into which slots."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from metasp.memory.columns import Values


@dataclass(frozen=True)
class Placement:
    """Row `chosen[i]` of what was offered goes into slot `slots[i]`; slots are all different.
    `columns` are the values of the selection's own columns for the chosen rows."""

    chosen: Tensor
    slots: Tensor
    columns: Values = field(default_factory=dict)

    @staticmethod
    def of(pairs: list[tuple[int, int]]) -> "Placement":
        """From (row, slot) decisions in order; a later one for the same slot overrides."""
        last: dict[int, int] = {}
        for row, slot in pairs:
            last.pop(slot, None)  # a slot decided again is written in the place of the later row
            last[slot] = row
        return Placement(
            torch.tensor(list(last.values()), dtype=torch.long),
            torch.tensor(list(last.keys()), dtype=torch.long),
        )

"""The memory, and the selections that decide what it keeps."""

from typing import TYPE_CHECKING

from metasp.lazy import lazily
from metasp.memory.selection import SELECTIONS, Selection, selection

if TYPE_CHECKING:
    from metasp.memory.buffer import Column, Memory, Offer, Placement

__getattr__ = lazily(__name__, dict.fromkeys(("Column", "Memory", "Offer", "Placement"), "buffer"))
__all__ = ["SELECTIONS", "Column", "Memory", "Offer", "Placement", "Selection", "selection"]

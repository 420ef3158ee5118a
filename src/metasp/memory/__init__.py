"""The memory and the decisions about what it keeps."""

from metasp.memory.buffer import Memory
from metasp.memory.placement import Placement
from metasp.memory.selection import SELECTIONS, Offer, Selection, selection

__all__ = ["SELECTIONS", "Memory", "Offer", "Placement", "Selection", "selection"]

"""Exact influence of training examples, for any ``nn.Module`` and any per-example loss."""

from metasp.influence.core import (
    Influence,
    example_influence,
    sp_influence,
)
from metasp.influence.fuse import Fused, fuse
from metasp.influence.ledger import Ledger
from metasp.influence.optimizers import Rule
from metasp.influence.origin import evaluate_at
from metasp.influence.parallel import Ranks
from metasp.influence.pseudo import virtual_parameters
from metasp.influence.recorded import Recorded, record

__all__ = [
    "Fused",
    "Influence",
    "Ledger",
    "Ranks",
    "Recorded",
    "Rule",
    "evaluate_at",
    "example_influence",
    "fuse",
    "record",
    "sp_influence",
    "virtual_parameters",
]

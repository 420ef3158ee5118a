"""Exact influence of training examples, for any ``nn.Module`` and any per-example loss."""

from metasp.influence.functional import with_parameters
from metasp.influence.matrix import influence_matrix
from metasp.influence.parallel import Ranks
from metasp.influence.pseudo_step import virtual_parameters
from metasp.influence.sharding import split_over_ranks
from metasp.influence.stability_plasticity import (
    Fused,
    Influence,
    example_influence,
    fuse,
    sp_influence,
)
from metasp.influence.tape import Recorded, record

__all__ = [
    "Fused",
    "Influence",
    "Ranks",
    "Recorded",
    "example_influence",
    "fuse",
    "influence_matrix",
    "record",
    "sp_influence",
    "split_over_ranks",
    "virtual_parameters",
    "with_parameters",
]

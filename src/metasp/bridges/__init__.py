"""Memory, replay and influence weights in the training of other libraries.

`metasp.bridges.lightning` and `metasp.bridges.transformers` need those libraries; both are made of
what is here."""

from metasp.bridges.rehearsal import Rehearsal

__all__ = ["Rehearsal"]

"""Rehearsal-based continual learning with example influence."""

import importlib
from typing import Any

__version__ = "0.1.0"

PUBLIC = {
    "ContinualLearner": "metasp.learner",
    "Ledger": "metasp.influence",
    "Memory": "metasp.memory",
    "RunSpec": "metasp.spec",
    "example_influence": "metasp.influence",
    "fuse": "metasp.influence",
    "run": "metasp.api",
    "sp_influence": "metasp.influence",
    "split": "metasp.benchmarks.python",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'metasp' has no attribute {name!r}")
    value = getattr(importlib.import_module(PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})

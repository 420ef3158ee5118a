"""Rehearsal-based continual learning with example influence."""

import importlib
from typing import Any

__version__ = "0.1.0"

PUBLIC = {"split": "metasp.benchmarks.python"}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'metasp' has no attribute {name!r}")
    return getattr(importlib.import_module(PUBLIC[name]), name)

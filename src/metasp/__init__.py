"""Rehearsal-based continual learning with example influence."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metasp.api import run as run
    from metasp.data.from_dataset import split as split
    from metasp.example_stats import ExampleStats as ExampleStats
    from metasp.influence import example_influence as example_influence
    from metasp.influence import sp_influence as sp_influence
    from metasp.influence.stability_plasticity import fuse as fuse
    from metasp.learner import ContinualLearner as ContinualLearner
    from metasp.learner import FrozenEncoder as FrozenEncoder
    from metasp.memory import Memory as Memory
    from metasp.spec import RunSpec as RunSpec

__version__ = "0.1.0"

PUBLIC = {
    "ContinualLearner": "metasp.learner",
    "FrozenEncoder": "metasp.learner",
    "ExampleStats": "metasp.example_stats",
    "Memory": "metasp.memory",
    "RunSpec": "metasp.spec",
    "example_influence": "metasp.influence",
    "fuse": "metasp.influence.stability_plasticity",
    "run": "metasp.api",
    "sp_influence": "metasp.influence",
    "split": "metasp.data.from_dataset",
}


if not TYPE_CHECKING:  # a checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        """The public names, imported when they are first asked for."""
        if name not in PUBLIC:
            raise AttributeError(f"module 'metasp' has no attribute {name!r}")
        value = getattr(importlib.import_module(PUBLIC[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})

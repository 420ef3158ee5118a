"""Things that are loaded when they are first used, so that a command that trains nothing never
waits for torch."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def load(target: str) -> Any:
    """Return what "package.module:name" stands for."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def lazily(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`: its public names by the modules that define them."""

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(f"{package}.{places[name]}:{name}")

    return find

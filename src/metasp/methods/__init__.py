"""The methods. METHODS is a dictionary you can read; adding one is one file and one line."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from metasp.errors import UserError, unknown
from metasp.methods.agem import AGEM
from metasp.methods.er import ER
from metasp.methods.finetune import Finetune
from metasp.methods.gdumb import GDumb
from metasp.methods.gem import GEM
from metasp.methods.gmed import GMED
from metasp.methods.gss import GSS
from metasp.methods.hal import HAL
from metasp.methods.joint import Joint
from metasp.methods.metasp import MetaSP
from metasp.methods.method import Method, Settings
from metasp.methods.mir import MIR

__all__ = ["METHODS", "Method", "Recipe", "Settings", "method", "method_settings", "settings_of"]


@dataclass(frozen=True)
class Recipe:
    """A method by its class and, for a variant of one, the choices that make it that variant."""

    kind: type[Method]
    preset: Mapping[str, Any] = field(default_factory=dict)
    selection_of: str | None = None

    @property
    def selection(self) -> str | None:
        """What its memory keeps unless told otherwise; None if it has no memory."""
        return self.selection_of or self.kind.selection

    @property
    def settings(self) -> Settings:
        """Its own settings, at their defaults."""
        return self.kind.Settings(**self.preset)


METHODS: dict[str, Recipe] = {
    "finetune": Recipe(Finetune),
    "joint": Recipe(Joint),
    "er": Recipe(ER),
    "gdumb": Recipe(GDumb),
    "gem": Recipe(GEM),
    "agem": Recipe(AGEM),
    "hal": Recipe(HAL),
    "mir": Recipe(MIR),
    "gss": Recipe(GSS),
    "gmed": Recipe(GMED),
    "metasp": Recipe(MetaSP),
    "metasp-rehsel": Recipe(MetaSP, selection_of="rehsel"),
    "metasp-only-s": Recipe(MetaSP, preset={"gamma": 1.0}),
    "metasp-only-p": Recipe(MetaSP, preset={"gamma": 0.0}),
}
"""How to learn, by name. Add one of your own, and `method=` takes its name."""


def method(name: str) -> Recipe:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def method_settings(name: str, values: Mapping[str, Any]) -> Settings:
    """A method's settings from plain values, or one sentence about what is wrong."""
    return settings_of(method(name), name, values)


def settings_of(recipe: Recipe, name: str, values: Mapping[str, Any]) -> Settings:
    """The same for a method that need not be in the registry."""
    known = [entry.name for entry in fields(recipe.kind.Settings)]
    for key in values:
        if key not in known:
            if not known:
                raise UserError(f"method {name!r} has no settings of its own, so no {key!r}.")
            raise unknown(f"setting of method {name!r}", key, known)
    tuples = {e.name for e in fields(recipe.kind.Settings) if isinstance(e.default, tuple)}
    given = {k: tuple(v) if k in tuples and isinstance(v, list) else v for k, v in values.items()}
    return recipe.kind.Settings(**{**recipe.preset, **given})


def complete_settings(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a method as plain values, defaults filled in."""
    settings = asdict(method_settings(name, values))
    return {key: value for key, value in settings.items() if value is not None}

"""The methods. METHODS is a dictionary you can read; adding one is one file and one line."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from metasp.errors import UserError, unknown
from metasp.lazy import lazily, load
from metasp.methods.declared import Declared, declared
from metasp.spec import fields_with

if TYPE_CHECKING:
    from metasp.methods.method import Method, Settings

__getattr__ = lazily(__name__, {"Method": "method", "Settings": "method"})
__all__ = [
    "METHODS",
    "Method",
    "Recipe",
    "Settings",
    "method_named",
    "settings_of",
]


@dataclass(frozen=True)
class Recipe:
    """A method by its class, or by the place of its class as "module:Class", which is loaded when
    it is first used; and, for a variant of one, the choices that make it that variant."""

    of: "type[Method] | str"
    preset: Mapping[str, Any] = field(default_factory=dict)
    selection_of: str | None = None
    stores: str = ""  # what it keeps, in a few words
    weighs: str = ""  # what decides how much an example counts
    cost: str = ""  # of a step, in those of er (benchmarks/step.txt)

    @property
    def kind(self) -> "type[Method]":
        """Its class."""
        found: type[Method] = load(self.of) if isinstance(self.of, str) else self.of
        return found

    @property
    def declared(self) -> Declared:
        """What its file says of it, without torch."""
        return declared(self.of)

    @property
    def selection(self) -> str | None:
        """What its memory keeps unless told otherwise; None if it has no memory."""
        return self.selection_of or self.declared.selection

    @property
    def settings(self) -> dict[str, Any]:
        """Its own settings, at their defaults."""
        return asdict(self.declared.Settings(**self.preset))


RECOMMENDED = "derpp"
"""The method to begin with, by measurement (sweeps/methods-dev.toml)."""

METHODS: dict[str, Recipe] = {
    "finetune": Recipe(
        "metasp.methods.finetune:Finetune",
        stores="nothing",
        weighs="all alike",
        cost="0.5",
    ),  # fmt: skip
    "joint": Recipe(
        "metasp.methods.joint:Joint",
        stores="all data",
        weighs="all alike",
        cost="0.5",
    ),  # fmt: skip
    "er": Recipe(
        "metasp.methods.er:ER",
        stores="any",
        weighs="all alike",
        cost="1",
    ),  # fmt: skip
    "gdumb": Recipe(
        "metasp.methods.gdumb:GDumb",
        stores="any, by class",
        weighs="all alike",
        cost="0.3",
    ),  # fmt: skip
    "gem": Recipe(
        "metasp.methods.gem:GEM",
        stores="any, by class",
        weighs="new: by projection",
        cost="8.5",
    ),  # fmt: skip
    "agem": Recipe(
        "metasp.methods.agem:AGEM",
        stores="any, by class",
        weighs="new: by projection",
        cost="1",
    ),  # fmt: skip
    "hal": Recipe(
        "metasp.methods.hal:HAL",
        stores="newest, anchors",
        weighs="all alike",
        cost="1.1",
    ),  # fmt: skip
    "mir": Recipe(
        "metasp.methods.mir:MIR",
        stores="any",
        weighs="most harmed replayed",
        cost="1.9",
    ),  # fmt: skip
    "gss": Recipe(
        "metasp.methods.gss:GSS",
        stores="diverse gradients",
        weighs="all alike",
        cost="2.5",
    ),  # fmt: skip
    "gmed": Recipe(
        "metasp.methods.gmed:GMED",
        stores="any, edited",
        weighs="all alike",
        cost="2.3",
    ),  # fmt: skip
    "er-ace": Recipe(
        "metasp.methods.er_ace:ERACE",
        stores="any",
        weighs="new: among its task",
        cost="1",
    ),  # fmt: skip
    "der": Recipe(
        "metasp.methods.der:DER",
        preset={"alpha": 0.3, "beta": 0.0},
        stores="any, with outputs",
        weighs="old: by outputs",
        cost="1",
    ),  # fmt: skip
    "derpp": Recipe(
        "metasp.methods.der:DER",
        stores="any, with outputs",
        weighs="old: by outputs, labels",
        cost="1.6",
    ),  # fmt: skip
    "icarl": Recipe(
        "metasp.methods.icarl:ICaRL",
        stores="herding, old network",
        weighs="old: by outputs",
        cost="1.3",
    ),  # fmt: skip
    "loss-filter": Recipe(
        "metasp.methods.filters:LossFilter",
        stores="any, by class",
        weighs="new: of low loss",
        cost="1",
    ),  # fmt: skip
    "verified-only": Recipe(
        "metasp.methods.filters:VerifiedOnly",
        stores="any, by class",
        weighs="verified alone",
        cost="1",
    ),  # fmt: skip
    "glc": Recipe(
        "metasp.methods.glc:GLC",
        stores="any, by class",
        weighs="new: label corrected",
        cost="1",
    ),  # fmt: skip
    "metasp-robust": Recipe(
        "metasp.methods.robust:Robust",
        stores="likely right, by class",
        weighs="new: by influence",
        cost="1.2",
    ),  # fmt: skip
    "metasp": Recipe(
        "metasp.methods.metasp:MetaSP",
        stores="any, by task",
        weighs="by influence, Pareto",
        cost="4.2",
    ),  # fmt: skip
    "metasp-rehsel": Recipe(
        "metasp.methods.metasp:MetaSP",
        selection_of="rehsel",
        stores="by influence, clustered",
        weighs="by influence, Pareto",
        cost="4.2",
    ),  # fmt: skip
    "metasp-only-s": Recipe(
        "metasp.methods.metasp:MetaSP",
        preset={"gamma": 1.0},
        stores="any, by task",
        weighs="by influence on old",
        cost="4.1",
    ),  # fmt: skip
    "metasp-only-p": Recipe(
        "metasp.methods.metasp:MetaSP",
        preset={"gamma": 0.0},
        stores="any, by task",
        weighs="by influence on new",
        cost="4.1",
    ),  # fmt: skip
}
"""How to learn, by name. Add one of your own, and `method=` takes its name."""


def method_named(name: str) -> Recipe:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def settings_of(recipe: Recipe, name: str, values: Mapping[str, Any]) -> "Settings":
    """A method's settings from plain values, or one sentence about what is wrong; the method need
    not be in the registry."""
    known = [entry.name for entry in fields(recipe.kind.Settings)]
    for key in values:
        if key not in known:
            if not known:
                raise UserError(f"method {name!r} has no settings of its own, so no {key!r}.")
            raise unknown(f"setting of method {name!r}", key, known)
    tuples = {e.name for e in fields(recipe.kind.Settings) if isinstance(e.default, tuple)}
    given = {k: tuple(v) if k in tuples and isinstance(v, list) else v for k, v in values.items()}
    return recipe.kind.Settings(**{**recipe.preset, **given})


def usual(name: str) -> dict[str, Any]:
    """What a method does unless told otherwise: its selection, its settings and, apart, those that
    divide the epochs. Empty for a method that is not known here."""
    if name not in METHODS:
        return {}
    recipe = METHODS[name]
    schedule = fields_with(recipe.declared.Settings, role="schedule")
    return {
        "selection": recipe.selection,
        "settings": {k: v for k, v in recipe.settings.items() if k not in schedule},
        "schedule": {k: v for k, v in recipe.settings.items() if k in schedule},
    }


def usual_here(name: str, epochs: int, memory: int) -> dict[str, Any]:
    """The same, with what follows from the epochs and the memory filled in."""
    recipe, found = METHODS[name], usual(name)
    values = asdict(recipe.kind.filled_in(settings_of(recipe, name, {}), epochs, memory))
    for part in ("settings", "schedule"):
        found[part] = {key: values[key] for key in found[part]}
    return found

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


def _ours(place: str, stores: str, weighs: str, cost: str, **variant: Any) -> Recipe:
    """A method of this package, with what it stores, what it weighs and what a step costs."""
    return Recipe(f"metasp.methods.{place}", stores=stores, weighs=weighs, cost=cost, **variant)


RECOMMENDED = "derpp"
"""The method to begin with: what leads in sweeps/methods-dev.toml and methods-cifar10-dev.toml."""

METHODS: dict[str, Recipe] = {
    "finetune": _ours("finetune:Finetune", "nothing", "all alike", "0.5"),
    "joint": _ours("joint:Joint", "all data", "all alike", "0.5"),
    "er": _ours("er:ER", "any", "all alike", "1"),
    "gdumb": _ours("gdumb:GDumb", "any, by class", "all alike", "0.3"),
    "gem": _ours("gem:GEM", "any, by class", "new: by projection", "8.5"),
    "agem": _ours("agem:AGEM", "any, by class", "new: by projection", "1"),
    "hal": _ours("hal:HAL", "newest, anchors", "all alike", "1.1"),
    "mir": _ours("mir:MIR", "any", "most harmed replayed", "1.9"),
    "gss": _ours("gss:GSS", "diverse gradients", "all alike", "2.5"),
    "gmed": _ours("gmed:GMED", "any, edited", "all alike", "2.3"),
    "er-ace": _ours("er_ace:ERACE", "any", "new: among its task", "1"),
    "der": _ours(
        "der:DER", "any, with outputs", "old: by outputs", "1", preset={"alpha": 0.3, "beta": 0.0}
    ),
    "derpp": _ours("der:DER", "any, with outputs", "old: by outputs, labels", "1.6"),
    "icarl": _ours("icarl:ICaRL", "herding, old network", "old: by outputs", "1.3"),
    "loss-filter": _ours("filters:LossFilter", "any, by class", "new: of low loss", "1"),
    "verified-only": _ours("filters:VerifiedOnly", "any, by class", "verified alone", "1"),
    "glc": _ours("glc:GLC", "any, by class", "new: label corrected", "1"),
    "metasp-robust": _ours("robust:Robust", "likely right, by class", "new: by influence", "1.2"),
    "metasp": _ours("metasp:MetaSP", "any, by task", "by influence, Pareto", "4.2"),
    "metasp-rehsel": _ours(
        "metasp:MetaSP",
        "by influence, clustered",
        "by influence, Pareto",
        "4.2",
        selection_of="rehsel",
    ),
    "metasp-only-s": _ours(
        "metasp:MetaSP", "any, by task", "by influence on old", "4.1", preset={"gamma": 1.0}
    ),
    "metasp-only-p": _ours(
        "metasp:MetaSP", "any, by task", "by influence on new", "4.1", preset={"gamma": 0.0}
    ),
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

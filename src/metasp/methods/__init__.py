"""The methods. METHODS is a dictionary you can read; adding one is one file and one line."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from metasp.errors import UserError, unknown
from metasp.lazy import lazily, load
from metasp.methods.declared import Declared, declared
from metasp.spec import RunSpec, fields_with

if TYPE_CHECKING:
    from metasp.methods.method import Method, Settings

__getattr__ = lazily(__name__, {"Method": "method", "Settings": "method"})
__all__ = [
    "INFLUENCE",
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
    influence: str = ""  # the examples that influence weighs if it is added; none: it cannot be

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


def _ours(
    place: str, stores: str, weighs: str, cost: str, influence: str = "", **variant: Any
) -> Recipe:
    """A method of this package, with what it stores, what it weighs, what a step costs and what
    influence weighs if it is added."""
    return Recipe(
        f"metasp.methods.{place}",
        stores=stores,
        weighs=weighs,
        cost=cost,
        influence=influence,
        **variant,
    )


METHODS: dict[str, Recipe] = {
    "finetune": _ours("finetune:Finetune", "nothing", "all alike", "0.5"),
    "joint": _ours("joint:Joint", "all data", "all alike", "0.5"),
    "er": _ours("er:ER", "any", "all alike", "1", "all"),
    "gdumb": _ours("gdumb:GDumb", "any, by class", "all alike", "0.3"),
    "gem": _ours("gem:GEM", "any, by class", "new: by projection", "8.5"),
    "agem": _ours("agem:AGEM", "any, by class", "new: by projection", "1"),
    "hal": _ours("hal:HAL", "newest, anchors", "all alike", "1.1"),
    "mir": _ours("mir:MIR", "any", "old: most harmed", "1.9", "all"),
    "gss": _ours("gss:GSS", "diverse gradients", "all alike", "2.5", "all"),
    "gmed": _ours("gmed:GMED", "any, edited", "all alike", "2.3", "all"),
    "er-ace": _ours("er_ace:ERACE", "any", "new: in its task", "1", "all terms"),
    "der": _ours(
        "der:DER",
        "any, with outputs",
        "old: outputs",
        "1",
        "by label",
        preset={"alpha": 0.3, "beta": 0.0},
    ),
    "derpp": _ours("der:DER", "any, with outputs", "old: outputs+label", "1.6", "by label"),
    "cls-er": _ours("cls_er:CLSER", "any, 2 averages", "old: outputs+label", "1.3", "all terms"),
    "icarl": _ours("icarl:ICaRL", "herding, old net", "old: outputs", "1.3", "all terms"),
    "loss-filter": _ours("filters:LossFilter", "any, by class", "new: of low loss", "1"),
    "verified-only": _ours("filters:VerifiedOnly", "any, by class", "verified alone", "1"),
    "glc": _ours("glc:GLC", "any, by class", "new: corrected", "1", "all"),
    "metasp-robust": _ours("robust:Robust", "likely right", "new: by influence", "1.3"),
    "metasp": _ours("metasp:MetaSP", "any, by task", "by influence", "4.2"),
    "metasp-rehsel": _ours(
        "metasp:MetaSP", "by influence", "by influence", "4.2", selection_of="rehsel"
    ),
    "metasp-only-s": _ours(
        "metasp:MetaSP", "any, by task", "influence on old", "4.1", preset={"gamma": 1.0}
    ),
    "metasp-only-p": _ours(
        "metasp:MetaSP", "any, by task", "influence on new", "4.1", preset={"gamma": 0.0}
    ),
}
"""How to learn, by name. Add one of your own, and `method=` takes its name."""


INFLUENCE = {"metasp": "metasp", "robust": "metasp-robust"}
"""The ways to weigh the updates of any method by influence, and the method whose weights and
settings each one has."""


class Recommended(NamedTuple):
    """A method, and what its memory keeps."""

    method: str
    selection: str


BEST = "best"
RECOMMENDED = Recommended("derpp", "herding")
"""What BEST stands for, where to begin: what leads in sweeps/methods-dev.toml and
methods-cifar10-dev.toml."""


def resolved(spec: RunSpec) -> RunSpec:
    """The spec with BEST replaced by what it stands for; a selection that is given stays."""
    if spec.method != BEST:
        return spec
    selection = spec.selection or RECOMMENDED.selection
    return spec.with_(method=RECOMMENDED.method, selection=selection)


def method_named(name: str) -> Recipe:
    if name == BEST:
        name = RECOMMENDED.method
    if name not in METHODS:
        raise unknown("method", name, [*METHODS, BEST])
    return METHODS[name]


def settings_of(recipe: Recipe, name: str, values: Mapping[str, Any]) -> "Settings":
    """A method's settings from plain values, or one sentence about what is wrong; the method need
    not be in the registry."""
    known = [entry.name for entry in fields(recipe.kind.Settings)]
    for key in values:
        if key not in known:
            if not known:
                raise UserError(f"method {name!r} has no settings of its own: leave {key!r} out.")
            raise unknown(f"setting of method {name!r}", key, known)
    tuples = {e.name for e in fields(recipe.kind.Settings) if isinstance(e.default, tuple)}
    given = {k: tuple(v) if k in tuples and isinstance(v, list) else v for k, v in values.items()}
    return recipe.kind.Settings(**{**recipe.preset, **given})


def added_by(influence: str) -> Recipe | None:
    """The method whose weights are added to another's updates; None: nobody's."""
    return METHODS[INFLUENCE[influence]] if influence in INFLUENCE else None


def own_settings(name: str, influence: str = "none") -> set[str]:
    """The names of a method's own settings, and of those of an influence that is added to it."""
    recipes = (method_named(name), added_by(influence))
    return {entry.name for r in recipes if r is not None for entry in fields(r.declared.Settings)}


def settings_of_both(
    recipe: Recipe, name: str, influence: str, values: Mapping[str, Any]
) -> "tuple[Settings, Settings | None]":
    """A method's settings, and those of the influence that is added to it, from plain values."""
    added = added_by(influence)
    if added is None:
        mine = {entry.name for entry in fields(recipe.declared.Settings)}
        for key in values.keys() - mine:
            ways = [way for way, of in INFLUENCE.items() if key in own_settings(of)]
            if ways and recipe.influence:
                raise UserError(
                    f"{key} is a setting of influence, which method {name!r} does not use: leave "
                    f"it out, or add influence {' or '.join(ways)}."
                )
            if ways:
                names = " or ".join(INFLUENCE[way] for way in ways)
                raise UserError(
                    f"{key} is a setting of method {names}, and the method is {name!r}: leave the "
                    "setting out, or choose that method."
                )
        return settings_of(recipe, name, values), None
    theirs = {entry.name for entry in fields(added.declared.Settings)}
    twice = theirs & {entry.name for entry in fields(recipe.declared.Settings)}
    if twice:
        raise UserError(
            f"influence {influence} and method {name!r} both have a setting {min(twice)}, so they "
            "do not go together: rename that of your method, or leave influence out."
        )
    known = {key: value for key, value in values.items() if key not in theirs}
    weights = {key: value for key, value in values.items() if key in theirs}
    return settings_of(recipe, name, known), settings_of(added, INFLUENCE[influence], weights)


def usual(name: str, influence: str = "none") -> dict[str, Any]:
    """What a method does unless told otherwise, with an influence added to it or without: its
    selection, its settings and, apart, those that divide the epochs. Empty for a method that is not
    known here."""
    if name not in METHODS:
        return {}
    recipe, settings, schedule = METHODS[name], dict[str, Any](), set[str]()
    for each in (recipe, added_by(influence)):
        if each is not None:
            settings |= each.settings
            schedule |= {*fields_with(each.declared.Settings, role="schedule")}
    return {
        "selection": recipe.selection,
        "settings": {k: v for k, v in settings.items() if k not in schedule},
        "schedule": {k: v for k, v in settings.items() if k in schedule},
    }


def usual_here(name: str, epochs: int, memory: int, influence: str = "none") -> dict[str, Any]:
    """The same, with what follows from the epochs and the memory filled in."""
    found, values = usual(name, influence), dict[str, Any]()
    for each in (METHODS[name], added_by(influence)):
        if each is not None:
            own = settings_of(each, name, {})
            values |= asdict(each.kind.filled_in(own, epochs, memory))
    for part in ("settings", "schedule"):
        found[part] = {key: values[key] for key in found[part]}
    return found

"""The methods. METHODS is a dictionary you can read; adding one is one file and one line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from inspect import getdoc, getmodule
from typing import TYPE_CHECKING, Any, NamedTuple

from metasp.config import defaults, fields_with
from metasp.errors import UserError, unknown
from metasp.lazy import lazily, load
from metasp.methods import settings as of
from metasp.methods.settings import Settings
from metasp.spec import ADDED, RunSpec, TrainingSpec

if TYPE_CHECKING:
    from metasp.methods.base import Method

__getattr__ = lazily(__name__, {"Method": "base"})
__all__ = [
    "INFLUENCE",
    "METHODS",
    "Method",
    "Recipe",
    "Settings",
    "method_named",
]


@dataclass(frozen=True)
class Recipe:
    """A method by its class alone; or by "module:Class", which is loaded when it is first used,
    with what is to be known of it before that. A variant of a method has choices of its own."""

    of: "type[Method] | str"
    preset: Mapping[str, Any] = field(default_factory=dict)
    selection_of: str | None = ""  # what its memory keeps; None: it has none; "": as its class says
    stores: str = ""  # what it keeps, in a few words
    weighs: str = ""  # what decides how much an example counts
    cost: str = ""  # of a step, in those of er (benchmarks/step.txt)
    influence: str = ""  # the examples that influence weighs if it is added; none: it cannot be
    settings_class: type[Settings] | None = None  # None: as its class says
    about: str = ""  # one line; empty: the first one of its file

    @property
    def kind(self) -> "type[Method]":
        """Its class."""
        loaded: type[Method] = load(self.of) if isinstance(self.of, str) else self.of
        return loaded

    @property
    def Settings(self) -> type[Settings]:
        """The class of its settings."""
        return self.settings_class or self.kind.Settings

    @property
    def what(self) -> str:
        """What it does, in one line."""
        return self.about or (getdoc(getmodule(self.kind)) or "").split("\n")[0]

    @property
    def selection(self) -> str | None:
        """What its memory keeps unless the user chooses; None if it has no memory."""
        return self.kind.selection if self.selection_of == "" else self.selection_of

    @property
    def settings(self) -> dict[str, Any]:
        """Its own settings, at their defaults."""
        return {**defaults(self.Settings), **self.preset}


def _ours(
    file: str,
    selection: str | None,
    *columns: str,
    settings: type[Settings] = Settings,
    **preset: Any,
) -> Recipe:
    """A method of this package; `columns` are what it stores, what it weighs, what a step costs,
    what influence weighs if it is added, if it can be, and a line about it."""
    stores, weighs, cost, *influence, what = columns
    return Recipe(
        f"metasp.methods.{file}",
        preset,
        selection,
        stores=stores,
        weighs=weighs,
        cost=cost,
        influence="".join(influence),
        settings_class=settings,
        about=what,
    )


class Registry(dict[str, Recipe]):
    """Methods by name; a class alone is put in as its recipe."""

    def __setitem__(self, name: str, method: "Recipe | type[Method]") -> None:
        super().__setitem__(name, method if isinstance(method, Recipe) else Recipe(method))


# fmt: off
METHODS = Registry({
    "finetune": _ours("er:Finetune", None, "nothing", "all alike", "0.5",
        "Fine-tuning: SGD on the new data and nothing else; the lower bound."),
    "joint": _ours("er:Joint", None, "all data", "all alike", "0.5",
        "Joint training: every task trains on all data seen so far; the upper bound."),
    "er": _ours("er:ER", "reservoir", "any", "all alike", "1", "all",
        "Experience Replay (Chaudhry et al. 2019): one pass over the new batch together with a "
        "batch from memory."),
    "gdumb": _ours("gdumb:GDumb", "greedy", "any, by class", "all alike", "0.3",
        "GDumb, Greedy Sampler and Dumb Learner (Prabhu et al. 2020): keep a balanced memory, and "
        "train from scratch on it alone.",
        settings=of.GDumbSettings),
    "gem": _ours("gem:GEM", "class-balanced", "any, by class", "new: by projection", "8.5",
        "GEM, Gradient Episodic Memory (Lopez-Paz and Ranzato 2017): the update opposes the "
        "gradient of no past task's memory.", settings=of.GEMSettings),
    "agem": _ours("gem:AGEM", "class-balanced", "any, by class", "new: by projection", "1",
        "A-GEM, Averaged GEM (Chaudhry et al. 2019): the update never opposes the gradient of a "
        "memory batch."),
    "hal": _ours("hal:HAL", "ring", "newest, anchors", "all alike", "1.1",
        "HAL, Hindsight Anchor Learning (Chaudhry et al. 2021): predictions on one learned anchor "
        "per past class are kept.",
        settings=of.HALSettings),
    "mir": _ours("mir:MIR", "reservoir", "any", "old: most harmed", "1.9", "all",
        "MIR, Maximally Interfered Retrieval (Aljundi et al. 2019): replay what the coming update "
        "would harm most.",
        settings=of.MIRSettings),
    "gss": _ours("gss:GSS", "gradient-diverse", "diverse gradients", "all alike", "2.5", "all",
        "GSS, Gradient-based Sample Selection (Aljundi et al. 2019): experience replay of examples "
        "with diverse gradients, chosen greedily.",
        settings=of.GSSSettings),
    "gmed": _ours("gmed:GMED", "reservoir", "any, edited", "all alike", "2.3", "all",
        "GMED, Gradient-based Memory Editing (Jin et al. 2021): replayed examples are edited to be "
        "what the model is about to forget.", settings=of.GMEDSettings),
    "er-ace": _ours("er_ace:ERACE", "reservoir", "any", "new: in its task", "1", "all terms",
        "ER-ACE, ER with Asymmetric Cross-Entropy (Caccia et al. 2022): new examples compete among "
        "the classes of their task alone."),
    "der": _ours("der:DER", "reservoir", "any, with outputs", "old: outputs", "1", "by label",
        "DER, Dark Experience Replay (Buzzega et al. 2020): replay the outputs that were stored "
        "with an example.", settings=of.DERSettings, alpha=0.3, beta=0.0),
    "derpp": _ours("der:DER", "reservoir", "any, with outputs", "old: outputs+label", "1.6",
        "by label",
        "DER++, Dark Experience Replay with labels (Buzzega et al. 2020): replay the outputs that "
        "were stored with an example, and labels.", settings=of.DERSettings),
    "cls-er": _ours("cls_er:CLSER", "reservoir", "any, 2 averages", "old: outputs+label", "1.3",
        "all terms",
        "CLS-ER, Complementary Learning System ER (Arani et al. 2022): replay is held to the "
        "better of two running averages of the network.", settings=of.CLSERSettings),
    "icarl": _ours("icarl:ICaRL", "herding", "herding, old net", "old: outputs", "1.3",
        "all terms",
        "iCaRL (Rebuffi et al. 2017): old classes are held to what the network said before the "
        "task; the nearest class mean answers."),
    "aer-abs": _ours("aer_abs:AERABS", "asymmetric", "of low loss", "new: in its task", "1.3",
        "all terms",
        "ER-ACE with AER and ABS (Millunzi et al. 2024): every other epoch without replay, undone; "
        "a memory of low loss.", settings=of.AERSettings),
    "slda": _ours("analytic:StreamingLDA", None, "sums, features", "all alike", "0.1",
        "Streaming LDA (Hayes and Kanan 2020): class means and one covariance, on fixed features.",
        settings=of.AnalyticSettings),
    "ridge": _ours("analytic:Ridge", None, "sums, features", "all alike", "0.2",
        "Ridge on random ReLU features (after RanPAC, McDonnell et al. 2023), on fixed features.",
        settings=of.RidgeSettings),
    "loss-filter": _ours("filters:LossFilter", "judged", "any, by class", "new: of low loss", "1",
        "Filter by loss (after Han et al. 2018): ER without the new examples of high loss.",
        settings=of.LossFilterSettings),
    "prototype-filter": _ours("filters:PrototypeFilter", "judged", "any, by class",
        "new: at class mean", "1.1",
        "Filter by class means (after Han et al. 2019): ER without new examples nearer to the mean "
        "of another class.", settings=of.PrototypeFilterSettings),
    "knn-filter": _ours("filters:KNNFilter", "judged", "any, by class", "new: by neighbours",
        "1.1",
        "Filter by neighbours (after Bahri et al. 2020): ER without new examples whose nearest "
        "neighbours have another label.", settings=of.KNNFilterSettings),
    "verified-only": _ours("filters:VerifiedOnly", "judged", "any, by class", "verified alone",
        "1",
        "ER that learns from verified examples alone; the control of their number."),
    "glc": _ours("glc:GLC", "class-balanced", "any, by class", "new: corrected", "1", "all",
        "GLC (Hendrycks et al. 2018): a loss corrected by how verified examples are mistaken, "
        "on ER.", settings=of.GLCSettings),
    "metasp-robust": _ours("robust:Robust", "judged", "likely right", "new: by influence", "1.3",
        "MetaSP against wrong labels: new examples weigh by their influence on examples whose "
        "labels are right.", settings=of.RobustSettings),
    "metasp": _ours("metasp:MetaSP", "task-balanced", "any, by task", "by influence", "4.2",
        "MetaSP (Sun et al. 2022): rehearsal whose update weighs each example by its influence on "
        "Stability and Plasticity.", settings=of.MetaSPSettings),
    "metasp-rehsel": _ours("metasp:MetaSP", "rehsel", "by influence", "by influence", "4.2",
        "MetaSP with RehSel (Sun et al. 2022): the memory too keeps examples by their influence.",
        settings=of.MetaSPSettings),
    "metasp-only-s": _ours("metasp:MetaSP", "task-balanced", "any, by task", "influence on old",
        "4.1",
        "MetaSP weighed by the influence on Stability alone (Sun et al. 2022).",
        settings=of.MetaSPSettings, gamma=1.0),
    "metasp-only-p": _ours("metasp:MetaSP", "task-balanced", "any, by task", "influence on new",
        "4.1",
        "MetaSP weighed by the influence on Plasticity alone (Sun et al. 2022).",
        settings=of.MetaSPSettings, gamma=0.0),
})
# fmt: on
"""How to learn, by name. Add a class of your own, and `method=` takes its name; the entry points
`metasp.methods` of installed packages are here too."""
for _point in entry_points(group="metasp.methods"):
    if _point.attr:  # the others are modules, which are imported with --import's files
        METHODS.setdefault(_point.name, Recipe(_point.value))


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


def added_by(influence: str) -> Recipe | None:
    """Return the method whose weights are added to another's updates; None: nobody's."""
    return METHODS[INFLUENCE[influence]] if influence in INFLUENCE else None


def setting_names(method: str, influence: str = "none") -> set[str]:
    """Return the names that settings have in a flat spec: `method.NAME`, and `influence.NAME` for
    an influence that is added."""
    added = added_by(influence)
    names = {f"method.{key}" for key in method_named(method).settings}
    return names | {f"{ADDED}{key}" for key in (added.settings if added else ())}


def configured(
    recipe: Recipe, name: str, options: TrainingSpec
) -> tuple[Settings, Settings | None]:
    """Return a method's settings and those of the influence that is added to it, with what follows
    from the epochs and the memory filled in; the method need not be in the registry."""
    added, own, weights = added_by(options.influence), dict[str, Any](), dict[str, Any]()
    for key, value in options.settings.items():
        only_added = added is not None and key in {*added.settings} - {*recipe.settings}
        if added is None:
            refuse_others(recipe, name, key)
        if key.startswith(ADDED) or only_added:
            weights[key.removeprefix(ADDED)] = value
        else:
            own[key] = value
    sizes = options.epochs, options.memory
    settings = settings_of(recipe, f"method {name!r}", own).filled_in(*sizes)
    if added is None:
        return settings, None
    return settings, settings_of(added, f"influence {options.influence}", weights).filled_in(*sizes)


def settings_of(recipe: Recipe, owner: str, values: Mapping[str, Any]) -> Settings:
    """Return a method's settings from plain values, or say in one sentence what is wrong."""
    known = recipe.Settings.model_fields
    for key in values:
        if not known:
            raise UserError(f"{owner} has no settings of its own: leave {key!r} out.")
        if key not in known:
            raise unknown(f"setting of {owner}", key, known)
    return recipe.Settings(**{**recipe.preset, **values})


def refuse_others(recipe: Recipe, name: str, key: str) -> None:
    """Refuse a setting that is of an influence while none is added."""
    if key in recipe.settings:
        return
    bare = key.removeprefix(ADDED)
    ways = [way for way in INFLUENCE if bare in METHODS[INFLUENCE[way]].settings]
    if ways and recipe.influence:
        raise UserError(
            f"{bare} is a setting of influence, which method {name!r} does not use: leave it out, "
            f"or add influence {' or '.join(ways)}."
        )
    if ways:
        raise UserError(
            f"{bare} is a setting of method {' or '.join(INFLUENCE[way] for way in ways)}, and the "
            f"method is {name!r}: leave the setting out, or choose that method."
        )


def by_name(own: Settings, weights: Settings | None) -> dict[str, Any]:
    """Return settings by their names in `RunSpec.settings`, without what is None."""
    named = {**dict(own), **{f"{ADDED}{key}": value for key, value in weights or ()}}
    return {key: value for key, value in named.items() if value is not None}


def without_derived(spec: RunSpec) -> dict[str, Any]:
    """Return the settings of a stored spec less those that followed from its epochs and memory,
    which may be others now."""
    recipe, added = method_named(spec.method), added_by(spec.influence)
    plain = dict(recipe.settings)
    if added is not None:
        plain |= {f"{ADDED}{key}": value for key, value in added.settings.items()}
    derived = by_name(*configured(recipe, spec.method, spec.with_(settings={})))
    return {
        key: value
        for key, value in spec.settings.items()
        if plain.get(key) is not None or derived.get(key) != value
    }


def usual(spec: RunSpec) -> dict[str, Any]:
    """Return what the method of a spec does where nothing else is chosen, by the names of a flat
    spec; `schedule.NAME` is a setting that divides the epochs."""
    recipe = method_named(spec.method)
    own, weights = configured(recipe, spec.method, spec.with_(settings={}))
    values: dict[str, Any] = {"selection": recipe.selection}
    for prefix, settings in (("method.", own), (ADDED, weights)):
        schedule = fields_with(type(settings), role="schedule") if settings else ()
        for key, value in settings or ():
            values[f"{'schedule.' if key in schedule else prefix}{key}"] = value
    return {key: value for key, value in values.items() if value is not None}

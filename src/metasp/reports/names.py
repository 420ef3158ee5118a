"""What to call a row of a table and a stream of data: by what sets it apart from the others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from metasp.config import declared, fields_with
from metasp.methods import INFLUENCE, METHODS
from metasp.reports.runs import SETTINGS, Record, spec_defaults
from metasp.spec import RunSpec

Values = tuple[tuple[str, str], ...]  # fields of a spec, comparable

DATA = fields_with(RunSpec, role="data")  # runs that differ here are never in one column
NOISE = ("label_noise", "label_noise_kind", "imbalance")  # told in one phrase
GIVEN_AND_TRUE = ("label_column", "true_label_column")  # in another, beside that
LABELS = fields_with(RunSpec, role="labels")
APART = (*DATA, "method", "influence", "memory", "seed")  # a row's, a group's and a run's own
ADDED = {"metasp": "influence", "robust": "robust influence"}  # to a method, in words
SHUFFLED = "shuffle_influence"
# A method's or backbone's own choice: differs by nature.
OWNED = (*fields_with(RunSpec, owner="method"), *fields_with(RunSpec, owner="backbone"))
CORRECTED = {"exclude": "left out", "relabel": "relabelled", "verified": "verified"}
UPPER_BOUND = "joint"


def keeps_memory(spec: Mapping[str, Any]) -> bool:
    """Whether a run keeps a memory: only then does its spec name a selection."""
    return "selection" in spec


def is_setting(key: str) -> bool:
    """Whether a field of a spec is a setting of the method or of an added influence."""
    return key.startswith(SETTINGS)


def bare(key: str) -> str:
    """Return a field's name without whose setting it is."""
    return key.partition(".")[2] if is_setting(key) else key


def method_name(spec: Mapping[str, Any]) -> str:
    """Name a spec's method together with the influence that is added to it."""
    added = spec["influence"]
    if added == "none":
        return str(spec["method"])
    shuffled = spec.get(f"influence.{SHUFFLED}")
    return f"{spec['method']} + {ADDED.get(added, added)}{', shuffled' if shuffled else ''}"


def values_in(spec: Mapping[str, Any], keys: Sequence[str]) -> Values:
    return tuple((key, repr(spec.get(key))) for key in keys)


def labels_of(members: Sequence[Record], apart: Sequence[str] = ()) -> list[str]:
    """A label for each configuration of a table, of which one run each is given: its method and
    what sets it apart, but for the fields that the table itself tells apart."""
    specs = [member.spec for member in members]
    keys = sorted({key for spec in specs for key in spec}.difference(apart, APART))
    keys = [key for key in keys if bare(key) not in apart]
    keys.sort(key=lambda key: (key not in LABELS, bare(key)))  # what a row was given comes first
    everywhere = counted(specs, keys)
    of_owner: dict[Any, list[Mapping[str, Any]]] = {}
    for spec in specs:
        of_owner.setdefault(whose(spec), []).append(spec)
    among_owner = {owner: counted(those, keys) for owner, those in of_owner.items()}
    labels = []
    for member, spec in zip(members, specs):
        extras = []
        for key in keys:
            own = is_setting(key) or key in OWNED
            counts = among_owner[whose(spec)][key] if own else everywhere[key]
            if telling(key, spec, member.defaults, counts, own):
                extras.append(say(key, spec.get(key), spec))
        name = method_name(spec)
        labels.append(f"{name} ({', '.join(extras)})" if extras else name)
    return labels


def whose(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """Whose settings a spec has."""
    return spec["method"], spec["influence"]


def counted(specs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Counter[str]]:
    """How many specs have which value, by field."""
    return {key: Counter(repr(spec.get(key)) for spec in specs) for key in keys}


def telling(
    key: str,
    spec: Mapping[str, Any],
    defaults: Mapping[str, Any],
    counts: Counter[str],
    own: bool,
) -> bool:
    """Whether a field's value sets a configuration apart and should be said. `counts` are the
    values of those it stands beside; `own` fields are a method's or a backbone's own choice."""
    value = spec.get(key)
    if bare(key) == SHUFFLED and spec["influence"] != "none":  # which its name says
        return False
    if key == "rehearse_last":
        return value is not None and value != spec.get("epochs") and keeps_memory(spec)
    if key == "observe" or key in LABELS:
        return bool(value)
    if key == "selection" or (is_setting(key) and f"schedule.{bare(key)}" not in defaults):
        return unusual(key, value, defaults)
    if len(counts) == 1:
        return False
    if own:
        return value is not None and value is not False
    return repr(value) != usual(key, counts)


def unusual(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    """Whether a setting makes another thing of a method: it is never left unsaid."""
    return value is not None and value != defaults.get(key)


def usual(key: str, counts: Counter[str]) -> str:
    """The most common value of a field; the spec's own default breaks a tie."""
    most = max(counts.values())
    common = sorted(value for value, count in counts.items() if count == most)
    default = repr(spec_defaults().get(key))
    return default if default in common else common[0]


def say(key: str, value: Any, spec: Mapping[str, Any] | None = None) -> str:
    """Say a field and its value in the words of its declaration, or by its name. `spec` tells whose
    setting it is."""
    if key in CORRECTED and value is not None:
        return f"{len(value)} {CORRECTED[key]}"
    words = words_for(key, spec)
    if "{}" in words:
        return words.format("none" if value is None else value)
    if value is True:
        return words
    if value is False:
        return f"not {words}" if declared_words(key, spec) else f"no {words}"
    return f"{words} {'none' if value is None else value}"


def words_for(key: str, spec: Mapping[str, Any] | None = None) -> str:
    return declared_words(key, spec) or bare(key).replace("_", " ")


def declared_words(key: str, spec: Mapping[str, Any] | None) -> str:
    """Return the words that the declaration of a field gives for it; "" where it gives none."""
    if not is_setting(key):
        return words_of(None, key)
    if spec is None:
        return ""
    owner = spec["method"] if key.startswith("method.") else INFLUENCE.get(spec["influence"])
    return words_of(owner, bare(key)) if owner in METHODS else ""


@cache
def words_of(method: str | None, name: str) -> str:
    """Return the words for a field of RunSpec, or of a method's settings."""
    owner = RunSpec if method is None else METHODS[method].Settings
    if name in owner.model_fields:
        return declared(owner)[name].shown_as
    return ""


def order(label: str) -> tuple[int, str]:
    """Bounds first, then the methods by name, MetaSP last."""
    name = label.split(" ")[0]
    rank = {"finetune": 0, UPPER_BOUND: 1}.get(name, 3 if name.startswith("metasp") else 2)
    return rank, label


def stream_names(
    specs: Sequence[Mapping[str, Any]], keys: Sequence[str] = DATA
) -> dict[Values, str]:
    """What to call each stream of data of one benchmark, told apart by some fields: how it differs
    from the others, and by its digest only where nothing else tells it apart."""
    streams = {values_in(spec, keys): spec for spec in specs}
    values = {key: {repr(spec.get(key)) for spec in streams.values()} for key in keys}
    differing = [key for key in keys if len(values[key]) > 1]
    told = [key for key in differing if key != "data_digest"]
    alike = Counter(values_in(spec, told) for spec in streams.values())
    names = {}
    for stream, spec in streams.items():
        chosen = told if alike[values_in(spec, told)] == 1 else differing
        names[stream] = stream_words(spec, chosen)
    return names


def stream_words(spec: Mapping[str, Any], keys: Sequence[str]) -> str:
    """What a stream is in some fields: `clean`, `symmetric noise 0.4, imbalance 0.3`, or `labels
    human_label` where the data has other labels that are true."""
    parts, rest = [], list(keys)
    if any(key in NOISE for key in keys):
        rest = [key for key in keys if key not in (*NOISE, *GIVEN_AND_TRUE)]
        share, imbalance = spec.get("label_noise"), spec.get("imbalance")
        given, true = (spec.get(name) for name in GIVEN_AND_TRUE)
        if "label_column" in keys and given is not None:
            parts.append(f"labels {given}")
        if share or not (parts and true is not None):
            kind = spec.get("label_noise_kind")
            parts.append(f"{kind} noise {share:g}" if share else "clean")
        if imbalance != 1:
            parts.append(f"imbalance {imbalance:g}")
    parts += [say(key, spec.get(key)) for key in rest]
    return ", ".join(parts)

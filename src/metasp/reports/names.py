"""What to call a row of a table and a stream of data: by what sets it apart from the others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from metasp.methods import METHODS
from metasp.reports.records import Record
from metasp.spec import RunSpec, fields_with

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
    """A stored spec names a selection only where the method keeps a memory."""
    return "selection" in spec


def flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec with the method's settings beside them."""
    values = {key: value for key, value in spec.items() if key != "settings"}
    return {**values, **dict(spec.get("settings", {}))}


def method_name(spec: Mapping[str, Any]) -> str:
    """What to call a spec's method together with the influence that is added to it."""
    added = spec.get("influence", "none")
    if added == "none":
        return str(spec["method"])
    shuffled = flat(spec).get(SHUFFLED)
    return f"{spec['method']} + {ADDED.get(added, added)}{', shuffled' if shuffled else ''}"


@cache
def spec_defaults() -> dict[str, Any]:
    """What a field of a spec is where a stored spec does not say it."""
    usual = {entry.name: entry.default for entry in fields(RunSpec)}
    return {name: [] if value is MISSING else value for name, value in usual.items()}


def value_in(spec: Mapping[str, Any], key: str) -> Any:
    """A field of a stored spec; late ones are stored only where they are not at their default."""
    return spec.get(key, spec_defaults().get(key))


def values_in(spec: Mapping[str, Any], keys: Sequence[str]) -> Values:
    return tuple((key, repr(value_in(spec, key))) for key in keys)


def labels_of(members: Sequence[Record], apart: Sequence[str] = ()) -> list[str]:
    """A label for each configuration of a table, of which one run each is given: its method and
    what sets it apart, but for the fields that the table itself tells apart."""
    specs = [flat(member.spec) for member in members]
    settings = {key for member in members for key in member.spec.get("settings", {})}
    own_keys = settings.union(OWNED)
    keys = sorted({key for spec in specs for key in spec}.difference(apart, APART))
    keys.sort(key=lambda key: key not in LABELS)  # what a row was given comes first
    everywhere = counted(specs, keys)
    of_owner: dict[Any, list[dict[str, Any]]] = {}
    for spec in specs:
        of_owner.setdefault(whose(spec), []).append(spec)
    among_owner = {owner: counted(those, keys) for owner, those in of_owner.items()}
    labels = []
    for member, spec in zip(members, specs):
        method = str(spec["method"])
        extras = []
        for key in keys:
            own = key in own_keys
            counts = among_owner[whose(spec)][key] if own else everywhere[key]
            if telling(key, spec, member.defaults, counts, own):
                extras.append(say(key, spec.get(key), method))
        name = method_name(spec)
        labels.append(f"{name} ({', '.join(extras)})" if extras else name)
    return labels


def whose(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """Whose settings a spec has."""
    return spec["method"], spec.get("influence")


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
    if key == SHUFFLED and "influence" in spec:  # which its name says
        return False
    if key == "rehearse_last":
        return value is not None and value != spec.get("epochs") and keeps_memory(spec)
    if key == "observe" or key in LABELS:
        return bool(value)
    if key in defaults.get("settings", {}):
        return unusual(key, value, defaults)
    if key == "selection" and "selection" in defaults:
        return value is not None and value != defaults["selection"]
    if len(counts) == 1:
        return False
    if own:
        return value is not None and value is not False
    return repr(value) != usual(key, counts)


def unusual(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    """Whether a setting makes another thing of a method: it is never left unsaid."""
    return value is not None and value != defaults.get("settings", {}).get(key, value)


def usual(key: str, counts: Counter[str]) -> str:
    """The most common value of a field; the spec's own default breaks a tie."""
    most = max(counts.values())
    common = sorted(value for value, count in counts.items() if count == most)
    default = repr(spec_defaults().get(key))
    return default if default in common else common[0]


def say(key: str, value: Any, method: str | None = None) -> str:
    """A field and its value in words: those that its declaration gives, or its name."""
    if key in CORRECTED and value is not None:
        return f"{len(value)} {CORRECTED[key]}"
    words = words_for(key, method)
    if "{}" in words:
        return words.format("none" if value is None else value)
    if value is True:
        return words
    if value is False:
        return f"not {words}" if words_given(key, method) else f"no {words}"
    return f"{words} {'none' if value is None else value}"


def words_for(key: str, method: str | None) -> str:
    return words_given(key, method) or key.replace("_", " ")


@cache
def words_given(key: str, method: str | None) -> str:
    """The words that a declaration gives for a field, of a spec or of a method's settings."""
    owners: list[Any] = [RunSpec]
    if method in METHODS:
        owners.insert(0, METHODS[str(method)].declared.Settings)
    for owner in owners:
        for entry in fields(owner):
            if entry.name == key:
                return str(entry.metadata.get("words") or "")
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
    values = {key: {repr(value_in(spec, key)) for spec in streams.values()} for key in keys}
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
        share, imbalance = value_in(spec, "label_noise"), value_in(spec, "imbalance")
        given, true = (value_in(spec, name) for name in GIVEN_AND_TRUE)
        if "label_column" in keys and given is not None:
            parts.append(f"labels {given}")
        if share or not (parts and true is not None):
            kind = value_in(spec, "label_noise_kind")
            parts.append(f"{kind} noise {share:g}" if share else "clean")
        if imbalance != 1:
            parts.append(f"imbalance {imbalance:g}")
    parts += [say(key, value_in(spec, key)) for key in rest]
    return ", ".join(parts)

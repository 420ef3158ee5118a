"""The names of rows and streams: each is named by what sets it apart from the others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from metasp.config import declared, fields_with
from metasp.methods import INFLUENCE, METHODS
from metasp.reports.runs import SETTINGS, Record, spec_defaults
from metasp.spec import RunSpec

Values = tuple[tuple[str, str], ...]  # fields of a spec with their values, comparable
Spec = Mapping[str, Any]  # flat

DATA = fields_with(RunSpec, role="data")  # runs that differ in these are never in one column
LABELS = fields_with(RunSpec, role="labels")
NOISE = ("label_noise", "label_noise_kind", "imbalance")  # named in one phrase
LABEL_COLUMNS = ("label_column", "true_label_column")  # and in another
NOT_IN_LABELS = (*DATA, "method", "influence", "memory", "seed")
# Chosen by the method or the backbone where the user does not: differs by nature.
BY_OWNER = (*fields_with(RunSpec, owner="method"), *fields_with(RunSpec, owner="backbone"))
ADDED_WORDS = {"metasp": "influence", "robust": "robust influence"}
CORRECTED = {"exclude": "left out", "relabel": "relabelled", "verified": "verified"}
SHUFFLED = "shuffle_influence"
UPPER_BOUND = "joint"


def keeps_memory(spec: Spec) -> bool:
    """Return whether a run keeps a memory: only then does its spec name a selection."""
    return "selection" in spec


def is_setting(key: str) -> bool:
    """Return whether a field is a setting of the method or of an added influence."""
    return key.startswith(SETTINGS)


def bare(key: str) -> str:
    """Return the name of a setting without that of its owner: `alpha` of `method.alpha`."""
    return key.partition(".")[2] if is_setting(key) else key


def values_in(spec: Spec, keys: Sequence[str]) -> Values:
    """Return some fields of a spec as comparable values."""
    return tuple((key, repr(spec.get(key))) for key in keys)


def method_name(spec: Spec) -> str:
    """Return the name of a method together with the influence that is added to it."""
    added = spec["influence"]
    if added == "none":
        return str(spec["method"])
    shuffled = ", shuffled" if spec.get(f"influence.{SHUFFLED}") else ""
    return f"{spec['method']} + {ADDED_WORDS.get(added, added)}{shuffled}"


def labels_of(records: Sequence[Record], without: Sequence[str] = ()) -> list[str]:
    """Return the labels of the rows of a table, given one run of each.

    A label is the method with what sets the row apart, but for the fields in `without`, which the
    columns tell apart."""
    specs = [record.spec for record in records]
    fields: set[str] = set()
    keys = []
    for key in fields.union(*specs).difference(without, NOT_IN_LABELS):
        if bare(key) not in without:
            keys.append(key)
    keys.sort(key=lambda key: (key not in LABELS, bare(key), key))
    counts: dict[Any, Counter[str]] = {}  # of values, among all rows and among those of an owner
    for spec in specs:
        for key in keys:
            for owner in (None, owner_of(spec)):
                counts.setdefault((owner, key), Counter())[repr(spec.get(key))] += 1
    labels = []
    for record in records:
        spec, phrases = record.spec, []
        for key in keys:
            owned = is_setting(key) or key in BY_OWNER
            values = counts[owner_of(spec) if owned else None, key]
            if is_telling(key, spec, record.defaults, values, owned):
                phrases.append(phrase(key, spec.get(key), spec))
        name = method_name(spec)
        labels.append(f"{name} ({', '.join(phrases)})" if phrases else name)
    return labels


def owner_of(spec: Spec) -> tuple[str, str]:
    """Return whose settings a spec has: the method's and the influence's."""
    return spec["method"], spec["influence"]


def is_telling(
    key: str, spec: Spec, defaults: Mapping[str, Any], counts: Counter[str], owned: bool
) -> bool:
    """Return whether a label must name a field. `counts` are the values of the rows beside it;
    `owned` fields are chosen by a method or a backbone."""
    value = spec.get(key)
    if bare(key) == SHUFFLED and spec["influence"] != "none":  # part of the method's name
        return False
    if key == "rehearse_last":
        return value is not None and value != spec.get("epochs") and keeps_memory(spec)
    if key == "observe" or key in LABELS:
        return bool(value)
    if key == "selection" or (is_setting(key) and f"schedule.{bare(key)}" not in defaults):
        return unusual(key, value, defaults)
    if len(counts) == 1:
        return False
    if owned:
        return value is not None and value is not False
    return repr(value) != commonest(key, counts)


def unusual(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    """Return whether a setting makes another method of a method: labels always name it."""
    return value is not None and value != defaults.get(key)


def commonest(key: str, counts: Counter[str]) -> str:
    """Return the most common value of a field; the default of the spec breaks a tie."""
    most = max(counts.values())
    common = sorted(value for value, count in counts.items() if count == most)
    default = repr(spec_defaults().get(key))
    return default if default in common else common[0]


def phrase(key: str, value: Any, spec: Spec | None = None) -> str:
    """Return a field with its value in words, such as `rehearse last 5` or `not augmented`.

    `spec` tells whose setting it is."""
    if key in CORRECTED and value is not None:
        return f"{len(value)} {CORRECTED[key]}"
    text = phrase_of(key, spec)
    shown = "none" if value is None else value
    if "{}" in text:
        return text.format(shown)
    if value is True:
        return text
    if value is False:
        return f"not {text}" if declared_phrase(key, spec) else f"no {text}"
    return f"{text} {shown}"


def phrase_of(key: str, spec: Spec | None = None) -> str:
    """Return a field in words; `{}` stands for its value."""
    return declared_phrase(key, spec) or bare(key).replace("_", " ")


def declared_phrase(key: str, spec: Spec | None) -> str:
    """Return the words that a field was declared with; "" where there are none."""
    if not is_setting(key):
        return words_of(None, key)
    if spec is None:
        return ""
    owner = spec["method"] if key.startswith("method.") else INFLUENCE.get(spec["influence"])
    return words_of(owner, bare(key)) if owner in METHODS else ""


@cache
def words_of(method: str | None, name: str) -> str:
    """Return the declared words of a setting of a method or, for None, of a field of a spec."""
    owner = RunSpec if method is None else METHODS[method].Settings
    return declared(owner)[name].shown_as if name in owner.model_fields else ""


def order(label: str) -> tuple[int, str]:
    """Return a sort key of rows: bounds first, then methods by name, MetaSP last."""
    name = label.split(" ")[0]
    rank = {"finetune": 0, UPPER_BOUND: 1}.get(name, 3 if name.startswith("metasp") else 2)
    return rank, label


def stream_names(specs: Sequence[Spec], keys: Sequence[str] = DATA) -> dict[Values, str]:
    """Return the name of each stream of a benchmark, by its values in `keys`.

    A stream is named by how it differs from the others, by its digest only where it must be."""
    streams = {values_in(spec, keys): spec for spec in specs}
    differing = []
    for key in keys:
        if len({repr(spec.get(key)) for spec in streams.values()}) > 1:
            differing.append(key)
    readable = [key for key in differing if key != "data_digest"]
    alike = Counter(values_in(spec, readable) for spec in streams.values())
    names = {}
    for stream, spec in streams.items():
        unique = alike[values_in(spec, readable)] == 1
        names[stream] = stream_name(spec, readable if unique else differing)
    return names


def stream_name(spec: Spec, keys: Sequence[str]) -> str:
    """Return a stream in words: `clean`, `symmetric noise 0.4, imbalance 0.3`, or `labels
    human_label` where other labels of the data are the true ones."""
    phrases, rest = [], list(keys)
    if any(key in NOISE for key in keys):
        rest = [key for key in keys if key not in (*NOISE, *LABEL_COLUMNS)]
        share, imbalance = spec.get("label_noise"), spec.get("imbalance")
        column, true_column = (spec.get(name) for name in LABEL_COLUMNS)
        if "label_column" in keys and column is not None:
            phrases.append(f"labels {column}")
        if share:
            phrases.append(f"{spec.get('label_noise_kind')} noise {share:g}")
        elif not phrases or true_column is None:
            phrases.append("clean")
        if imbalance != 1:
            phrases.append(f"imbalance {imbalance:g}")
    for key in rest:
        phrases.append(phrase(key, spec.get(key)))
    return ", ".join(phrases)

"""Which runs belong together: the same spec but for the seed; and what to call them."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from metasp.reports.records import Record, refuse_contradiction
from metasp.spec import RunSpec, fields_with

Key = tuple[tuple[str, str], ...]

DATA = fields_with(RunSpec, role="data")  # runs that differ here are never in one table
APART = (*DATA, "method", "memory", "seed")  # a row's, a group's and a run's own: not in labels
# A method's or backbone's own choice: differs by nature.
OWNED = (*fields_with(RunSpec, owner="method"), *fields_with(RunSpec, owner="backbone"))
PROTOCOL = sorted(fields_with(RunSpec, protocol=True), key=lambda name: name in DATA)
CORRECTED = {"exclude": "left out", "relabel": "relabelled", "verified": "verified"}
UPPER_BOUND = "joint"
LONGEST = 100  # letters of a file name, without what it shows and of which row


@dataclass(frozen=True)
class Configuration:
    """The runs of one row: one spec, many seeds."""

    label: str
    spec: Mapping[str, Any]
    runs: Mapping[int, Record]

    @property
    def method(self) -> str:
        return str(self.spec["method"])

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What its method does unless told otherwise."""
        return first(self.runs).defaults

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.runs))

    def scores(self, scenario: str, metric: str) -> dict[int, float]:
        """The scores by seed, in percent; without the runs that have none."""
        found = {seed: run.score(scenario, metric) for seed, run in self.runs.items()}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}


@dataclass(frozen=True)
class Group:
    """The configurations that can be compared: one stream of data, one memory. `variant` says
    how the data differs from that of the benchmark's other groups."""

    benchmark: str
    memory: int | None
    rows: tuple[Configuration, ...]
    variant: str = ""

    @property
    def title(self) -> str:
        memory = "" if self.memory is None else f"memory {self.memory}"
        return ", ".join(filter(None, (self.benchmark, memory, self.variant)))

    @property
    def slug(self) -> str:
        memory = "" if self.memory is None else f"m{self.memory}"
        words = "-".join(filter(None, (self.benchmark, memory, self.variant)))
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", words)
        if len(stem) <= LONGEST and re.fullmatch(r"[A-Za-z0-9.-]*", self.benchmark):
            return stem
        # What was cut off or replaced would tell two groups apart: let their digest do so.
        return f"{stem[:LONGEST]}-{hashlib.sha256(words.encode()).hexdigest()[:6]}"

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for row in self.rows for seed in row.seeds}))


def keeps_memory(spec: Mapping[str, Any]) -> bool:
    """A stored spec names a selection only where the method keeps a memory."""
    return "selection" in spec


def flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec with the method's settings beside them."""
    values = {key: value for key, value in spec.items() if key != "settings"}
    return {**values, **dict(spec.get("settings", {}))}


def identity(spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> Key:
    """Everything in a spec but the seed (and a memory that is not kept), comparable. What a method
    does by default counts as not said: older specs lack what follows from other settings."""
    skip = {"seed"} if keeps_memory(spec) else {"seed", "memory"}
    if spec.get("rehearse_last") == spec.get("epochs"):
        skip.add("rehearse_last")
    usual = {**defaults.get("settings", {}), **defaults.get("schedule", {})}
    own = spec.get("settings", {})
    skip |= {key for key in own if key in usual and usual[key] == own[key]}
    values = {key: value for key, value in flat(spec).items() if key not in skip}
    return tuple(sorted((key, repr(value)) for key, value in values.items()))


def group(records: Iterable[Record]) -> list[Group]:
    """Groups by benchmark, data and memory. What keeps no memory stands in every group of its
    data."""
    by_spec: dict[Key, dict[int, Record]] = {}
    for record in records:
        runs = by_spec.setdefault(identity(record.spec, record.defaults), {})
        refuse_contradiction(runs.setdefault(record.seed, record), record)
    by_data: dict[str, dict[Key, list[dict[int, Record]]]] = {}
    for runs in by_spec.values():
        spec = first(runs).spec
        data = tuple((key, repr(spec.get(key))) for key in DATA)
        by_data.setdefault(str(spec["benchmark"]), {}).setdefault(data, []).append(runs)
    groups = []
    for benchmark, streams in sorted(by_data.items()):
        for data, here in sorted(streams.items()):
            memories = {first(r).spec["memory"] for r in here if keeps_memory(first(r).spec)}
            for memory in sorted(memories) or [None]:
                members = [
                    runs
                    for runs in here
                    if not keeps_memory(first(runs).spec) or first(runs).spec["memory"] == memory
                ]
                words = variant(first(here[0]).spec, list(streams), data)
                groups.append(Group(benchmark, memory, label_all(members), words))
    return groups


def variant(spec: Mapping[str, Any], streams: Sequence[Key], data: Key) -> str:
    """How one stream of data differs from the benchmark's others; by its digest only where
    nothing else tells them apart."""
    differing = [n for n in range(len(data)) if len({stream[n] for stream in streams}) > 1]
    told = [n for n in differing if data[n][0] != "data_digest"]
    alike = [stream for stream in streams if all(stream[n] == data[n] for n in told)]
    chosen = told if len(alike) == 1 else differing
    return ", ".join(say(data[n][0], spec.get(data[n][0])) for n in chosen)


def first(runs: Mapping[int, Record]) -> Record:
    return next(iter(runs.values()))


def label_all(members: Sequence[Mapping[int, Record]]) -> tuple[Configuration, ...]:
    """Name each configuration of a group by its method and by what sets it apart."""
    specs = [flat(first(runs).spec) for runs in members]
    settings = {key for runs in members for key in first(runs).spec.get("settings", {})}
    rows = []
    for runs, spec in zip(members, specs):
        same = [other for other in specs if other["method"] == spec["method"]]
        extras = [
            say(key, spec.get(key))
            for key in sorted({key for other in specs for key in other})
            if telling(key, spec, first(runs).defaults,
                       same if key in settings or key in OWNED else specs,
                       key in settings or key in OWNED)
        ]  # fmt: skip
        name = str(spec["method"])
        label = f"{name} ({', '.join(extras)})" if extras else name
        rows.append(Configuration(label, first(runs).spec, dict(runs)))
    return tuple(sorted(rows, key=lambda row: order(row.label)))


def telling(key: str, spec: Mapping[str, Any], defaults: Mapping[str, Any],
            peers: Sequence[Mapping[str, Any]], own: bool) -> bool:  # fmt: skip
    """Whether a field's value sets a configuration apart from its peers and should be said."""
    value = spec.get(key)
    if key == "rehearse_last":
        return value is not None and value != spec.get("epochs") and keeps_memory(spec)
    if key == "observe":
        return bool(value)
    if key in defaults.get("settings", {}):
        return unusual(key, value, defaults)
    if key == "selection" and "selection" in defaults:
        return value is not None and value != defaults["selection"]
    values = [repr(other.get(key)) for other in peers]
    if key in APART or len(set(values)) == 1:
        return False
    if own:
        return value is not None and value is not False
    return repr(value) != usual(key, values)


def unusual(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    """Whether a setting makes another thing of a method: it is never left unsaid."""
    return value is not None and value != defaults.get("settings", {}).get(key, value)


def usual(key: str, values: Sequence[str]) -> str:
    """The most common value of a field; the spec's own default breaks a tie."""
    counts = Counter(values)
    most = max(counts.values())
    common = sorted(value for value, count in counts.items() if count == most)
    default = repr(next((f.default for f in fields(RunSpec) if f.name == key), None))
    return default if default in common else common[0]


def say(key: str, value: Any) -> str:
    words = key.replace("_", " ")
    if key in CORRECTED and value is not None:
        return f"{len(value)} {CORRECTED[key]}"
    if value is True:
        return words
    if value is False:
        return f"no {words}"
    return f"{words} {'none' if value is None else value}"


def order(label: str) -> tuple[int, str]:
    """Bounds first, then the methods by name, MetaSP last."""
    name = label.split(" ")[0]
    rank = {"finetune": 0, UPPER_BOUND: 1}.get(name, 3 if name.startswith("metasp") else 2)
    return rank, label


def common_ground(rows: Sequence[Configuration]) -> str:
    """The protocol that all rows of a table share, in words."""
    specs = [flat(row.spec) for row in rows]
    parts = []
    for key in PROTOCOL:
        values = {repr(spec.get(key)): spec.get(key) for spec in specs}
        (value, *others) = values.values()
        if not others and value and value != "fixed":  # the usual is not worth a word
            parts.append(say(key, value))
    return ", ".join(parts)

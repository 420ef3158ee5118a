"""Which runs belong together: the same spec but for the seed; and what to call them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from metasp.reports.records import Record, refuse_contradiction
from metasp.spec import RunSpec

Key = tuple[tuple[str, str], ...]

APART = ("seed", "benchmark", "memory", "method", "data_digest")  # said elsewhere than in labels
OWNED = ("lr", "selection", "width")  # a method's or backbone's own choice: differs by nature
SPOKEN = ("backbone", "width", "epochs", "batch_size", "memory_batch", "limit_per_class")
CONTROLS = ("shuffle_influence", "observe")  # make another thing of a method: never left unsaid
UPPER_BOUND = "joint"


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
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.runs))

    def scores(self, scenario: str, metric: str) -> dict[int, float]:
        """The scores by seed, in percent; without the runs that have none."""
        found = {seed: run.score(scenario, metric) for seed, run in self.runs.items()}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}


@dataclass(frozen=True)
class Group:
    """The configurations that can be compared: one benchmark, one memory."""

    benchmark: str
    memory: int | None
    rows: tuple[Configuration, ...]

    @property
    def title(self) -> str:
        return self.benchmark if self.memory is None else f"{self.benchmark}, memory {self.memory}"

    @property
    def slug(self) -> str:
        return self.benchmark if self.memory is None else f"{self.benchmark}-m{self.memory}"

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


def identity(spec: Mapping[str, Any]) -> Key:
    """Everything in a spec but the seed (and a memory that is not kept), comparable."""
    skip = {"seed"} if keeps_memory(spec) else {"seed", "memory"}
    values = {**flat({k: v for k, v in spec.items() if k not in skip})}
    return tuple(sorted((key, repr(value)) for key, value in values.items()))


def group(records: Iterable[Record]) -> list[Group]:
    """Groups by benchmark and memory. What keeps no memory stands in every group of its
    benchmark."""
    by_spec: dict[Key, dict[int, Record]] = {}
    for record in records:
        runs = by_spec.setdefault(identity(record.spec), {})
        refuse_contradiction(runs.setdefault(record.seed, record), record)
    everything = list(by_spec.values())
    benchmarks = sorted({first(runs).spec["benchmark"] for runs in everything})
    groups = []
    for benchmark in benchmarks:
        here = [runs for runs in everything if first(runs).spec["benchmark"] == benchmark]
        memories = {first(r).spec["memory"] for r in here if keeps_memory(first(r).spec)}
        for memory in sorted(memories) or [None]:
            members = [
                runs
                for runs in here
                if not keeps_memory(first(runs).spec) or first(runs).spec["memory"] == memory
            ]
            groups.append(Group(benchmark, memory, label_all(members)))
    return groups


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
            if telling(key, spec, same if key in settings or key in OWNED else specs,
                       key in settings or key in OWNED)
        ]  # fmt: skip
        name = str(spec["method"])
        label = f"{name} ({', '.join(extras)})" if extras else name
        rows.append(Configuration(label, first(runs).spec, dict(runs)))
    return tuple(sorted(rows, key=lambda row: order(row.label)))


def telling(key: str, spec: Mapping[str, Any], peers: Sequence[Mapping[str, Any]],
            own: bool) -> bool:  # fmt: skip
    """Whether a field's value sets a configuration apart from its peers and should be said."""
    value = spec.get(key)
    if key == "rehearse_last":
        return value is not None and value != spec.get("epochs") and keeps_memory(spec)
    if key in CONTROLS:
        return bool(value)
    values = [repr(other.get(key)) for other in peers]
    if key == "data_digest":
        return len(set(values)) > 1
    if key in APART or len(set(values)) == 1:
        return False
    if own:
        return value is not None and value is not False
    return repr(value) != usual(key, values)


def usual(key: str, values: Sequence[str]) -> str:
    """The most common value of a field; the spec's own default breaks a tie."""
    counts = Counter(values)
    most = max(counts.values())
    common = sorted(value for value, count in counts.items() if count == most)
    default = repr(next((f.default for f in fields(RunSpec) if f.name == key), None))
    return default if default in common else common[0]


def say(key: str, value: Any) -> str:
    words = key.replace("_", " ")
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
    for key in SPOKEN:
        values = {repr(spec.get(key)): spec.get(key) for spec in specs}
        (value, *others) = values.values()
        if not others and value is not None:
            parts.append(say(key, value))
    return ", ".join(parts)

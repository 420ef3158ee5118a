"""A sweep file: a base, a grid of what varies, overrides by method; and the specs it stands for."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from metasp.config import defaults, fields_with, read_toml
from metasp.errors import UserError, unknown
from metasp.methods import BEST, INFLUENCE, METHODS, method_named, resolved, setting_names
from metasp.spec import ADDED, RunSpec, flat_items

Values = dict[str, Any]
PRESETS = Path(__file__).parents[3] / "reproduce" / "presets"  # in a clone, beside the package

FIELDS = frozenset(RunSpec.model_fields) - {"settings", *fields_with(RunSpec, owner="run")}
DEFAULTS = defaults(RunSpec)
TABLES = ("grid", "override")
MEMORY = fields_with(RunSpec, role="memory")


@dataclass(frozen=True)
class Sweep:
    """A parsed sweep: nothing in it has been checked against the methods yet."""

    source: str
    base: Values
    axes: dict[str, list[Values]]
    overrides: dict[str, Values]

    @property
    def points(self) -> list[Values]:
        """Return what the values of all axes set, a table each."""
        return list(itertools.chain.from_iterable(self.axes.values()))

    @property
    def methods(self) -> list[str]:
        """Return the methods that occur, each known."""
        names = [part["method"] for part in (self.base, *self.points) if "method" in part]
        for name in names:
            if not isinstance(name, str):
                raise UserError(f"method in {self.source} must be a name, not {name!r}.")
            method_named(name)
        return list(dict.fromkeys(names)) or [DEFAULTS["method"]]


def presets() -> dict[str, Path]:
    """Return the files of the paper's sweeps by name; none where the package is not in a clone."""
    return {file.stem: file for file in sorted(PRESETS.glob("*.toml"))}


def read_sweep(where: str) -> Sweep:
    """Read a sweep from a TOML file or, where there is no such file, from the preset so called."""
    path = Path(where)
    if not path.is_file() and path.suffix != ".toml":
        files = presets()
        if where not in files:
            raise unknown("sweep file or preset", where, files)
        path = files[where]
    return parse(read_toml(path), where)


def parse(values: Mapping[str, Any], source: str) -> Sweep:
    """Split a sweep's tables into what is common, what varies and what a method overrides."""
    grid, overrides = values.get("grid", {}), values.get("override", {})
    if not isinstance(grid, Mapping):
        raise UserError(f"grid in {source} must be one table of lists, written [grid].")
    if not isinstance(overrides, Mapping) or not all(
        isinstance(table, Mapping) for table in overrides.values()
    ):
        raise UserError(f"override in {source} must be tables by method, as in [override.er].")
    axes = {key: alternatives(key, axis, source) for key, axis in named(grid, source).items()}
    if not axes:
        raise UserError(
            f"the grid of {source} is empty: add a [grid] table of lists, such as "
            "seed = [1, 2, 3], or use `metasp run --spec` for a single run."
        )
    base = named({key: value for key, value in values.items() if key not in TABLES}, source)
    return Sweep(source, base, axes, {name: named(t, source) for name, t in overrides.items()})


def named(table: Mapping[str, Any], source: str) -> Values:
    """Return a table by the one name of each setting: `method.alpha`, however it is written."""
    values: Values = {}
    for key, value in flat_items(table):
        if key in values:
            raise UserError(f"{key} appears twice in one table of {source}: give it once.")
        values[key] = value
    return values


def alternatives(key: str, axis: Any, source: str) -> list[Values]:
    """Return what one axis may set: each value of its list, or several fields by a table."""
    if not isinstance(axis, list) or not axis:
        raise UserError(f"{key} in the grid of {source} must be a list of values, not {axis!r}.")
    return [named(v, source) if isinstance(v, Mapping) else {key: v} for v in axis]


def expand(sweep: Sweep) -> list[RunSpec]:
    """Return every run of a sweep, once, in the order of the file with the last axis fastest."""
    check_names(sweep)
    check_values(sweep)
    specs: dict[str, RunSpec] = {}
    for point in itertools.product(*sweep.axes.values()):
        values = dict(sweep.base)
        for part in point:
            values.update(part)
        values.update(sweep.overrides.get(values.get("method", DEFAULTS["method"]), {}))
        spec = spec_of(values, sweep.source)
        specs.setdefault(json.dumps(spec.as_dict(), sort_keys=True), spec)
    return list(specs.values())


def spec_of(values: Values, source: str) -> RunSpec:
    """Return the spec of one point of the grid. A setting goes to the methods that have it; a
    method that keeps no memory is the same run for every memory, so it gets none."""
    name = values.get("method", DEFAULTS["method"])
    takes = FIELDS | setting_names(name, values.get("influence", DEFAULTS["influence"]))
    chosen = {key: value for key, value in values.items() if key in takes}
    if method_named(name).selection is None:
        chosen = {k: v for k, v in chosen.items() if k not in MEMORY} | {"memory": 0}
    try:
        return resolved(RunSpec.from_dict(chosen, source))
    except UserError as error:
        point = ", ".join(f"{key}={value}" for key, value in values.items())
        raise UserError(f"in {source}, at {point}: {error}") from error


def check_names(sweep: Sweep) -> None:
    """Raise unless every key is a field of a spec or a setting of a method that it is given to."""
    tables = [sweep.base, *sweep.points, *sweep.overrides.values()]
    ways = {table["influence"] for table in tables if table.get("influence") in INFLUENCE}
    keys = chain.from_iterable(METHODS[INFLUENCE[way]].settings for way in ways)
    added = {f"{ADDED}{key}" for key in keys}
    settings = {name: setting_names(name) | added for name in (*METHODS, BEST)}
    takes = FIELDS.union(*(settings[name] for name in sweep.methods))
    for key in sorted({*sweep.base, *sweep.axes}.union(*sweep.points) - takes):
        owners = [name for name in METHODS if key in settings[name]]
        if not owners:
            raise unknown(f"key in {sweep.source}", key, FIELDS.union(TABLES, *settings.values()))
        raise UserError(
            f"{key} in {sweep.source} is a setting of {', '.join(owners)}, none of which is in the "
            f"sweep ({', '.join(sweep.methods)}): add one, or take the key out."
        )
    of_one = [(name, f"[override.{name}]", table) for name, table in sweep.overrides.items()]
    for part in sweep.points:
        if "method" in part:
            of_one.append((part["method"], f"the table of {part['method']} in the grid", part))
    for name, title, table in of_one:
        if name not in sweep.methods:
            raise unknown(f"method in the overrides of {sweep.source}", name, sweep.methods)
        for key in table.keys() - FIELDS - settings[name]:
            raise unknown(f"key in {title} of {sweep.source}", key, FIELDS | settings[name])


def check_values(sweep: Sweep) -> None:
    """Raise unless a key has one value at each point, and a variant keeps what makes it one."""
    for name, table in sweep.overrides.items():
        if "method" in table:
            raise UserError(
                f"override.{name} in {sweep.source} names another method: leave that out."
            )
    for one, second in itertools.combinations(sweep.axes, 2):
        keys = set[str]().union(*sweep.axes[one])
        for key in keys.intersection(set[str]().union(*sweep.axes[second])):
            raise UserError(
                f"{one} and {second} in the grid of {sweep.source} both set {key}: let one of them "
                "do it, by a table for each value."
            )
    common = set(sweep.base).union(*(part for part in sweep.points if "method" not in part))
    for name in sweep.methods:
        preset = {f"method.{key}" for key in method_named(name).preset}
        for key in common & preset - set(sweep.overrides.get(name, {})):
            raise UserError(
                f"{key} in {sweep.source} is what makes {name} a variant: set it for the other "
                'methods only, in a table with their name as in { method = "metasp", … }.'
            )

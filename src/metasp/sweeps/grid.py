"""A sweep file: a base, a grid of what varies, overrides by method; and the specs it stands for."""

import datetime
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasp.config import defaults, fields_with, read_toml
from metasp.errors import UserError, unknown
from metasp.methods import BEST, INFLUENCE, METHODS, method_named, resolved, setting_names
from metasp.spec import ADDED, RunSpec, flat_items

Values = dict[str, Any]
PRESETS = Path(__file__).parents[3] / "reproduce" / "presets"  # in a clone, beside the package

FIELDS = frozenset(RunSpec.model_fields) - {
    "settings",
    *fields_with(RunSpec, owner="run"),
}
DEFAULTS = defaults(RunSpec)
TABLES = ("grid", "override")
OF_MEMORY = fields_with(RunSpec, role="memory")


@dataclass(frozen=True)
class Sweep:
    """A parsed sweep: nothing in it has been checked against the methods yet."""

    source: str
    base: Values
    axes: dict[str, list[Values]]
    overrides: dict[str, Values]


def presets() -> dict[str, Path]:
    """Give the files of the paper's sweeps by name; none where the package is not in a clone."""
    return {file.stem: file for file in sorted(PRESETS.glob("*.toml"))}


def read_sweep(where: str) -> Sweep:
    """Read a sweep from a TOML file or, where there is no such file, from the preset so called."""
    path = Path(where)
    if not path.is_file() and path.suffix != ".toml":
        known = presets()
        if where not in known:
            raise unknown("sweep file or preset", where, known)
        path = known[where]
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
    overrides = {name: named(table, source) for name, table in overrides.items()}
    for name, table in overrides.items():
        if "method" in table:
            raise UserError(f"override.{name} in {source} names another method: leave that out.")
    axes = {key: alternatives(key, given, source) for key, given in named(grid, source).items()}
    if not axes:
        raise UserError(
            f"the grid of {source} is empty: add a [grid] table of lists, such as "
            "seed = [1, 2, 3], or use `metasp run --spec` for a single run."
        )
    return Sweep(
        source=source,
        base=named({k: v for k, v in values.items() if k not in TABLES}, source),
        axes=axes,
        overrides=overrides,
    )


def named(table: Mapping[str, Any], source: str) -> Values:
    """Return a table by the one name of each setting: `method.alpha`, however it is written."""
    values: Values = {}
    for key, value in flat_items(table):
        if key in values:
            raise UserError(f"{key} appears twice in one table of {source}: give it once.")
        values[key] = value
    return values


def alternatives(key: str, given: Any, source: str) -> list[Values]:
    """What one axis may set: each value of its list, or several fields at once by a table."""
    if not isinstance(given, list):
        raise UserError(f"{key} in the grid of {source} must be a list of values, not {given!r}.")
    if not given:
        raise UserError(f"{key} in the grid of {source} is an empty list: give it a value.")
    return [named(v, source) if isinstance(v, Mapping) else {key: v} for v in given]


def expand(sweep: Sweep) -> list[RunSpec]:
    """Every run of a sweep, once, in the order of the file with the last axis fastest."""
    check_names(sweep)
    specs: dict[str, RunSpec] = {}
    for choice in itertools.product(*sweep.axes.values()):
        values = dict(sweep.base)
        for part in choice:
            values.update(part)
        method = values.get("method", DEFAULTS["method"])
        values.update(sweep.overrides.get(method, {}))
        for key, value in values.items():
            if holds_time(value):
                raise UserError(
                    f"{key} in {sweep.source} is a date or time, which no setting takes: give a "
                    "number, text or list."
                )
        spec = spec_of(values, sweep.source)
        specs.setdefault(json.dumps(spec.as_dict(), sort_keys=True), spec)
    return list(specs.values())


def holds_time(value: Any) -> bool:
    """Whether a value of a TOML file is or holds what only TOML has."""
    if isinstance(value, Mapping):
        return any(holds_time(inner) for inner in value.values())
    if isinstance(value, list):
        return any(holds_time(inner) for inner in value)
    return isinstance(value, datetime.date | datetime.time)


def spec_of(values: Values, source: str) -> RunSpec:
    """Return the spec of one point of the grid. A setting goes to the methods that have it; a
    method that keeps no memory is the same run for every memory, so it gets none."""
    name = values.get("method", DEFAULTS["method"])
    method = method_named(name)
    takes = FIELDS | setting_names(name, values.get("influence", DEFAULTS["influence"]))
    chosen = {key: value for key, value in values.items() if key in takes}
    if method.selection is None:
        chosen = {k: v for k, v in chosen.items() if k not in OF_MEMORY} | {"memory": 0}
    try:
        return resolved(RunSpec.from_dict(chosen, source))
    except UserError as error:
        raise UserError(f"in {source}, at {point(values)}: {error}") from error


def point(values: Values) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "the defaults"


def check_names(sweep: Sweep) -> None:
    """Every key must be a field of the spec or a setting of one of the sweep's methods."""
    methods = methods_of(sweep)
    added = settings_added(sweep)
    owned = {name: setting_names(name) | added for name in (*METHODS, BEST)}
    everywhere = FIELDS.union(*owned.values())
    here = FIELDS.union(*(owned[name] for name in methods))
    keys = set(sweep.base) | set(sweep.axes)
    keys |= {key for axis in sweep.axes.values() for part in axis for key in part}
    for key in sorted(keys - here):
        if key not in everywhere:
            raise unknown(f"key in {sweep.source}", key, everywhere | set(TABLES))
        owners = ", ".join(name for name in METHODS if key in setting_names(name))
        raise UserError(
            f"{key} in {sweep.source} is a setting of {owners}, none of which is in the "
            f"sweep ({', '.join(methods)}): add one, or take the key out."
        )
    for name in sweep.overrides:
        if name not in methods:
            raise unknown(f"method in the overrides of {sweep.source}", name, methods)
    check_tables(sweep, owned)
    check_axes(sweep)
    refuse_undoing(sweep, methods)


def settings_added(sweep: Sweep) -> set[str]:
    """Return the names of the settings of every influence that occurs in a sweep."""
    parts = [sweep.base, *sweep.overrides.values()]
    parts += [part for axis in sweep.axes.values() for part in axis]
    ways = {part["influence"] for part in parts if part.get("influence") in INFLUENCE}
    return {f"{ADDED}{key}" for way in ways for key in METHODS[INFLUENCE[way]].settings}


def check_tables(sweep: Sweep, owned: Mapping[str, set[str]]) -> None:
    """What is said of one method must be a setting of that one."""
    tables = [(name, f"[override.{name}]", table) for name, table in sweep.overrides.items()]
    tables += [
        (part["method"], f"the table of {part['method']} in the grid", part)
        for axis in sweep.axes.values()
        for part in axis
        if "method" in part
    ]
    for name, title, table in tables:
        for key in table.keys() - FIELDS - owned[name]:
            raise unknown(f"key in {title} of {sweep.source}", key, FIELDS | owned[name])


def check_axes(sweep: Sweep) -> None:
    """A key must have one value at each point of the grid."""
    for one, other in itertools.combinations(sweep.axes, 2):
        for key in keys_of(sweep.axes[one]) & keys_of(sweep.axes[other]):
            raise UserError(
                f"{one} and {other} in the grid of {sweep.source} both set {key}: let one of them "
                "do it, by a table for each value."
            )


def refuse_undoing(sweep: Sweep, methods: list[str]) -> None:
    """What makes a variant of a method that variant must not change by a value for all."""
    common = set(sweep.base).union(
        *(part for axis in sweep.axes.values() for part in axis if "method" not in part)
    )
    for name in methods:
        preset = {f"method.{key}" for key in method_named(name).preset}
        for key in common & preset - set(sweep.overrides.get(name, {})):
            raise UserError(
                f"{key} in {sweep.source} is what makes {name} a variant: set it for the other "
                'methods only, in a table with their name as in { method = "metasp", … }.'
            )


def keys_of(axis: list[Values]) -> set[str]:
    return {key for part in axis for key in part}


def methods_of(sweep: Sweep) -> list[str]:
    """The methods that occur in a sweep, each known."""
    parts = [sweep.base, *(part for axis in sweep.axes.values() for part in axis)]
    found = [part["method"] for part in parts if "method" in part] or [DEFAULTS["method"]]
    for name in found:
        if not isinstance(name, str):
            raise UserError(f"method in {sweep.source} must be a name, not {name!r}.")
        method_named(name)
    return list(dict.fromkeys(found))

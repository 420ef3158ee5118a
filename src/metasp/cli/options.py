"""Command-line flags made from settings dataclasses, so that each is written down once."""

import contextlib
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_origin

import click
from pydantic.fields import FieldInfo

from metasp.config import choices, fields_with, kinds
from metasp.errors import unknown
from metasp.folders import DATA_VARIABLE, RUNS, RUNS_VARIABLE
from metasp.spec import RunSpec

Command = Callable[..., Any]

runs_option = click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default=RUNS,
    envvar=RUNS_VARIABLE,
    show_default=True,
    help="Folder that holds the runs (METASP_RUNS).",
)
# Benchmarks of which the file or the row of each example can be named.
OWN_FILES = ("folder:", "csv:", "json:", "parquet:", "arrays:")
data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar=DATA_VARIABLE,
    help="Folder that holds the data sets (METASP_DATA).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def a_number(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """A range lets through what is not a number, for nothing is below it."""
    if math.isnan(value):
        raise click.BadParameter("nan is not a number of seconds.", ctx, param)
    return value


checkpoint_option = click.option(
    "--checkpoint-seconds",
    type=click.FloatRange(min=0),
    callback=a_number,
    default=60.0,
    show_default=True,
    help="Store a checkpoint at least this often.",
)


track_option = click.option(
    "--track",
    multiple=True,
    metavar="TOOL",
    help="Show the run in tensorboard or mlflow too; may be given twice.",
)


class OneOf(click.Choice[str]):
    """A choice that names the one nearest to what it does not know."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if value not in self.choices:
            raise unknown(param.opts[0], str(value), self.choices)
        return super().convert(value, param, ctx)


class Numbers(click.ParamType[Any]):
    """Whole numbers separated by commas."""

    name = "N,N,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 10,20", param, ctx)


class AnyValue(click.ParamType[Any]):
    """A value of more than one kind: a number, true or false, or else text. Whoever it is for
    decides whether that will do."""

    name = "value"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value in ("true", "false"):
            return value == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError, TypeError):
                return kind(value)
        return value


def field_option(name: str, types: Collection[Any], text: str) -> Callable[[Command], Command]:
    """Make the flag of a setting that takes these types; absent means not given."""
    flag = f"--{name.replace('_', '-')}"
    if bool in types:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    single = [kind for kind in types if kind is not type(None)]
    wanted: Any = single[0] if single[0] in (int, float) else str
    if get_origin(single[0]) is tuple:
        wanted = Numbers()
    if len(single) > 1:
        wanted = AnyValue()
    return click.option(flag, name, type=wanted, default=None, help=text)


def describe(field: FieldInfo) -> str:
    """Put a setting's help, choices and default into words."""
    parts = [field.description or ""]
    if choices(field):
        parts.append(f"({' | '.join(choices(field))})")
    if field.default not in (None, ()):
        switch = {True: "on", False: "off"}
        default = switch[field.default] if isinstance(field.default, bool) else field.default
        parts.append(f"[default: {default}]")
    return " ".join(parts)


def spec_options(function: Command) -> Command:
    """Add the flags of a run: the spec's own, and those of every method's settings. Where methods
    have a setting of one name, it is one flag, which says what it is to each of them."""
    from metasp.methods import METHODS

    owners: dict[str, dict[str, list[str]]] = {}
    types: dict[str, set[Any]] = {}
    for method, recipe in METHODS.items():
        for name, field in recipe.Settings.model_fields.items():
            types.setdefault(name, set()).update(kinds(field))
            owners.setdefault(name, {}).setdefault(describe(field), []).append(method)
    for name in sorted(owners, reverse=True):
        texts = [f"{text} [{', '.join(methods)}]" for text, methods in owners[name].items()]
        function = field_option(name, types[name], " ".join(texts))(function)
    hidden = {"settings", *fields_with(RunSpec, owner="run"), *CORRECTIONS}
    for name, field in reversed(RunSpec.model_fields.items()):
        if name not in hidden:
            function = field_option(name, kinds(field), describe(field))(function)
    return function


CORRECTIONS = {
    "exclude": "CSV file with a column id: leave these train examples out.",
    "relabel": "CSV file with columns id and label: train examples that get this label.",
    "verified": "CSV file with columns id and label, such as the explorer saves: a person verified "
    "these. They leave the stream and are pinned in the memory; those without a label are left "
    "out.",
}


def correction_options(function: Command) -> Command:
    """The flags that take what a person says of examples from files; they add to what the spec
    says, and the newer word counts."""
    for name, text in reversed(CORRECTIONS.items()):
        kind = click.Path(path_type=Path)
        function = click.option(f"--{name}", type=kind, metavar="FILE", help=text)(function)
    return function


def spec_from(file: Path | None, given: dict[str, Any]) -> RunSpec:
    """A spec from a TOML file (or the defaults) and the flags that override it."""
    own = set(RunSpec.model_fields)
    chosen = {key: value for key, value in given.items() if value is not None}
    spec = RunSpec.from_toml(file) if file else RunSpec()
    flags = {key: value for key, value in chosen.items() if key in own}
    # The spec of a stored run says "all of them" by their number.
    if spec.data_digest is not None and spec.rehearse_last == spec.epochs:
        flags.setdefault("rehearse_last", flags.get("epochs", spec.epochs))
    # And it names what the method and the network gave it, which others do not get.
    if spec.data_digest is not None and flags.get("method", spec.method) != spec.method:
        flags = {**dict.fromkeys(fields_with(RunSpec, owner="method")), **flags}
    if spec.data_digest is not None and flags.get("backbone", spec.backbone) != spec.backbone:
        flags = {**dict.fromkeys(fields_with(RunSpec, owner="backbone")), **flags}
    kept = without_rules(spec) if spec.data_digest is not None else spec.settings
    kept = carried_over(kept, spec, flags)
    settings = {**kept, **{k: v for k, v in chosen.items() if k not in own}}
    return spec.with_(**flags, settings=settings)


def carried_over(
    settings: Mapping[str, object], spec: RunSpec, flags: Mapping[str, object]
) -> Mapping[str, object]:
    """The settings of a spec that still have an owner where flags name another method, or another
    influence to be added to it."""
    from metasp.methods import INFLUENCE, own_settings

    added: set[str] = set()
    if spec.influence in INFLUENCE:
        added = own_settings(INFLUENCE[spec.influence])
    if flags.get("method", spec.method) != spec.method:
        settings = {key: value for key, value in settings.items() if key in added}
    if flags.get("influence", spec.influence) != spec.influence:
        settings = {key: value for key, value in settings.items() if key not in added}
    return settings


def without_rules(spec: RunSpec) -> dict[str, object]:
    """The settings of a stored run less those that followed from its epochs and memory, which may
    be others now."""
    from metasp.methods import usual, usual_here

    open_, here = usual(spec.method, spec.influence), {}
    if open_:
        here = usual_here(spec.method, spec.epochs, spec.memory, spec.influence)
    followed = {
        key: here[part][key]
        for part in ("settings", "schedule")
        for key, value in open_.get(part, {}).items()
        if value is None
    }
    return {k: v for k, v in spec.settings.items() if k not in followed or followed[k] != v}

"""Options of several commands; those of a run are made from the fields of its spec."""

import contextlib
import os
import secrets
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

import click

from metasp.cli.terminal import typed
from metasp.config import DATA_VARIABLE, RUNS, RUNS_VARIABLE, Declared, declared, fields_with
from metasp.errors import UserError, unknown
from metasp.methods import without_derived
from metasp.spec import ADDED, RunSpec

if TYPE_CHECKING:
    from metasp.sweeps.on_ray import OnRay

Command = Callable[..., Any]

# Benchmarks of which the file or the row of each example can be named.
OWN_FILES = ("folder:", "csv:", "json:", "parquet:", "arrays:")


def import_code(ctx: click.Context, param: click.Parameter, files: tuple[Path, ...]) -> None:
    """Run the files of --import, and what installed packages add."""
    from metasp.plugins import import_files, import_packages

    import_packages()
    import_files(files)


runs_option = click.option(
    "--runs", type=click.Path(path_type=Path, file_okay=False), default=RUNS,
    envvar=RUNS_VARIABLE, show_default=True, help="Folder that holds the runs (METASP_RUNS).",
)  # fmt: skip
data_option = click.option(
    "--data", type=click.Path(path_type=Path), envvar=DATA_VARIABLE,
    help="Folder that holds the data sets (METASP_DATA).",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
checkpoint_option = click.option(
    "--checkpoint-seconds", type=click.FloatRange(min=0), default=60.0, show_default=True,
    help="Store a checkpoint at least this often.",
)  # fmt: skip
keep_option = click.option(
    "--keep-checkpoints", type=click.Choice(["last", "task"]), default="last", show_default=True,
    help="Which checkpoints stay in the run: the last one, or that of each task's end too.",
)  # fmt: skip
track_option = click.option(
    "--track", multiple=True, metavar="TOOL",
    help="Show the run in tensorboard or mlflow too; may be given twice.",
)  # fmt: skip
import_option = click.option(
    "--import", "imports", type=click.Path(path_type=Path), multiple=True, metavar="FILE.py",
    is_eager=True, expose_value=False, callback=import_code,
    help="Run this Python file first: your own methods, selections, metrics and benchmarks. May be "
    "repeated. Import only code that you trust.",
)  # fmt: skip


def combined(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return several options as one decorator."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class Amount(click.FloatRange):
    """An amount that Ray can set aside: a whole number, or a fraction not too small for it."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = float(super().convert(value, param, ctx))
        if number and not (number.is_integer() or 1e-4 <= number < 1):
            self.fail(
                f"{value} cannot be set aside: give a whole number, or .0001 to 1", param, ctx
            )
        return number


def of_ray(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse an option of Ray where all would run here: --on ray is forgotten easily."""
    if typed(param.name or "") and ctx.params["on"] == "local":
        raise UserError(f"{param.opts[0]} only applies with --on ray: add that, or leave it out.")
    return value


class OneOf(click.Choice[str]):
    """A choice among names, which imported code may add to; an error gives the nearest one."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__([*names])
        self.names = names

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if value not in self.names:
            raise unknown(param.opts[0], str(value), self.names)
        return str(value)


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


def field_option(name: str, field: Declared) -> Callable[[Command], Command]:
    """Make the flag of a field; absent means not given."""
    flag, kind = f"--{name.replace('_', '-')}", field.kind
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=describe(field))
    if get_origin(kind) is tuple:
        kind = Numbers()
    elif kind not in (int, float):
        kind = str
    return click.option(flag, name, type=kind, default=None, help=describe(field))


def describe(field: Declared) -> str:
    """Put a setting's help, choices and default into words."""
    phrases = [field.help]
    if field.choices:
        phrases.append(f"({' | '.join(field.choices)})")
    if field.default not in (None, ()):
        switch = {True: "on", False: "off"}
        default = switch[field.default] if isinstance(field.default, bool) else field.default
        phrases.append(f"[default: {default}]")
    return " ".join(phrases)


ROLES = ("data", "labels", "method", "memory", "training", "model", "machine", "seed")


def spec_options(function: Command) -> Command:
    """Add a flag for each field of a run's spec, and `--set` for the settings of its method."""
    hidden = {"settings", *fields_with(RunSpec, owner="run"), *CORRECTIONS}
    fields = declared(RunSpec)
    shown = [name for name in fields if name not in hidden]
    names = sorted(shown, key=lambda name: ROLES.index(fields[name].role))
    method_option = click.option(
        "--set", "settings", multiple=True, metavar="NAME=VALUE",
        help="A setting of the method, such as alpha=0.3, or of the added influence, such as "
        "influence.gamma=0.5; `metasp list methods NAME` lists them.",
    )  # fmt: skip
    return combined(*(field_option(name, fields[name]) for name in names), method_option)(function)


def parsed_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Return the settings that were given as NAME=VALUE."""
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE, such as --set alpha=0.3, not {text!r}.")
        settings[name.strip().removeprefix("method.")] = plain_value(value.strip())
    return settings


def plain_value(text: str) -> Any:
    """Return what is written as true, false, none or a number as such, and else the text."""
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


CORRECTIONS = {
    "exclude": "CSV file with a column id: leave these train examples out.",
    "relabel": "CSV file with columns id and suggested (or label): train examples that get this "
    "label, where the cell names one.",
    "verified": "CSV file with columns id and label, such as the explorer saves: a person verified "
    "these. They leave the stream and are pinned in the memory; those without a label are left "
    "out. A verdict counts more than the other two files.",
}


def correction_options(function: Command) -> Command:
    """Add the options that take what a person says of examples from files; they add to what the
    spec says, and the newer verdict counts."""
    decorators = []
    for name, text in CORRECTIONS.items():
        kind = click.Path(path_type=Path)
        decorators.append(click.option(f"--{name}", type=kind, metavar="FILE", help=text))
    return combined(*decorators)(function)


cluster_options = combined(
    click.option("--on", type=OneOf(["local", "ray"]), default="local", show_default=True,
                 is_eager=True, help="Work on this machine, or on a Ray cluster."),
    click.option("--address", callback=of_ray,
                 help="Address of the Ray cluster [default: RAY_ADDRESS, or a new cluster here]."),
    click.option("--retries", type=click.IntRange(min=0), default=3, show_default=True,
                 callback=of_ray,
                 help="How often a run is started again after its worker or node is lost."),
    click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True,
                 callback=of_ray,
                 help="Processes on Ray that share a run, each with its threads."),
    click.option("--cpus-per-worker", "cpus", type=Amount(min=0), callback=of_ray,
                 help="CPUs of each worker [default: the run's threads]."),
    click.option("--gpus-per-worker", "gpus", type=Amount(min=0), default=0.0, show_default=True,
                 callback=of_ray,
                 help="GPUs of each worker; with more than 0, device auto means cuda."),
)  # fmt: skip
CLUSTER = ("on", "address", "retries", "workers", "cpus", "gpus")


def cluster_of(data: Path | None, values: dict[str, Any], **options: Any) -> "OnRay | None":
    """Return the cluster that the values of `cluster_options` describe, which are taken out; None
    where the work happens here."""
    on, *settings = (values.pop(name) for name in CLUSTER)
    if on == "local":
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1":
        raise UserError("--on ray starts processes of its own: start it without torchrun.")
    chosen = dict(zip(CLUSTER[1:], settings))
    guard_own_cluster(chosen["address"])
    from metasp.sweeps.on_ray import OnRay

    return OnRay(data, **chosen, options=options)


def guard_own_cluster(address: str | None) -> None:
    """Have a cluster of our own ask for a token that nobody else has: Ray listens on every network
    and runs what it is sent. To be called before Ray is imported, which reads the token."""
    if (address or os.environ.get("RAY_ADDRESS") or "local") == "local":
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def spec_from(file: Path | None, flags: dict[str, Any]) -> RunSpec:
    """Return the spec of a TOML file (or the defaults) with the flags that override it."""
    spec = RunSpec.from_toml(file) if file else RunSpec()
    stored = spec.data_digest is not None
    changes = {k: v for k, v in flags.items() if v is not None and k in RunSpec.model_fields}
    changed = {k for k in changes if k != "settings" and changes[k] != getattr(spec, k)}
    settings = dict(spec.settings)
    if stored:
        settings = without_derived(spec)
        # The spec of a stored run says "all of them" by their number.
        if spec.rehearse_last == spec.epochs:
            changes.setdefault("rehearse_last", changes.get("epochs", spec.epochs))
        # And it names what the method and the network gave it, which others do not get.
        for owner in ("method", "backbone"):
            if owner in changed:
                changes = {**dict.fromkeys(fields_with(RunSpec, owner=owner)), **changes}
    if "method" in changed:
        settings = {k: v for k, v in settings.items() if k.startswith(ADDED)}
    if "influence" in changed:
        settings = {k: v for k, v in settings.items() if not k.startswith(ADDED)}
    settings |= parsed_settings(flags.get("settings") or ())
    return spec.with_(**{**changes, "settings": settings})

"""Flags of commands that can do their work on a Ray cluster."""

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metasp.cli.options import OneOf
from metasp.cli.terminal import typed
from metasp.errors import UserError

if TYPE_CHECKING:
    from metasp.sweeps.ranks_on_ray import RanksOnRay

CLUSTER = ("address", "retries")
WORKERS = (*CLUSTER, "workers", "gpus_per_worker")


def whole_or_part(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """What Ray can set aside: whole ones, or a part of one that is not too small for it."""
    if value and not (value.is_integer() or 1e-4 <= value < 1):
        raise click.BadParameter(
            f"{value:g} of them cannot be set aside: give a whole number, or a part of one from "
            "0.0001 on.",
            ctx,
            param,
        )
    return value


a_share: Any = {"type": click.FloatRange(min=0), "callback": whole_or_part}


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where to work, and on which cluster."""
    options = [
        click.option(
            "--on",
            type=OneOf(["local", "ray"]),
            default="local",
            show_default=True,
            help="Work on this machine, or on a Ray cluster.",
        ),
        click.option(
            "--address",
            help="Address of the Ray cluster [default: RAY_ADDRESS, or a new cluster here].",
        ),
        click.option(
            "--retries",
            type=click.IntRange(min=0),
            default=3,
            show_default=True,
            help="How often a run is started again after its worker or node is lost.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def worker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for one run, and how many workers share it."""
    options = [
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Processes on Ray that share the run, each with its threads.",
        ),
        click.option(
            "--gpus-per-worker",
            **a_share,
            default=0.0,
            show_default=True,
            help="GPUs of each worker; with more than 0, device auto means cuda.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return cluster_options(function)


def on_cluster(data: Path | None, given: dict[str, Any]) -> "RanksOnRay | None":
    """Who carries a run out on a cluster, by its flags, which are taken out of those given; None
    where it happens here."""
    on, *values = (given.pop(name) for name in ("on", *WORKERS))
    refuse_what_belongs_elsewhere(on, WORKERS)
    if on == "local":
        return None
    refuse_torchrun("a run on Ray")
    asked = dict(zip(WORKERS, values))
    guard_own_cluster(asked["address"])
    from metasp.sweeps.ranks_on_ray import RanksOnRay

    return RanksOnRay(data, **asked)


def refuse_torchrun(what: str) -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1":
        raise UserError(f"{what} starts processes of its own: start it without torchrun.")


def refuse_what_belongs_elsewhere(on: str, ray: Sequence[str], local: Sequence[str] = ()) -> None:
    """Options of the way that was not chosen: forgetting --on ray would run all of it here."""
    for name in ray if on == "local" else local:
        if typed(name):
            flag = f"--{name.replace('_', '-')}"
            if on == "local":
                raise UserError(f"{flag} only applies with --on ray: add that, or leave it out.")
            raise UserError(
                f"{flag} only applies to runs on this machine: leave out {flag} or --on {on}."
            )


def guard_own_cluster(address: str | None) -> None:
    """Ray listens on every network it finds and runs what it is sent: have a cluster of our own
    ask for a token that nobody else has. To be called before Ray is imported, which reads it."""
    if (address or os.environ.get("RAY_ADDRESS") or "local") == "local":
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

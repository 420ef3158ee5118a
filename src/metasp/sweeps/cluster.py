"""A Ray cluster: how it is joined, and what it has room for."""

import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from metasp.errors import UserError
from metasp.sweeps.remote import LOCAL

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as missing:
    raise UserError("Ray is not installed: pip install -e '.[cluster]' in the clone.") from missing

__all__ = [
    "POLL_SECONDS",
    "RayError",
    "RayTaskError",
    "connect",
    "lacking",
    "last_line",
    "ray",
    "room_for",
    "warn",
    "where",
]

POLL_SECONDS = 0.5


def where(address: str | None) -> str:
    """The cluster to join; LOCAL where one is started here."""
    return address or os.environ.get("RAY_ADDRESS") or LOCAL


def connect(address: str | None) -> None:
    """Join the cluster, or start one on this machine where no address is given: Ray itself would
    join whatever cluster a file that anyone can write to names."""
    if ray.is_initialized():
        return
    place = where(address)
    new: Any = {"include_dashboard": False} if place == LOCAL else {}
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=place, logging_level=logging.ERROR, log_to_driver=False, **new)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        if place == LOCAL:
            raise UserError(f"Ray does not start here ({reason}): leave out --on ray.") from error
        raise UserError(
            f"cannot reach a Ray cluster at {place} ({reason}): start one with `ray start --head`."
        ) from error
    signal.signal(signal.SIGTERM, on_term)  # Ray sets its own; ours stores checkpoints


def room_for(needs: Mapping[str, float]) -> int:
    """How many that need so much each the cluster can carry now."""
    return sum(fitting(needs, node) for node in alive())


def fitting(needs: Mapping[str, float], node: Mapping[str, float]) -> int:
    """How many runs with these needs a node can carry at once."""
    return int(min([node.get(kind, 0.0) / need for kind, need in needs.items() if need] or [1.0]))


def lacking(needs: Mapping[str, float]) -> str:
    """What no single node has enough of, in words."""
    most = {kind: max([n.get(kind, 0.0) for n in alive()], default=0.0) for kind in needs}
    short = [kind for kind in needs if needs[kind] > most[kind]] or [*needs]
    return ", ".join(f"{needs[kind]:g} {kind} of {most[kind]:g}" for kind in short)


def alive() -> list[dict[str, float]]:
    """What each node has."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]


def warn(words: str) -> None:
    print(f"warning: {words}", file=sys.stderr)


def last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]

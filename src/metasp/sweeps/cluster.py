"""A Ray cluster: how it is joined, what it has room for, and the mailbox of a run on it."""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from metasp.errors import UserError

try:
    import ray
    from ray.exceptions import RayError, RayTaskError, TaskCancelledError
except ImportError as missing:
    raise UserError("Ray is not installed: pip install -e '.[cluster]' in the clone.") from missing

__all__ = [
    "LOCAL",
    "POLL_SECONDS",
    "Mailbox",
    "RayError",
    "RayTaskError",
    "TaskCancelledError",
    "connect",
    "lacking",
    "last_line",
    "ray",
    "room_for",
    "warn",
    "where",
]

POLL_SECONDS = 0.5
LOCAL = "local"  # Ray's word for a cluster of our own

Word = dict[str, Any]  # an update without its name


class Mailbox:
    """Two files beside a run, on storage that all nodes see: how the run is, written by its worker,
    and whether it is to stop, by the command that started it."""

    def __init__(self, run: Path) -> None:
        self.word = run.with_name(f".{run.name}.word")
        self.stopped = run.with_name(f".{run.name}.stop")
        self.asked = 0.0
        self.stop_asked = False

    def open(self, note: str) -> None:
        self.word.parent.mkdir(parents=True, exist_ok=True)
        self.stopped.unlink(missing_ok=True)
        self.tell({"state": "running", "note": note})

    def close(self) -> None:
        for file in (self.word, self.stopped):
            file.unlink(missing_ok=True)

    def tell(self, word: Word) -> None:
        """Replace the word on the run in one step."""
        written = self.word.with_name(f"{self.word.name}.{os.getpid()}")
        written.write_text(json.dumps(word))
        written.replace(self.word)

    def read(self) -> Word:
        """Return the newest word on the run; empty where there is no mailbox here."""
        with suppress(FileNotFoundError):
            return dict(json.loads(self.word.read_text()))
        return {}

    def ask_to_stop(self) -> None:
        self.stopped.touch()

    def stop(self) -> bool:
        """Return whether the run is to stop; storage is asked now and then only."""
        now = time.monotonic()
        if not self.stop_asked and now - self.asked > POLL_SECONDS:
            self.asked, self.stop_asked = now, self.stopped.exists()
        return self.stop_asked


def where(address: str | None) -> str:
    """Return the cluster to join; LOCAL where one is started here."""
    return address or os.environ.get("RAY_ADDRESS") or LOCAL


def connect(address: str | None) -> None:
    """Join the cluster, or start one on this machine where no address is given: Ray itself would
    join whatever cluster a file that anyone can write to names."""
    if ray.is_initialized():
        return
    cluster = where(address)
    new: Any = {"include_dashboard": False} if cluster == LOCAL else {}
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=cluster, logging_level=logging.ERROR, log_to_driver=False, **new)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        if cluster == LOCAL:
            raise UserError(f"Ray does not start here ({reason}): leave out --on ray.") from error
        raise UserError(
            f"cannot reach a Ray cluster at {cluster} ({reason}): start one by `ray start --head`."
        ) from error
    signal.signal(signal.SIGTERM, on_term)  # Ray sets its own; ours stores checkpoints


def room_for(needs: Mapping[str, float]) -> int:
    """Return how many that need so much each the cluster can carry now."""
    return sum(fitting(needs, node) for node in alive())


def fitting(needs: Mapping[str, float], node: Mapping[str, float]) -> int:
    """Return how many runs with these needs a node can carry at once."""
    return int(min([node.get(kind, 0.0) / need for kind, need in needs.items() if need] or [1.0]))


def lacking(needs: Mapping[str, float]) -> str:
    """Say what no single node has enough of."""
    most = {kind: max([n.get(kind, 0.0) for n in alive()], default=0.0) for kind in needs}
    short = [kind for kind in needs if needs[kind] > most[kind]] or [*needs]
    return ", ".join(f"{needs[kind]:g} {kind} of {most[kind]:g}" for kind in short)


def alive() -> list[dict[str, float]]:
    """Return what each node has."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]


def warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr)


def last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]

"""What runs on a cluster's node: one run in a folder of its own, or on storage that all share.
This module must not import torch before the node's environment is set, nor ray at all."""

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasp.errors import UserError
from metasp.store.files import locked
from metasp.store.parcel import Parcel, newest_checkpoint, pack, unpack

if TYPE_CHECKING:
    from metasp.influence.parallel import Ranks

Word = dict[str, Any]
PREFIX = "metasp-run-"
LOCAL = "local"  # Ray's word for a cluster of our own


class Remote:
    """A run that can be asked how it is while it runs. Each method is called by another thread:
    `run` once, `poll` again and again, `stop` at most once."""

    def __init__(self, order: dict[str, Any], parcel: Parcel | None) -> None:
        # Threads that spin while they wait would steal the cores of the node's other runs.
        os.environ["OMP_WAIT_POLICY"] = "passive"
        self.order = order
        self.fetched = parcel is not None
        self.held = contextlib.ExitStack()
        self.runs = own_folder(self.held) if self.fetched else Path(order["runs"])
        self.path = self.runs / order["name"]
        if parcel:
            unpack(self.path, parcel)
        self.begun = newest_checkpoint(self.path)
        self.sent = self.begun
        self.stopping, self.lock = threading.Event(), threading.Lock()
        self.word: Word = {"state": "running", "note": self.origin()}

    def origin(self) -> str:
        return f"from checkpoint {self.begun}" if self.begun else "from the start"

    def run(self, ranks: "Ranks | None" = None) -> tuple[Word, Parcel | None]:
        """Carry the order out to its end, alone or with the other processes of the run; the last
        word on it, and all files of it."""
        from metasp.sweeps.jobs import Update, carry_out_order

        def tell(update: Update) -> None:
            self.word = word_of(replace(update, note=f"{update.note} · {self.origin()}"))

        try:
            last = carry_out_order(self.order, self.runs, self.stopping.is_set, tell, ranks)
        finally:
            parcel = self.take()
        return word_of(last), parcel

    def poll(self) -> tuple[Word, Parcel | None]:
        """How the run is, and its files where there is a checkpoint that was not sent yet."""
        with self.lock:
            newest = newest_checkpoint(self.path) if self.fetched else self.sent
            if newest == self.sent:
                return self.word, None
            self.sent = newest
            return self.word, pack(self.path)

    def stop(self) -> None:
        """Store a checkpoint and end."""
        self.stopping.set()

    def take(self) -> Parcel | None:
        """All files, for the last time; the folder here is no longer needed."""
        if not self.fetched:
            return None
        with self.lock:
            parcel, self.fetched = pack(self.path), False  # there is nothing more to poll
            shutil.rmtree(self.runs, ignore_errors=True)
            self.held.close()
        return parcel


class Post:
    """What the workers of one run and the command that started them tell each other. It stays on
    the command's own node, and so outlives every worker. The first worker tells, the command asks,
    and workers that are started again begin with the newest files that were told."""

    def __init__(self, parcel: Parcel) -> None:
        self.parcel, self.sent = parcel, True
        self.word: Word = {"state": "running", "note": "waiting for workers"}
        self.begun, self.stopping = 0, False

    def begin(self) -> Parcel | None:
        """The files to begin with; None where there is nothing more to do."""
        if not self.over:
            self.begun += 1
            note = f"a worker or node was lost: try {self.begun}" if self.begun > 1 else "starting"
            self.word = {"state": "stopped"} if self.stopping else {**self.word, "note": note}
        return None if self.over else self.parcel

    def tell(self, word: Word, parcel: Parcel | None = None) -> bool:
        """How the run is, and its files where they are new; whether it is to stop."""
        if not self.over:
            self.word = word
        if parcel:
            self.parcel, self.sent = parcel, False
        return self.stopping

    def ask(self) -> tuple[Word, Parcel | None]:
        """What was told last, and the files where they were not given out yet."""
        parcel, self.sent = None if self.sent else self.parcel, True
        return self.word, parcel

    def stop(self) -> None:
        self.stopping = True

    @property
    def over(self) -> bool:
        return bool(self.word["state"] != "running")


def guard_own_cluster(address: str | None = None) -> None:
    """Ray listens on every network it finds and runs what it is sent: a cluster of our own asks
    for a token that nobody else has. To be called before Ray is imported, which reads it then."""
    if (address or os.environ.get("RAY_ADDRESS") or LOCAL) == LOCAL:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def word_of(update: Any) -> Word:
    """An update without its name, which the driver knows."""
    return {name: value for name, value in asdict(update).items() if name != "name"}


def own_folder(held: contextlib.ExitStack) -> Path:
    """A folder that is this process's while it lives. Those of processes that were killed go
    first: they hold examples that nobody could forget any more. Others may write to the same
    place, so that only folders of our own count."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(UserError, OSError):
            if left.is_symlink() or left.stat().st_uid != os.getuid():
                continue
            if (left / "lock").is_file():
                with locked(left / "lock"):
                    shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    held.enter_context(locked(folder / "lock"))
    return folder

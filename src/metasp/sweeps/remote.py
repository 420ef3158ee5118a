"""What runs on a cluster's node: one run in a folder of its own, or on storage that all share.
This module must not import torch before the node's environment is set, nor ray at all."""

import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from metasp.errors import UserError
from metasp.store.parcel import Parcel, newest_checkpoint, pack, unpack

Word = dict[str, Any]


class Remote:
    """A run that can be asked how it is while it runs. Each method is called by another thread:
    `run` once, `poll` again and again, `stop` at most once."""

    def __init__(self, order: dict[str, Any], parcel: Parcel | None) -> None:
        # Threads that spin while they wait would steal the cores of the node's other runs.
        os.environ["OMP_WAIT_POLICY"] = "passive"
        self.order = order
        self.fetched = parcel is not None
        self.runs = Path(tempfile.mkdtemp(prefix="metasp-") if self.fetched else order["runs"])
        self.path = self.runs / order["name"]
        if parcel:
            unpack(self.path, parcel)
        self.begun = newest_checkpoint(self.path)
        self.sent = self.begun
        self.stopping = threading.Event()
        self.word: Word = {"state": "running", "note": self.origin()}

    def origin(self) -> str:
        return f"from checkpoint {self.begun}" if self.begun else "from the start"

    def run(self) -> tuple[Word, Parcel | None]:
        """Carry the order out to its end; the last word on it, and all files of it."""
        from metasp.experiment import Interrupted, prepare
        from metasp.spec import RunSpec
        from metasp.sweeps.jobs import carry_out

        order = self.order
        try:
            experiment = prepare(
                RunSpec.from_dict(order["spec"]),
                self.runs,
                Path(order["data"]) if order["data"] else None,
                checkpoint_seconds=order["checkpoint_seconds"],
                stop=self.stopping.is_set,
            )
            for update in carry_out(experiment):
                self.word = {
                    "state": update.state,
                    "fraction": update.fraction,
                    "left": update.left,
                    "note": f"{update.note} · {self.origin()}",
                }
            last: Word = {"state": "done", "fraction": 1.0, "left": 0.0}
        except Interrupted:
            last = {"state": "stopped"}
        except UserError as error:
            last = {"state": "failed", "note": str(error)}
        return last, self.take()

    def poll(self) -> tuple[Word, Parcel | None]:
        """How the run is, and its files where there is a checkpoint that was not sent yet."""
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
        parcel = pack(self.path)
        shutil.rmtree(self.runs, ignore_errors=True)
        return parcel

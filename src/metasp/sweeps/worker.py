"""One run of a sweep in a process of its own: an order on stdin, updates on stdout, as JSON."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from metasp.errors import UserError
from metasp.experiment import Interrupted, prepare
from metasp.spec import RunSpec
from metasp.sweeps.jobs import Update, carry_out


def main() -> None:
    """Read an order, carry it out, say how it ended. What else is printed goes to stderr."""
    tell = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = json.loads(sys.stdin.readline())
    sys.excepthook = partial(confess, tell, order.get("name", ""))
    stop = stop_on_term()
    threading.Thread(target=die_with_parent, daemon=True).start()
    send(tell, run(order, stop, tell))


def run(order: dict[str, Any], stop: Callable[[], bool], tell: TextIO) -> Update:
    """Carry an order out; the last word on it."""
    name = order["name"]
    try:
        experiment = prepare(
            RunSpec.from_dict(order["spec"]),
            Path(order["runs"]),
            Path(order["data"]) if order["data"] else None,
            checkpoint_seconds=order["checkpoint_seconds"],
            stop=stop,
        )
        if experiment.directory.path.name != name:
            raise UserError(
                f"it is {experiment.directory.path.name} now: metasp was changed under the sweep; "
                "start the sweep again."
            )
        for update in carry_out(experiment):
            send(tell, update)
    except Interrupted:
        return Update(name, "stopped")
    except UserError as error:
        return Update(name, "failed", note=str(error))
    return Update(name, "done", 1.0, 0.0)


def send(tell: TextIO, update: Update) -> None:
    tell.write(json.dumps(asdict(update)) + "\n")


def confess(
    tell: TextIO, name: str, kind: type[BaseException], error: BaseException, trace: Any
) -> None:
    """A mistake of ours ends the run with its name in one line, and the whole of it on stderr."""
    sys.__excepthook__(kind, error, trace)
    words = str(error).splitlines()[0] if str(error) else ""
    send(tell, Update(name, "failed", note=f"{kind.__name__}: {words}"))


def stop_on_term() -> Callable[[], bool]:
    """A question that answers yes once the sweep has asked this process to stop."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep, which then asks us
    return asked.is_set


def die_with_parent() -> None:
    """The sweep never closes our stdin while it lives: the end of it means that it was killed.
    Ending at once frees the run for the next sweep; the last checkpoint stands."""
    # Not through sys.stdin, whose lock a blocked thread would hold when the interpreter ends.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()

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

from metasp.sweeps.jobs import Update, carry_out_order


def main() -> None:
    """Read an order, carry it out, say how it ended. What else is printed goes to stderr."""
    tell = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = json.loads(sys.stdin.readline())
    sys.excepthook = partial(report_crash, tell, order.get("name", ""))
    stop = stop_on_term()
    threading.Thread(target=die_with_parent, daemon=True).start()
    last = carry_out_order(order, Path(order["runs"]), stop, partial(send, tell))
    send(tell, last)


def send(tell: TextIO, update: Update) -> None:
    tell.write(json.dumps(asdict(update)) + "\n")


def report_crash(
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

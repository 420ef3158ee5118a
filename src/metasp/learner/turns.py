"""Turns of the threads that use one learner: a training step, a prediction, a file."""

import threading
from types import TracebackType
from typing import Any


class Turns:
    """A lock that one thread may take again, and that no waiting thread is passed over for long: a
    training loop that lets go of it between two steps lets the others in."""

    def __init__(self) -> None:
        self._lock, self._queue = threading.RLock(), threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner == me:
            self._lock.acquire()
        else:
            with self._queue:  # who waits stands before the one that comes back for its next step
                self._lock.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._lock.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Turns":
        return Turns()

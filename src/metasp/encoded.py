"""Pictures that stay encoded until somebody takes them, and are decoded a little ahead of that."""

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from metasp.errors import UserError

Array = np.ndarray[Any, Any]
Item = TypeVar("Item")
Made = TypeVar("Made")

WORKERS = "METASP_DECODE_WORKERS"  # in the environment, as it changes no result
MOST_WORKERS = 8
AHEAD = 2  # batches that are made while one is used
DECODED_BYTES, ENCODED_BYTES = 128 << 20, 32 << 20  # of pictures that are kept for another use
PORTION = 512  # pictures that are looked at together


class CorruptPicture(UserError):
    """A picture that cannot be decoded, as one sentence that names it."""


class LazyRows(ABC):
    """Stands where a tensor of bytes (n, …) would, of which rows can be taken and nothing else."""

    dtype = torch.uint8
    device = torch.device("cpu")

    def __init__(self, size: int, shape: Sequence[int]) -> None:
        self.shape = torch.Size([size, *shape])

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, rows: Tensor) -> Tensor:
        """The rows (k,) as a tensor (k, …)."""

    @abstractmethod
    def unreadable(self, rows: Tensor) -> dict[int, str]:
        """Those of the rows that are corrupt, with a sentence about each."""

    def to(self, device: object) -> "LazyRows":
        """Itself: rows go to a device when they are taken."""
        return self

    def numpy(self) -> "LazyArray":
        return LazyArray(self)


class LazyArray:
    """The same for who knows NumPy's arrays alone."""

    def __init__(self, rows: LazyRows) -> None:
        self.rows, self.ndim = rows, len(rows.shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Array) -> Array:
        return self.rows[torch.from_numpy(rows)].numpy()


class WithHoles(LazyRows):
    """A tensor some of whose rows are missing, as their pictures were corrupt."""

    def __init__(self, values: Tensor, holes: Mapping[int, str]) -> None:
        super().__init__(len(values), values.shape[1:])
        self.values, self.holes = values, dict(holes)

    def __getitem__(self, rows: Tensor) -> Tensor:
        missing = self.unreadable(rows)
        if missing:
            raise CorruptPicture(next(iter(missing.values())))
        return self.values[rows]

    def unreadable(self, rows: Tensor) -> dict[int, str]:
        return {row: self.holes[row] for row in rows.tolist() if row in self.holes}


class EncodedRows(LazyRows):
    """Pictures in the files they came in. Threads read and decode those that are taken; the last
    ones are kept, up to a number of bytes. The result does not depend on the number of threads."""

    def __init__(self, size: int, shape: Sequence[int]) -> None:
        super().__init__(size, shape)
        self._decoded: Recent[Array] = Recent(DECODED_BYTES, lambda picture: int(picture.nbytes))
        self._encoded: Recent[bytes] = Recent(ENCODED_BYTES, len)

    @abstractmethod
    def read(self, rows: Sequence[int]) -> list[bytes]:
        """The encoded pictures of some rows; called by several threads."""

    @abstractmethod
    def decode(self, content: bytes, row: int) -> Array:
        """An encoded picture as bytes (c, h, w), or a CorruptPicture that names the row."""

    @abstractmethod
    def encode(self, picture: Array) -> bytes:
        """A picture (c, h, w) in a form that `decode` gives back as it was."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        wanted = rows.tolist()
        found = torch.empty((len(wanted), *self.shape[1:]), dtype=self.dtype)
        out = found.numpy()

        def fill(places: Sequence[int]) -> None:
            for place, picture in zip(places, self._pictures([wanted[p] for p in places])):
                out[place] = picture

        # In the order of the file, so that neighbours are read together.
        in_threads(fill, sorted(range(len(wanted)), key=wanted.__getitem__))
        return found

    def unreadable(self, rows: Tensor) -> dict[int, str]:
        found: dict[int, str] = {}

        def look(some: Sequence[int]) -> None:
            for row, content in zip(some, self.contents(some)):
                try:
                    self._decoded.put(row, self.decode(content, row))
                except CorruptPicture as error:
                    found[row] = str(error)

        for portion in torch.split(rows.sort().values, PORTION):
            in_threads(look, portion.tolist())
        return dict(sorted(found.items()))

    def contents(self, rows: Sequence[int]) -> list[bytes]:
        """The encoded pictures of some rows, read where they are not at hand."""
        found = {row: self._encoded.get(row) for row in rows}
        missing = [row for row, content in found.items() if content is None]
        for row, read in zip(missing, self.read(missing)):
            self._encoded.put(row, read)
            found[row] = read
        return [content for row in rows if (content := found[row]) is not None]

    def compact(self, rows: Sequence[int], pictures: Tensor) -> list[bytes]:
        """The smaller of what the file holds of each row and of its decoded picture (k, c, h, w)
        encoded again, which may be smaller where pictures were resized."""
        found = []
        for content, picture in zip(self.contents(rows), pictures.cpu().numpy()):
            again = self.encode(picture) if len(content) > picture.nbytes // 2 else content
            found.append(min(content, again, key=len))
        return found

    def _pictures(self, rows: Sequence[int]) -> list[Array]:
        known = {row: self._decoded.get(row) for row in rows}
        missing = [row for row, picture in known.items() if picture is None]
        for row, content in zip(missing, self.contents(missing)):
            known[row] = decoded = self.decode(content, row)
            self._decoded.put(row, decoded)
        return [picture for row in rows if (picture := known[row]) is not None]


class EncodedSlots(LazyRows):
    """The pictures in the slots of a memory, as they came out of their files: `pictures`, whose
    row of an example is its id. An empty slot is black."""

    def __init__(self, capacity: int, pictures: EncodedRows) -> None:
        super().__init__(capacity, pictures.shape[1:])
        self.pictures = pictures
        self.contents: list[bytes] = [b""] * capacity
        self._ids = [-1] * capacity
        self._decoded: Recent[Array] = Recent(DECODED_BYTES, lambda picture: int(picture.nbytes))

    def put(self, slots: Tensor, ids: Tensor, pictures: Tensor) -> None:
        """Fill slots (k,) with pictures (k, c, h, w) of examples with these ids."""
        found = self.pictures.compact(ids.tolist(), pictures)
        for slot, example, content in zip(slots.tolist(), ids.tolist(), found):
            self.contents[slot], self._ids[slot] = content, example
            self._decoded.drop(slot)

    def clear(self, slots: Tensor) -> None:
        for slot in slots.tolist():
            self.contents[slot], self._ids[slot] = b"", -1
            self._decoded.drop(slot)

    def __getitem__(self, rows: Tensor) -> Tensor:
        wanted = rows.tolist()
        found = torch.zeros((len(wanted), *self.shape[1:]), dtype=self.dtype)
        out = found.numpy()

        def fill(places: Sequence[int]) -> None:
            for place in places:
                slot = wanted[place]
                picture = self._decoded.get(slot)
                if picture is None and self.contents[slot]:
                    picture = self.pictures.decode(self.contents[slot], self._ids[slot])
                    self._decoded.put(slot, picture)
                if picture is not None:
                    out[place] = picture

        in_threads(fill, range(len(wanted)))
        return found

    def unreadable(self, rows: Tensor) -> dict[int, str]:
        return {}  # what could not be decoded has never come in

    def state(self) -> dict[str, Tensor]:
        """All pictures end to end, and where in there that of each slot begins and ends."""
        ends = np.cumsum([len(content) for content in self.contents], dtype=np.int64)
        places = np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)
        whole = np.frombuffer(b"".join(self.contents), np.uint8).copy()
        return {"encoded": torch.from_numpy(whole), "places": torch.from_numpy(places)}

    def restore(self, state: Mapping[str, Tensor], ids: Tensor) -> None:
        whole = state["encoded"].numpy().tobytes()
        self._ids = ids.tolist()
        self.contents = [
            whole[start:end] if example >= 0 else b""
            for (start, end), example in zip(state["places"].tolist(), self._ids)
        ]
        self._decoded.clear()


class Recent(Generic[Made]):
    """What was put in last, by its number, up to so many bytes in all."""

    def __init__(self, room: int, size: Callable[[Made], int]) -> None:
        self.room, self.size = room, size
        self._held: OrderedDict[int, Made] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def get(self, key: int) -> Made | None:
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: int, value: Made) -> None:
        with self._lock:
            self._drop(key)
            self._held[key] = value
            self._bytes += self.size(value)
            while self._bytes > self.room:
                self._drop(next(iter(self._held)))

    def drop(self, key: int) -> None:
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self._bytes = 0

    def _drop(self, key: int) -> None:
        if key in self._held:
            self._bytes -= self.size(self._held.pop(key))


def ahead(make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """What is made of each item, in order; the next ones are made while one is used."""
    due: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(1, "metasp-ahead") as thread:
        try:
            for item in items:
                due.append(thread.submit(make, item))
                if len(due) > AHEAD:
                    yield due.popleft().result()
            while due:
                yield due.popleft().result()
        finally:  # whoever leaves in the middle must not wait for the rest
            for future in due:
                future.cancel()


def in_threads(do: Callable[[Sequence[int]], None], places: Sequence[int]) -> None:
    """Do it with consecutive parts of the places, one part per thread. Of several failures that of
    the first part is raised, once all parts are done."""
    threads = workers()
    count = min(threads, len(places))
    if count < 2:
        return do(places)
    cuts = [len(places) * part // count for part in range(count + 1)]
    parts = [places[start:end] for start, end in pairwise(cuts)]
    pending = [_threads(os.getpid(), threads).submit(do, part) for part in parts]
    errors = [future.exception() for future in pending]
    for error in errors:
        if error is not None:
            raise error


def workers() -> int:
    """How many threads decode: as told by the environment, or one for each processor."""
    told = os.environ.get(WORKERS)
    if told is None:
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        return min(MOST_WORKERS, usable or os.cpu_count() or 1)
    if not told.isdecimal() or not 1 <= int(told) <= 1024:
        raise UserError(f"{WORKERS} is {told!r}: give a whole number from 1 to 1024.")
    return int(told)


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """The threads of a process; one that was forked has none of its parent's."""
    return ThreadPoolExecutor(count, "metasp-decode")

"""Pictures that stay encoded until somebody takes them, and are decoded a little ahead of that."""

import ctypes
import math
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from metasp.errors import CorruptPicture, UserError

Array = np.ndarray[Any, Any]
Item = TypeVar("Item")
Made = TypeVar("Made")

WORKERS = "METASP_DECODE_WORKERS"  # in the environment, as it changes no result
MOST_WORKERS = 8
AHEAD = 2  # batches that are made while one is used
DECODED_BYTES = 128 << 20  # of pictures that stay decoded for another use
M_MMAP_THRESHOLD, LARGE_BLOCK = -3, 4 << 20  # the name of glibc's option, and bytes
PORTION = 512  # pictures that are looked at together


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


class EncodedRows(LazyRows):
    """Pictures in the files they came in. Threads read and decode those that are taken; the last
    ones are kept, up to a number of bytes. The result does not depend on the number of threads."""

    def __init__(self, size: int, shape: Sequence[int]) -> None:
        super().__init__(size, shape)
        self._decoded = RecentPictures(self.shape)
        return_large_blocks()

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
        pictures = torch.empty((len(wanted), *self.shape[1:]), dtype=self.dtype)
        out = pictures.numpy()

        def fill(positions: Sequence[int]) -> None:
            missing = [p for p in positions if not self._decoded.copy(wanted[p], out[p])]
            rows = [wanted[position] for position in missing]
            for position, row, content in zip(missing, rows, self.read(rows)):
                out[position] = picture = self.decode(content, row)
                self._decoded.put(row, picture)

        # In the order of the file, so that neighbours are read together.
        in_threads(fill, sorted(range(len(wanted)), key=wanted.__getitem__))
        return pictures

    def unreadable(self, rows: Tensor) -> dict[int, str]:
        errors: dict[int, str] = {}

        def look(rows: Sequence[int]) -> None:
            for row, content in zip(rows, self.read(rows)):
                try:
                    self._decoded.put(row, self.decode(content, row))
                except CorruptPicture as error:
                    errors[row] = str(error)

        for portion in torch.split(rows.sort().values, PORTION):
            in_threads(look, portion.tolist())
        return dict(sorted(errors.items()))

    def compact(self, rows: Sequence[int], pictures: Tensor) -> list[bytes]:
        """The smaller of what the file holds of each row and of its decoded picture (k, c, h, w)
        encoded again, which may be smaller where pictures were resized."""
        contents = []
        for content, picture in zip(self.read(rows), pictures.cpu().numpy()):
            again = self.encode(picture) if len(content) > picture.nbytes // 2 else content
            contents.append(min(content, again, key=len))
        return contents


class EncodedSlots(LazyRows):
    """The pictures in the slots of a memory, as they came out of their files: `pictures`, whose
    row of an example is its id. An empty slot is black."""

    def __init__(self, capacity: int, pictures: EncodedRows) -> None:
        super().__init__(capacity, pictures.shape[1:])
        self.pictures = pictures
        self.contents: list[bytes] = [b""] * capacity
        self._ids = [-1] * capacity
        self._decoded = RecentPictures(self.shape)

    def put(self, slots: Tensor, ids: Tensor, pictures: Tensor) -> None:
        """Fill slots (k,) with pictures (k, c, h, w) of examples with these ids."""
        contents = self.pictures.compact(ids.tolist(), pictures)
        for slot, example, content in zip(slots.tolist(), ids.tolist(), contents):
            self.contents[slot], self._ids[slot] = content, example
            self._decoded.drop(slot)

    def clear(self, slots: Tensor) -> None:
        for slot in slots.tolist():
            self.contents[slot], self._ids[slot] = b"", -1
            self._decoded.drop(slot)

    def __getitem__(self, rows: Tensor) -> Tensor:
        wanted = rows.tolist()
        pictures = torch.zeros((len(wanted), *self.shape[1:]), dtype=self.dtype)
        out = pictures.numpy()

        def fill(positions: Sequence[int]) -> None:
            for position in positions:
                slot = wanted[position]
                if self.contents[slot] and not self._decoded.copy(slot, out[position]):
                    picture = self.pictures.decode(self.contents[slot], self._ids[slot])
                    out[position] = picture
                    self._decoded.put(slot, picture)

        in_threads(fill, range(len(wanted)))
        return pictures

    def unreadable(self, rows: Tensor) -> dict[int, str]:
        return {}  # what could not be decoded has never come in

    def state(self) -> dict[str, Tensor]:
        """All pictures end to end, and where in there that of each slot begins and ends."""
        ends = np.cumsum([len(content) for content in self.contents], dtype=np.int64)
        places = np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)
        content = np.frombuffer(b"".join(self.contents), np.uint8).copy()
        return {"encoded": torch.from_numpy(content), "places": torch.from_numpy(places)}

    def restore(self, state: Mapping[str, Tensor], ids: Tensor) -> None:
        content = state["encoded"].numpy().tobytes()
        self._ids = ids.tolist()
        self.contents = [
            content[start:end] if example >= 0 else b""
            for (start, end), example in zip(state["places"].tolist(), self._ids)
        ]
        self._decoded = RecentPictures(self.shape)


class RecentPictures:
    """Decoded pictures that were used last, by their row. They are in one block: small pieces all
    over the memory would keep what lies between them from being given back."""

    def __init__(self, shape: Sequence[int]) -> None:
        size = max(1, math.prod(shape[1:]))
        self._block = np.empty((min(shape[0], DECODED_BYTES // size), *shape[1:]), np.uint8)
        self._places: OrderedDict[int, int] = OrderedDict()
        self._free = list(range(len(self._block)))
        self._lock = threading.Lock()

    def copy(self, row: int, out: Array) -> bool:
        """Write the picture to `out`, if it is here."""
        with self._lock:
            slot = self._places.get(row)
            if slot is None:
                return False
            self._places.move_to_end(row)
            out[...] = self._block[slot]
            return True

    def put(self, row: int, picture: Array) -> None:
        with self._lock:
            if row in self._places or not len(self._block):
                return
            place = self._free.pop() if self._free else self._places.popitem(last=False)[1]
            self._places[row], self._block[place] = place, picture

    def drop(self, row: int) -> None:
        with self._lock:
            if row in self._places:
                self._free.append(self._places.pop(row))


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


@cache
def return_large_blocks() -> None:
    """Have the C library give every block of a batch's size back to the system when it is freed.
    glibc stops to do so after the first, and small pieces between the blocks then keep hundreds of
    megabytes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


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

"""Encoded pictures: decoded to bytes of one size and one number of channels, as they are needed or,
where they are few, once for all runs."""

import contextlib
import hashlib
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from metasp.config import cache_folder
from metasp.data.source import Columns, Source, check_classes, constants, refuse, source_of
from metasp.encoded import PORTION, EncodedRows, LazyRows
from metasp.errors import CorruptPicture, UserError, or_user_error
from metasp.spec import RunSpec

LARGE = 2_000_000_000  # bytes of decoded pictures above which they stay encoded
MANY, SAMPLE = 100_000, 20_000  # pictures of which not all make the constants, but so many

# Formats that Pillow decodes by itself; others may start a program of the system.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
BOMB = 1 << 27  # pixels of a picture that may be made to exhaust the memory
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F")

Array = np.ndarray[Any, Any]
Read = Callable[[Sequence[int]], list[bytes]]
"""From rows to the encoded picture of each; called by several threads."""


class Pictures(EncodedRows):
    """Pictures that are read and decoded when they are taken. Size and colour are those of the
    first readable one, unless the spec asks for others. `checksums` (n,) tell one that has
    changed."""

    def __init__(
        self, read: Read, name: Callable[[int], str], checksums: Array, spec: RunSpec
    ) -> None:
        self._read, self.name, self._checksums = read, name, checksums
        self._size, self._colour, self._mode = spec.image_size, spec.colour, spec.colour
        self._shape: tuple[int, ...] | None = None
        super().__init__(len(checksums), self._first(spec.skip_corrupt).shape)
        self._shape = self.shape[1:]

    def read(self, rows: Sequence[int]) -> list[bytes]:
        contents = self._read(rows)
        for row, content in zip(rows, contents):
            if checksum(content) != self._checksums[row]:
                raise UserError(
                    f"{self.name(row)} has changed since this run began: restore it, or start a "
                    "new run."
                )
        return contents

    def decode(self, content: bytes, row: int) -> Array:
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
                array = self._array(picture, row)
        except UserError:
            raise
        except (
            Image.DecompressionBombError,
            Image.DecompressionBombWarning,
            OSError,
            SyntaxError,
            ValueError,
        ) as error:
            reason = "not a known picture" if isinstance(error, UnidentifiedImageError) else error
            raise CorruptPicture(
                f"{self.name(row)} cannot be decoded ({reason}): repair or remove it, or leave it "
                "out with --skip-corrupt."
            ) from error
        if self._shape not in (None, array.shape):
            now, first = (f"{shape[-1]}×{shape[-2]}" for shape in (array.shape, self.shape))
            raise UserError(
                f"{self.name(row)} is {now} pixels and the first one {first}: bring them to one "
                "size with --image-size."
            )
        return array

    def _array(self, picture: Image.Image, row: int) -> Array:
        """Return a picture as bytes (c, h, w)."""
        if picture.width * picture.height > (Image.MAX_IMAGE_PIXELS or BOMB):
            raise Image.DecompressionBombError(f"{picture.width}×{picture.height} pixels")
        grey = picture.mode in GREY_MODES
        mode = self._mode or ("grey" if grey else "rgb")
        if mode == "grey" and not grey and self._colour is None:
            raise UserError(
                f"{self.name(row)} is in colour and the first one grey: choose --colour grey or "
                "rgb."
            )
        if picture.mode.startswith(("I", "F")):
            raise UserError(
                f"{self.name(row)} has more than 8 bits per pixel: convert it to 8 bits, or give "
                "the data as arrays:FILE.npz."
            )
        picture = picture.convert("L" if mode == "grey" else "RGB")
        self._mode = mode  # of the first that could be decoded
        if self._size is not None and picture.size != (self._size, self._size):
            picture = picture.resize((self._size, self._size), Image.Resampling.BILINEAR)
        array = np.asarray(picture)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)

    def encode(self, picture: Array) -> bytes:
        """Encode a picture (c, h, w) of bytes so that it decodes to the same bytes."""
        sink = io.BytesIO()
        values = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
        Image.fromarray(np.ascontiguousarray(values)).save(sink, "PNG", optimize=True)
        return sink.getvalue()

    def _first(self, skip: bool) -> Array:
        for row in range(len(self._checksums)):
            try:
                return self.decode(self.read([row])[0], row)
            except CorruptPicture:
                if not skip or row == len(self._checksums) - 1:
                    raise
        raise UserError("there is not a single example in this data.")


def checksum(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def picture_source(
    name: str,
    read: Read,
    describe: Callable[[int], str],
    key: Any,
    columns: Columns,
    spec: RunSpec,
    pool: Sequence[str] = (),
) -> Source:
    """Return the source of encoded pictures, which an error names by `describe`; they need not be
    read again for their digest while their `key` is the same. What `--skip-corrupt` leaves out is
    known when it is decoded: so they stay encoded with it."""
    refuse(spec, "pictures", "image_size", "colour", "label_column", "true_label_column",
           "decode", "skip_corrupt")  # fmt: skip
    size = len(columns.labels)

    def digests(rows: Sequence[int]) -> list[int]:
        return [checksum(content) for content in read(rows)]

    checksums = cached_array(["checksums", key], (size,), np.uint64, digests, "checking")
    pictures = Pictures(read, describe, checksums, spec)
    content = hashlib.sha256(checksums.tobytes())
    content.update(repr((spec.image_size, spec.colour, [*pictures.shape])).encode())
    # A complete spec says so where it is lazy: if it says nothing, it is not.
    undecided = spec.decode == "auto" and spec.data_digest is None
    large = undecided and pictures.shape.numel() > LARGE
    if spec.decode == "lazy" or spec.skip_corrupt or large:
        source = source_of(name, pictures, columns, content.digest(), pool)
        return with_picture_constants(source, spec.skip_corrupt)
    pixels = cached_array(
        ["pixels", content.hexdigest()],
        pictures.shape,
        np.uint8,
        lambda rows: pictures[torch.tensor(rows)],
        "decoding",
    )
    source = source_of(name, torch.from_numpy(pixels), columns, content.digest(), pool)
    return with_picture_constants(source, spec.skip_corrupt)


def with_picture_constants(source: Source, skip: bool) -> Source:
    """Return the source with the mean and deviation by channel of its train pictures; of very many,
    those of a part."""
    train = check_classes(source).train
    pictures = train.source
    if len(train) > MANY:
        train = train.only(torch.arange(SAMPLE) * len(train) // SAMPLE)

    def both(rows: Sequence[int]) -> Any:
        sound = train
        if skip and isinstance(pictures, LazyRows):
            sound = train.without_rows(torch.tensor([*pictures.unreadable(train.rows)]))
        return constants(sound)

    # What was decoded once need not be again at the next start.
    key = ["constants", source.digest, skip, train.rows.tolist()]
    shape = (2, pictures.shape[1])  # type: ignore[union-attr]
    mean, std = cached_array(key, shape, np.float64, both, "mean and deviation").tolist()
    return replace(source, mean=tuple(mean), std=tuple(std))


def cached_array(
    key: Any,
    shape: Sequence[int],
    dtype: Any,
    rows_of: Callable[[Sequence[int]], Any],
    doing: str,
) -> Array:
    """Return the array that is stored in the cache folder under `key`, or else one that `rows_of`
    gives now, some rows at a time. It is mapped into memory, and what is written to it never
    reaches the file."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    path = cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):  # not there, or cut short
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
        if array.shape == tuple(shape) and array.dtype == dtype:
            return array
    remedy = "make room, or name another folder with METASP_CACHE."
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with or_user_error(f"cannot keep decoded data in {path.parent}", remedy):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            out = np.lib.format.open_memmap(part, "w+", dtype, tuple(shape))  # type: ignore[no-untyped-call]
            for rows in portions(len(out), doing):
                out[rows.start : rows.stop] = rows_of(rows)
            out.flush()
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    stored: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    return stored


def portions(size: int, doing: str) -> Iterator[range]:
    """Yield the rows 0 to `size`, some at a time, and show a person at a terminal how far it is."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        line = bar.add_task(doing, total=size)
        for start in range(0, size, PORTION):
            rows = range(start, min(start + PORTION, size))
            yield rows
            bar.advance(line, len(rows))

"""Encoded pictures: decoded to arrays of bytes of one size and one number of channels, as they are
needed or, where they are few, once for all runs."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from metasp.data.cache import cached_array, cached_note, digest_of, progress
from metasp.data.request import Request
from metasp.data.source import Columns, Source, check_classes, constants, source_of
from metasp.encoded import PORTION, EncodedRows, LazyRows
from metasp.errors import CorruptPicture, UserError

LARGE = 2_000_000_000  # bytes of decoded pictures above which they stay encoded
MANY, SAMPLE = 100_000, 20_000  # pictures of which not all make the constants, but so many

# Formats that Pillow decodes by itself; others may start a program of the system.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
BOMB = 1 << 27  # pixels of a picture that may be made to exhaust the memory
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F")

Array = np.ndarray[Any, Any]
Read = Callable[[Sequence[int]], list[bytes]]
"""From rows to the encoded picture of each; called by several threads."""


@dataclass
class Decoder:
    """Decodes one picture after another. What is None is decided by the first picture, after which
    several threads may call it."""

    size: int | None = None
    colour: str | None = None  # "grey" | "rgb"
    shape: tuple[int, ...] | None = None
    chosen: str | None = None

    def __call__(self, content: bytes, where: Callable[[], str]) -> Array:
        """Decode a picture to bytes (c, h, w); `where` names it in an error."""
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
                array = self._array(picture, where)
        except (
            UnidentifiedImageError,
            Image.DecompressionBombError,
            Image.DecompressionBombWarning,
            OSError,
            SyntaxError,
            ValueError,
        ) as error:
            if isinstance(error, UserError):
                raise
            reason = "not a known picture" if isinstance(error, UnidentifiedImageError) else error
            raise CorruptPicture(
                f"{where()} cannot be decoded ({reason}): repair or remove it, or leave it out "
                "with --skip-corrupt."
            ) from error
        if self.shape is None:
            self.shape = array.shape
        if array.shape != self.shape:
            now, first = (f"{shape[2]}×{shape[1]}" for shape in (array.shape, self.shape))
            raise UserError(
                f"{where()} is {now} pixels and the first one {first}: bring them to one size "
                "with --image-size."
            )
        return array

    def _array(self, picture: Image.Image, where: Callable[[], str]) -> Array:
        if picture.width * picture.height > (Image.MAX_IMAGE_PIXELS or BOMB):
            raise Image.DecompressionBombError(f"{picture.width}×{picture.height} pixels")
        grey = picture.mode in GREY_MODES
        if self.chosen is None:
            self.chosen = self.colour or ("grey" if grey else "rgb")
        if self.chosen == "grey" and not grey and self.colour is None:
            raise UserError(
                f"{where()} is in colour and the first one grey: choose --colour grey or rgb."
            )
        if picture.mode.startswith(("I", "F")):
            raise UserError(
                f"{where()} has more than 8 bits per pixel: convert it to 8 bits, or give the "
                "data as arrays:FILE.npz."
            )
        picture = picture.convert("L" if self.chosen == "grey" else "RGB")
        if self.size is not None and picture.size != (self.size, self.size):
            picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR)
        array = np.asarray(picture)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def as_png(picture: Array) -> bytes:
    """Encode a picture (c, h, w) of bytes so that it decodes to the same bytes."""
    sink = io.BytesIO()
    values = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    Image.fromarray(np.ascontiguousarray(values)).save(sink, "PNG", optimize=True)
    return sink.getvalue()


class Pictures(EncodedRows):
    """Pictures that are read and decoded when they are taken. They are as the first readable one
    decides, unless a size and colour are asked for. `checksums` (n,) tell one that has changed."""

    def __init__(
        self, read: Read, name: Callable[[int], str], checksums: Array, request: Request
    ) -> None:
        self._read, self.name, self._checksums = read, name, checksums
        self._decoder = Decoder(request.image_size, request.colour)
        super().__init__(len(checksums), self._first(bool(request.skip_corrupt)).shape)

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
        return self._decoder(content, lambda: self.name(row))

    def encode(self, picture: Array) -> bytes:
        return as_png(picture)

    def _first(self, skip: bool) -> Array:
        for row in range(len(self._checksums)):
            try:
                return self.decode(self.read([row])[0], row)
            except CorruptPicture as error:
                if not skip:
                    raise
                last = error
        if not len(self._checksums):
            raise UserError("there is not a single example in this data.")
        raise last


def checksum(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def picture_source(
    name: str,
    read: Read,
    describe: Callable[[int], str],
    key: Any,
    columns: Columns,
    request: Request,
    pool: Sequence[str] = (),
) -> Source:
    """Return the source of encoded pictures, which an error names by `describe`; they need not be
    read again for their digest while their `key` is the same. The mean and deviation by channel
    are not set. What `--skip-corrupt` leaves out is known when it is decoded: so they stay encoded
    with it."""
    request.refuse("pictures", "image_size", "colour", "label_column", "true_label_column",
                   "decode", "skip_corrupt")  # fmt: skip
    size = len(columns.labels)

    def fill(checksums: Array) -> None:
        with progress(size, "checking") as advance:
            for portion in portions(size):
                checksums[portion] = [checksum(content) for content in read(portion)]
                advance(len(portion))

    checksums = cached_array(["checksums", key], (size,), np.uint64, fill)
    pictures = Pictures(read, describe, checksums, request)
    content = hashlib.sha256(checksums.tobytes())
    content.update(repr((request.image_size, request.colour, [*pictures.shape])).encode())
    lazy = request.decode == "lazy" or request.skip_corrupt
    if lazy or (request.decode is None and pictures.shape.numel() > LARGE):
        return source_of(name, pictures, columns, content.digest(), pool)
    inputs = decoded(pictures, content.hexdigest())
    return source_of(name, inputs, columns, content.digest(), pool)


def decoded(pictures: Pictures, content: str) -> Tensor:
    """Return all pictures (n, c, h, w), decoded now or by an earlier run."""

    def fill(out: Array) -> None:
        with progress(len(out), "decoding") as advance:
            for portion in portions(len(out)):
                out[portion[0] : portion[-1] + 1] = pictures[torch.tensor(portion)].numpy()
                advance(len(portion))

    return torch.from_numpy(cached_array(["pixels", content], pictures.shape, np.uint8, fill))


def portions(size: int) -> list[range]:
    return [range(start, min(start + PORTION, size)) for start in range(0, size, PORTION)]


def with_picture_constants(source: Source, skip: bool | None) -> Source:
    """Return the source with the mean and deviation by channel of its train pictures; of very many,
    those of a part."""
    train = check_classes(source).train
    if len(train) > MANY:
        train = train.only(torch.arange(SAMPLE) * len(train) // SAMPLE)
    pictures = train.source

    def find() -> Any:
        with progress(len(train), "mean and deviation") as advance:
            sound = train
            if skip and isinstance(pictures, LazyRows):
                sound = train.without_rows(torch.tensor([*pictures.unreadable(train.rows)]))
            return constants(sound, advance)

    # What was decoded once need not be again at the next start.
    mean, std = cached_note(
        ["constants", source.digest, skip, digest_of(train.rows.tolist())], find
    )
    return replace(source, mean=tuple(mean), std=tuple(std))

"""Encoded pictures to arrays of bytes, all of one size and one number of channels."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from metasp.errors import CorruptPicture, UserError

# Formats that Pillow decodes by itself; others may start a program of the system.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MANY = 1 << 27  # pixels of a picture that may be made to exhaust the memory
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F")

Array = np.ndarray[Any, Any]


@dataclass
class Decoder:
    """Decodes one picture after another. What is None is decided by the first picture, after which
    several threads may call it."""

    size: int | None = None
    colour: str | None = None  # "grey" | "rgb"
    shape: tuple[int, ...] | None = None
    chosen: str | None = None

    def __call__(self, content: bytes, where: Callable[[], str]) -> Array:
        """The picture as bytes (c, h, w); `where` names it in an error."""
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
        if picture.width * picture.height > (Image.MAX_IMAGE_PIXELS or MANY):
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
    """A picture (c, h, w) of bytes as a file that decodes to the same bytes."""
    sink = io.BytesIO()
    values = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    Image.fromarray(np.ascontiguousarray(values)).save(sink, "PNG", optimize=True)
    return sink.getvalue()

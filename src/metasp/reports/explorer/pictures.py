"""The examples to look at: small pictures packed into sheets, or the rows of a table."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]

COLUMNS = 50  # tiles across a sheet
RIM = 1  # pixels of its own edge around each tile, so that scaling never mixes neighbours
PER_SHEET = 2500
SIDE, SIDE_IF_MANY, MANY = 64, 32, 2500  # pixels of the longer side at most
LOSSLESS_BYTES = 2_000_000  # raw pixels up to which a sheet is exact
BUDGET_BYTES = 9_000_000  # of all sheets; base64 adds a third
QUALITIES = (85, 70, 50, 30, 15)
SHOWN_COLUMNS = 40
COARSE = 16  # pixels of the longer side by which pictures are compared
NEAREST = 3  # neighbours of each example
TINY = 1e-9
NEARLY = 0.2  # of the median distance to the nearest: closer examples are nearly the same
SHOWN_LETTERS = 2000


@dataclass(frozen=True)
class Missing:
    """Nothing to look at, and why, in one sentence."""

    why: str

    def only(self, wanted: Array) -> "Missing":
        return self


@dataclass(frozen=True)
class Texts:
    """The words of examples, by their ids."""

    words: Mapping[int, str]

    def only(self, wanted: Array) -> "Texts":
        """Those with the wanted ids."""
        return Texts({i: self.words[i] for i in wanted.tolist() if i in self.words})


@dataclass(frozen=True)
class Examples:
    """Inputs of which `rows` (n,) are the examples with these `ids` (n,): pictures (…, channels,
    height, width), or rows of a table. The inputs may be too large to copy as a whole."""

    ids: Array
    rows: Array
    inputs: Array

    @property
    def are_pictures(self) -> bool:
        return self.inputs.ndim == 4

    def only(self, wanted: Array) -> "Examples":
        """Those with the wanted ids, each once, in the order of the ids."""
        ids, first = np.unique(self.ids, return_index=True)
        inside = np.isin(ids, wanted)
        return Examples(ids[inside], self.rows[first[inside]], self.inputs)


Material = Examples | Texts | Missing


def neighbours(material: Material) -> tuple[dict[int, list[int]], list[tuple[int, int]]]:
    """Return the ids of the nearest examples to each, and pairs that are nearly the same, by what
    is seen of them: pixels of small pictures, numbers in units of their deviation, words."""
    if isinstance(material, Missing):
        return {}, []
    if isinstance(material, Texts):
        from sklearn.feature_extraction.text import HashingVectorizer

        ids = np.fromiter(material.words, np.int64, len(material.words))
        seen = HashingVectorizer(n_features=1024).transform(material.words.values())
    else:
        ids, inputs = material.ids, material.inputs[material.rows]
        seen = thumbnails(inputs, COARSE) if material.are_pictures else inputs
        seen = np.nan_to_num(seen.reshape(len(ids), -1).astype(np.float32))
        if not material.are_pictures:
            seen = (seen - seen.mean(0)) / (seen.std(0) + TINY)
    if len(ids) <= NEAREST + 1:
        return {}, []
    from sklearn.neighbors import NearestNeighbors

    distances, rows = NearestNeighbors(n_neighbors=NEAREST + 1).fit(seen).kneighbors(seen)
    near, twins = {}, set()
    limit = NEARLY * float(np.median(distances[:, 1]))
    for place, identity in enumerate(ids.tolist()):
        beside = [(d, int(ids[row])) for d, row in zip(distances[place], rows[place])]
        beside = [(d, other) for d, other in beside if other != identity][:NEAREST]
        near[identity] = [other for _, other in beside]
        twins |= {(min(identity, o), max(identity, o)) for d, o in beside if d <= limit}
    return near, sorted(twins)


def packed(material: Material) -> tuple[dict[str, Any], list[str]]:
    """How to find an example in the page, and the sheets of pictures as data URIs."""
    if isinstance(material, Missing):
        return {"kind": "none", "why": material.why}, []
    if isinstance(material, Texts):
        words = {i: text[:SHOWN_LETTERS] for i, text in material.words.items()}
        return {"kind": "texts", "values": list(words.values()), "ids": list(words)}, []
    ids, inputs = material.ids.tolist(), material.inputs[material.rows]
    if not material.are_pictures:
        flat = inputs.reshape(len(inputs), int(np.prod(inputs.shape[1:])))
        values = [[short(v) for v in row[:SHOWN_COLUMNS]] for row in flat.tolist()]
        return {"kind": "rows", "columns": flat.shape[1], "values": values, "ids": ids}, []
    tiles = thumbnails(inputs)
    height, width = tiles.shape[1:3]
    found = {"kind": "sprites", "width": width, "height": height, "across": COLUMNS}
    return {**found, "rim": RIM, "perSheet": PER_SHEET, "ids": ids}, sheets(tiles)


def thumbnails(images: Array, side: int | None = None) -> Array:
    """Bytes (n, height, width, 1 or 3), no side longer than the page needs, or than `side`."""
    if images.dtype != np.uint8:
        low, high = float(images.min(initial=0)), float(images.max(initial=0))
        images = ((images - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    if images.shape[1] not in (1, 3):
        images = images.mean(axis=1, keepdims=True).astype(np.uint8)
    tiles = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    side = side or (SIDE if len(tiles) <= MANY else SIDE_IF_MANY)
    longest = max(tiles.shape[1:3])
    if longest <= side or not len(tiles):
        return tiles
    size = tuple(max(1, round(n * side / longest)) for n in (tiles.shape[2], tiles.shape[1]))
    small = [np.asarray(picture(tile).resize(size, Image.Resampling.BOX)) for tile in tiles]
    return np.stack(small).reshape(len(tiles), size[1], size[0], tiles.shape[3])


def sheets(tiles: Array) -> list[str]:
    """The tiles in sheets, exact while they are few, else as fine as the budget allows."""
    parts = [sheet(tiles[at : at + PER_SHEET]) for at in range(0, len(tiles), PER_SHEET)]
    if tiles.nbytes <= LOSSLESS_BYTES:
        return [data_uri(encoded(part, None)) for part in parts]
    quality = affordable(parts[0], BUDGET_BYTES * len(parts[0]) // sum(map(len, parts)))
    return [data_uri(encoded(part, quality)) for part in parts]


def affordable(part: Array, budget: int) -> int:
    """The best quality that keeps one sheet, taken for all, within its share of the budget."""
    fits = (quality for quality in QUALITIES if len(encoded(part, quality)) <= budget)
    return next(fits, QUALITIES[-1])


def sheet(tiles: Array) -> Array:
    """Tiles with their rims in rows of COLUMNS, the rest of the last row black."""
    tiles = np.pad(tiles, ((0, 0), (RIM, RIM), (RIM, RIM), (0, 0)), mode="edge")
    count, height, width, channels = tiles.shape
    lines = -(-count // COLUMNS)
    full = np.zeros((lines * COLUMNS, height, width, channels), np.uint8)
    full[:count] = tiles
    grid = full.reshape(lines, COLUMNS, height, width, channels).transpose(0, 2, 1, 3, 4)
    return grid.reshape(lines * height, COLUMNS * width, channels)


def picture(pixels: Array) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def encoded(pixels: Array, quality: int | None) -> bytes:
    """WebP, lossless without a quality."""
    target = io.BytesIO()
    image = picture(pixels).convert("RGB")
    if quality is None:
        image.save(target, "WEBP", lossless=True, quality=50, method=4)
    else:
        image.save(target, "WEBP", quality=quality, method=2)
    return target.getvalue()


def data_uri(content: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(content).decode()}"


def short(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None

"""Running means of influence per example id, the same to the last bit in any batch order.

Sums of floating-point numbers depend on the order of the terms. Here each sum is a whole number:
a value is cut once into six 32-bit digits on a fixed grid (from 2**63 down to 2**-128) and the
digits are added as integers. Integer sums have no order, so batches may come in any order, ledgers
may be merged in any way, and a stored ledger continues exactly. A float32 value is kept exactly
down to 5e-32 and a float64 value down to 3e-23; what is smaller is rounded to the grid, once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metasp.errors import UserError
from metasp.types import ArrayLike, Rows

DIGITS = 6
LOWEST = -128  # the exponent of the last digit
QUANTITIES = ("stability", "plasticity", "fused")
_BASE = np.int64(1) << np.int64(32)

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
Column = Integers | Numbers


@dataclass(frozen=True)
class Row:
    """The means of one example over ``count`` batches."""

    id: int
    stability: float
    plasticity: float
    fused: float
    count: int


class Ledger:
    """Per example id: how often it was measured, and its mean stability, plasticity and fused,
    and of what else the caller names as ``extra``."""

    def __init__(self, extra: tuple[str, ...] = ()) -> None:
        self.quantities = (*QUANTITIES, *extra)
        self._place: dict[int, int] = {}
        self._sums: Integers = np.zeros((0, len(self.quantities), DIGITS), np.int64)
        self._counts: Integers = np.zeros(0, np.int64)

    @property
    def extra(self) -> tuple[str, ...]:
        """What it holds besides the influences."""
        return self.quantities[len(QUANTITIES) :]

    def __len__(self) -> int:
        return len(self._place)

    def add(self, ids: Rows, stability: Rows, plasticity: Rows, fused: Rows, *extra: Rows) -> None:
        """Enter one measurement per id; all arguments are vectors of one length (tensor, array)."""
        names = _array(ids).astype(np.int64)
        given = [_array(v).astype(np.float64) for v in (stability, plasticity, fused, *extra)]
        lengths = {v.shape for v in (names, *given)}
        if len(given) != len(self.quantities) or lengths != {(names.size,)}:
            raise UserError("a ledger needs one id and one number of each kind per example.")
        values = np.stack(given, 1)
        fits = np.abs(values) < 2.0**62
        if not fits.all():
            bad = int(names[~fits.all(1)][0])
            raise UserError(
                f"the influence of example {bad} is not finite, or too large to keep: lower the "
                "learning rate, or leave the example out."
            )
        places = self._places(names)
        digits = to_digits(values)
        if len(set(places.tolist())) == len(places):  # the usual case, and much the faster one
            self._sums[places] += digits
            self._counts[places] += 1
        else:
            np.add.at(self._sums, places, digits)
            np.add.at(self._counts, places, 1)

    def merge(self, other: "Ledger") -> None:
        """Enter all that another ledger holds."""
        if other.quantities != self.quantities:
            raise UserError(
                f"a ledger of {', '.join(self.quantities)} cannot take one of "
                f"{', '.join(other.quantities)}: make both with the same extra."
            )
        state = other.state()
        places = self._places(state["ids"])
        self._sums[places] += state["sums"]
        self._counts[places] += state["counts"]

    def without(self, ids: Rows) -> "Ledger":
        """A ledger of all that this one holds but for these ids."""
        state = self.state()
        kept = ~np.isin(state["ids"], _array(ids).astype(np.int64))
        held = {name: values[kept] for name, values in state.items()}
        return self.from_state(held, self.extra)

    def arrays(self) -> dict[str, Column]:
        """Columns by name: id (ascending), the mean of each quantity, count."""
        state = self.state()
        means = to_floats(state["sums"]) / np.maximum(state["counts"], 1)[:, None]
        columns: dict[str, Column] = {"id": state["ids"]}
        columns.update({name: means[:, i] for i, name in enumerate(self.quantities)})
        return {**columns, "count": state["counts"]}

    def rows(self) -> list[Row]:
        """The same, one row per example, without what is extra."""
        columns = self.arrays()
        chosen = [columns[name].tolist() for name in ("id", *QUANTITIES, "count")]
        return [Row(*values) for values in zip(*chosen)]

    def means(self, ids: Rows) -> Numbers:
        """The mean of each quantity (columns) of some ids (rows); NaN if never entered."""
        names = _array(ids).astype(np.int64).tolist()
        places = np.array([self._place.get(i, -1) for i in names], np.int64)
        result = np.full((len(names), len(self.quantities)), np.nan)
        known = places >= 0
        at = places[known]
        result[known] = to_floats(carried(self._sums[at])) / self._counts[at, None]
        return result

    def state(self) -> dict[str, Integers]:
        """Arrays to store: ids (n,), sums (n, quantities, digits), counts (n,), int64, by id."""
        ids = np.fromiter(self._place, np.int64, len(self._place))
        order = np.argsort(ids)
        used = len(ids)
        sums, counts = carried(self._sums[:used][order]), self._counts[:used][order]
        return {"ids": ids[order], "sums": sums, "counts": counts}

    @classmethod
    def from_state(cls, state: Mapping[str, ArrayLike], extra: tuple[str, ...] = ()) -> "Ledger":
        """The ledger that gave this `state` (tensors or arrays)."""
        made = cls(extra)
        ids, sums, counts = (_array(state[k]).astype(np.int64) for k in ("ids", "sums", "counts"))
        if sums.shape != (len(ids), len(made.quantities), DIGITS) or counts.shape != ids.shape:
            raise UserError("this is not the state of a ledger: its arrays have other shapes.")
        made._place = {i: place for place, i in enumerate(ids.tolist())}
        made._sums, made._counts = sums.copy(), counts.copy()
        return made

    def _places(self, ids: Integers) -> Integers:
        """The row of each id; new ids get new rows."""
        place = self._place
        found = [place.setdefault(i, len(place)) for i in ids.tolist()]
        short = len(place) - len(self._counts)
        if short > 0:  # grow by half: adding stays cheap on average
            room = short + len(self._counts) // 2
            fresh = np.zeros((room, len(self.quantities), DIGITS), np.int64)
            self._sums = np.concatenate([self._sums, fresh])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.int64)])
        return np.array(found, np.int64)


def _array(values: Any) -> NDArray[Any]:
    """A numpy array of a tensor (on any device, with or without graph), array or list."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def to_digits(values: Numbers) -> Integers:
    """Cut numbers into signed 32-bit digits, lowest first: a new last axis."""
    digits = np.empty((*values.shape, DIGITS), np.int64)
    rest = values
    for i in range(DIGITS - 1, -1, -1):
        unit = 2.0 ** (LOWEST + 32 * i)
        scaled = rest * (1.0 / unit)
        whole = np.trunc(scaled) if i else np.rint(scaled)
        digits[..., i] = whole
        rest = rest - whole * unit  # exact: it only drops leading bits
    return digits


def carried(sums: Integers) -> Integers:
    """The one way to write a sum with all digits but the highest in [0, 2**32)."""
    result = sums.copy()
    for i in range(DIGITS - 1):
        carry = result[..., i] >> np.int64(32)
        result[..., i] -= carry * _BASE
        result[..., i + 1] += carry
    return result


def to_floats(sums: Integers) -> Numbers:
    """The value of each sum of `carried` digits: a function of the sum alone."""
    negative = sums[..., -1] < 0
    # Of a negative number take the digits of its size, or the leading ones would cancel.
    size = carried(np.where(negative[..., None], -sums, sums))
    total = np.zeros(size.shape[:-1])
    for i in range(DIGITS):
        total = total + np.ldexp(size[..., i].astype(np.float64), LOWEST + 32 * i)
    return np.where(negative, -total, total)

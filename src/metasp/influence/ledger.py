"""Running means of influence per example id.

Sums are float64 and entered in the order of the run, which its seed fixes: the same run gives the
same bits, stopped or not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metasp.errors import UserError
from metasp.types import ArrayLike, Rows

QUANTITIES = ("stability", "plasticity", "fused")
_DIGITS = 2.0 ** np.arange(-128, 64, 32)  # what the digits of older files count in

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
        self._sums: Numbers = np.zeros((0, len(self.quantities)))
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
        finite = np.isfinite(values).all(1)
        if not finite.all():
            raise UserError(
                f"the influence of example {int(names[~finite][0])} is not finite: lower the "
                "learning rate, or leave the example out."
            )
        places = self._places(names)
        np.add.at(self._sums, places, values)  # an id may come twice
        np.add.at(self._counts, places, 1)

    def merge(self, other: "Ledger") -> None:
        """Enter all that another ledger holds."""
        if other.quantities != self.quantities:
            raise UserError(
                f"a ledger of {', '.join(self.quantities)} cannot take one of "
                f"{', '.join(other.quantities)}: make both with the same extra."
            )
        ids, sums, counts = other._sorted()
        places = self._places(ids)
        self._sums[places] += sums
        self._counts[places] += counts

    def without(self, ids: Rows) -> "Ledger":
        """A ledger of all that this one holds but for these ids."""
        state = self.state()
        kept = ~np.isin(state["ids"], _array(ids).astype(np.int64))
        held = {name: values[kept] for name, values in state.items()}
        return self.from_state(held, self.extra)

    def arrays(self) -> dict[str, Column]:
        """Columns by name: id (ascending), the mean of each quantity, count."""
        ids, sums, counts = self._sorted()
        means = sums / np.maximum(counts, 1)[:, None]
        columns: dict[str, Column] = {"id": ids}
        columns.update({name: means[:, i] for i, name in enumerate(self.quantities)})
        return {**columns, "count": counts}

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
        result[known] = self._sums[at] / self._counts[at, None]
        return result

    def state(self) -> dict[str, Column]:
        """Arrays to store, by id: ids (n,), sums (n, quantities), counts (n,)."""
        ids, sums, counts = self._sorted()
        return {"ids": ids, "sums": sums, "counts": counts}

    @classmethod
    def from_state(cls, state: Mapping[str, ArrayLike], extra: tuple[str, ...] = ()) -> "Ledger":
        """The ledger that gave this `state` (tensors or arrays)."""
        made = cls(extra)
        ids, counts = (_array(state[k]).astype(np.int64) for k in ("ids", "counts"))
        sums = _array(state["sums"]).astype(np.float64)
        if sums.shape[2:] == _DIGITS.shape:  # as whole numbers of six digits, once
            sums = (sums * _DIGITS)[..., ::-1].sum(-1)  # large ones first, for they may cancel
        if sums.shape != (len(ids), len(made.quantities)) or counts.shape != ids.shape:
            raise UserError("this is not the state of a ledger: its arrays have other shapes.")
        made._place = {i: place for place, i in enumerate(ids.tolist())}
        made._sums, made._counts = sums, counts
        return made

    def _sorted(self) -> tuple[Integers, Numbers, Integers]:
        """Ids, sums and counts, by id."""
        ids = np.fromiter(self._place, np.int64, len(self._place))
        order = np.argsort(ids)
        return ids[order], self._sums[order], self._counts[order]

    def _places(self, ids: Integers) -> Integers:
        """The row of each id; new ids get new rows."""
        place = self._place
        found = [place.setdefault(i, len(place)) for i in ids.tolist()]
        short = len(place) - len(self._counts)
        if short > 0:  # grow by half: adding stays cheap on average
            room = short + len(self._counts) // 2
            self._sums = np.concatenate([self._sums, np.zeros((room, len(self.quantities)))])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.int64)])
        return np.array(found, np.int64)


def _array(values: Any) -> NDArray[Any]:
    """A numpy array of a tensor (on any device, with or without graph), array or list."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    return np.asarray(values)

"""The influence table as arrays: which side an example is on, how many help, which to show.

A value below 0 lowers the validation loss: the example helps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metasp.errors import UserError

Array = np.ndarray[Any, Any]

MEASURES = ("stability", "plasticity", "fused")
SIDES = ("both", "remembering", "learning", "neither")
SOURCES = ("new", "memory")
GROUPS = 5  # of the histograms, as in the paper
EXTREMES = 50  # of each measure, task and end that are always shown

NEEDED = ("task", "id", "label", "source", *MEASURES, "count", "kept")


@dataclass(frozen=True)
class Points:
    """One row per example and task it was measured in; all columns of one length."""

    task: Array
    id: Array
    label: Array
    memory: Array  # True: came from memory; False: new data of the task
    stability: Array
    plasticity: Array
    fused: Array
    loss: Array  # NaN: not recorded
    count: Array
    kept: Array
    predicted: Array  # -1: not recorded

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], place: object) -> "Points":
        """From the stored columns; `place` names them in the sentence about what is amiss."""
        for name in NEEDED:
            if name not in columns:
                raise UserError(f"{place} is damaged (it lacks the column {name}).")
        size = len(columns["id"])
        loss = columns.get("loss", [None] * size)
        predicted = columns.get("predicted", [None] * size)
        return cls(
            task=np.asarray(columns["task"], np.int64),
            id=np.asarray(columns["id"], np.int64),
            label=np.asarray(columns["label"], np.int64),
            memory=np.asarray([source == "memory" for source in columns["source"]], bool),
            stability=np.asarray(columns["stability"], np.float64),
            plasticity=np.asarray(columns["plasticity"], np.float64),
            fused=np.asarray(columns["fused"], np.float64),
            loss=np.asarray([np.nan if v is None else v for v in loss], np.float64),
            count=np.asarray(columns["count"], np.int64),
            kept=np.asarray(columns["kept"], bool),
            predicted=np.asarray([-1 if v is None else v for v in predicted], np.int64),
        )

    def __len__(self) -> int:
        return len(self.id)

    def only(self, rows: Array) -> "Points":
        return Points(**{name: column[rows] for name, column in vars(self).items()})


def sides(points: Points) -> Array:
    """Place in SIDES of each row, shape (n,)."""
    remembers, learns = points.stability < 0, points.plasticity < 0
    return np.where(remembers, np.where(learns, 0, 1), np.where(learns, 2, 3))


def latest(points: Points) -> Array:
    """Rows of each example's last measurement, by id."""
    order = np.lexsort((points.task, points.id))
    ids = points.id[order]
    last = np.append(ids[1:] != ids[:-1], True) if len(ids) else np.zeros(0, bool)
    return np.asarray(order[last])


def side_counts(points: Points) -> dict[str, int]:
    """How many examples are on each side, each counted once by its last measurement."""
    found = np.bincount(sides(points.only(latest(points))), minlength=len(SIDES))
    return dict(zip(SIDES, found.tolist()))


def helped(points: Points) -> list[dict[str, Any]]:
    """Rows that help and that hurt, for each task, source and measure."""
    found = []
    for task in np.unique(points.task):
        here = points.only(points.task == task)
        for source in SOURCES:
            for measure in MEASURES:
                values = of_source(here, measure, source)
                signs = {"helps": int((values < 0).sum()), "hurts": int((values > 0).sum())}
                entry = {"task": int(task), "source": source, "measure": measure}
                found.append({**entry, **signs})
    return found


def histograms(points: Points) -> list[dict[str, Any]]:
    """All tasks' values in five groups of equal width, for each source and measure."""
    found = []
    for source in SOURCES:
        for measure in MEASURES:
            values = of_source(points, measure, source)
            if len(values):
                counts, edges = np.histogram(values, GROUPS)
                entry = {"counts": counts.tolist(), "edges": edges.tolist()}
                found.append({"source": source, "measure": measure, **entry})
    return found


def of_source(points: Points, measure: str, source: str) -> Array:
    return np.asarray(getattr(points, measure)[points.memory == (source == "memory")])


def ids_to_show(points: Points, first: Sequence[Array], others: Array, limit: int) -> Array:
    """At most `limit` ids, ascending: those that come `first`, then the ends of each measure in
    each task, and an even sample of the rest, which is all that was measured and `others`."""
    everything = np.unique(np.concatenate([points.id, others, *first]))
    if len(everything) <= limit:
        return everything
    ends = list(first)
    for task in np.unique(points.task):
        rows = np.flatnonzero(points.task == task)
        for measure in MEASURES:
            order = rows[np.argsort(getattr(points, measure)[rows], kind="stable")]
            ends += [points.id[order[:EXTREMES]], points.id[order[-EXTREMES:]]]
    # Multiplying by a large odd number scatters neighbours: an even sample without randomness.
    scattered = everything.astype(np.uint64) * np.uint64(2654435761) % np.uint64(2**32)
    ends.append(everything[np.argsort(scattered, kind="stable")])
    ranked = np.concatenate(ends)
    chosen = np.sort(np.unique(ranked, return_index=True)[1])[:limit]
    return np.sort(ranked[chosen])

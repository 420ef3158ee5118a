"""Which examples are most likely mislabelled, by their influence and by their loss."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WAYS = ("influence", "loss", "both")


@dataclass(frozen=True)
class Scores:
    """One row per example id, ascending; the higher a score the more suspect. NaN: not known."""

    ids: Array
    labels: Array
    tasks: Array  # the first task an example was seen in
    ways: Mapping[str, Array]

    def order(self, way: str) -> Array:
        """Rows from the most to the least suspect; unknown ones last, ties by id."""
        return np.argsort(-np.nan_to_num(self.ways[way], nan=-np.inf), kind="stable")


def score_examples(columns: Mapping[str, Sequence[Any]]) -> Scores:
    """Suspicion of each example of an influence table.

    A positive influence raises a validation loss, as a wrong label does; so does a high loss of
    its own. Values of different tasks and sources differ in scale: each is divided by the mean
    size in its group, which keeps the sign, before an example's rows are averaged by how often it
    was met. `both` is the mean of the two percentile ranks."""
    ids = np.asarray(columns["id"], dtype=np.int64)
    unique, first, place = np.unique(ids, return_index=True, return_inverse=True)
    tasks = np.asarray(columns["task"], dtype=np.int64)
    groups = [f"{task}/{source}" for task, source in zip(tasks, columns["source"])]
    counts = np.maximum(np.asarray(columns["count"], dtype=np.float64), 1)
    values = {"influence": own_influence(columns), "loss": column(columns, "loss")}
    ways = {
        way: averaged(scaled(numbers, groups), counts, place, len(unique))
        for way, numbers in values.items()
    }
    ways["both"] = mean_known([percentiles(numbers) for numbers in ways.values()])
    earliest = np.full(len(unique), np.iinfo(np.int64).max)
    np.minimum.at(earliest, place, tasks)
    labels = np.asarray(columns["label"], dtype=np.int64)[first]
    return Scores(unique, labels, earliest, ways)


def own_influence(columns: Mapping[str, Sequence[Any]]) -> Array:
    """Influence on the validation examples of an example's own kind, where a wrong label does its
    harm: on Plasticity while it is new, on Stability once it is in memory."""
    new = np.asarray([source == "new" for source in columns["source"]], dtype=bool)
    return np.where(new, column(columns, "plasticity"), column(columns, "stability"))


def column(columns: Mapping[str, Sequence[Any]], name: str) -> Array:
    """A column as numbers; NaN where there is none."""
    given = columns.get(name, [None] * len(columns["id"]))
    return np.asarray([np.nan if v is None else v for v in given], dtype=np.float64)


def mean_known(parts: Sequence[Array]) -> Array:
    """Row by row the mean of what is known; NaN where nothing is."""
    stacked = np.stack(parts)
    counts = np.isfinite(stacked).sum(0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(stacked, axis=0) / np.where(counts, counts, np.nan))


def scaled(values: Array, groups: Sequence[str]) -> Array:
    """Values over the mean size of those in the same group; zero stays zero."""
    out = values.copy()
    names = np.asarray(groups, dtype=object)
    for group in set(groups):
        inside = names == group
        sizes = np.abs(values[inside])
        size = sizes[np.isfinite(sizes)].mean() if np.isfinite(sizes).any() else 0.0
        out[inside] = values[inside] / (size or 1.0)
    return out


def averaged(values: Array, weights: Array, place: Array, size: int) -> Array:
    """Weighted mean of the known values that share a place, shape (size,)."""
    fine = np.isfinite(values)
    total = np.bincount(place[fine], (values * weights)[fine], minlength=size)
    weight = np.bincount(place[fine], weights[fine], minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / weight)


def percentiles(values: Array) -> Array:
    """Ranks from 0 to 1 of the known values, ties at their middle; NaN stays."""
    out = np.full(len(values), np.nan)
    fine = np.isfinite(values)
    out[fine] = (ranks(values[fine]) - 0.5) / fine.sum()
    return out


def ranks(values: Array) -> Array:
    """Places from 1 on, ties at the middle of theirs, shape (n,)."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(size) - (size - 1) / 2
    return np.asarray(middle[group])


def quality(scores: Scores, way: str, wrong: Collection[int]) -> dict[str, float | None]:
    """How well a score finds the ids known to be wrong: the part of them among as many of the
    most suspect (precision), the area under the ROC curve, and the part that was scored."""
    fine = np.isfinite(scores.ways[way])
    values, bad = scores.ways[way][fine], np.isin(scores.ids[fine], list(wrong))
    count = int(bad.sum())
    result: dict[str, float | None] = {
        "precision": None,
        "area": None,
        "scored": count / len(wrong) if wrong else None,
    }
    if count:
        top = np.argsort(-values, kind="stable")[:count]
        result["precision"] = float(bad[top].mean())
    if 0 < count < len(bad):
        from sklearn.metrics import roc_auc_score  # slow to load, and needed for this alone

        result["area"] = float(roc_auc_score(bad, values))
    return result

"""Which examples are most likely mislabelled: one definition for terminal, page, learner and CSV.

Every way to tell gives an example a number of its own; `Scores.support` brings them to one sense:
below 0 it speaks against the label, and the lower the more suspect."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Sequence[Any]]

WAYS = {
    "odds": "the logarithm of the odds that its label is right, by what the network said of it in "
    "its training, beside all others of the task",
    "score": "how likely its label is right, as the method judges: 1 certainly, −1 certainly not",
    "margin": "the logit of its label less the largest other, mean over its training, above or "
    "below the median of its label",
    "loss": "its loss, mean over its training",
    "influence": "its influence over the mean size in its task; above 0 hurts",
    "both": "the mean of its ranks by influence and by loss",
}
"""The ways to tell, the best first, and what their numbers are."""

NO_CLASS = -1
TINY = 1e-300
FAR = 10.0  # times median to third quartile: of squared normal errors, three standard deviations

SURE = 1.959964  # standard deviations on either side of a 95% interval


@dataclass(frozen=True)
class Share:
    """How many of the examples that carry a label are expected to carry it wrongly."""

    label: int
    examples: int
    expected: float

    @property
    def part(self) -> float:
        return self.expected / self.examples

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval (Wilson's) of a share that so many examples give. It holds for the
        chance of the draw alone: not for a method that is wrong about its examples."""
        count, part, square = self.examples, self.part, SURE**2
        middle = (part + square / (2 * count)) / (1 + square / count)
        half = SURE * math.sqrt(part * (1 - part) / count + square / (4 * count**2))
        half /= 1 + square / count
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Scores:
    """One row per example id, ascending. `ways` holds a number of each example, NaN: not known."""

    ids: Array
    labels: Array
    tasks: Array  # the first task an example was seen in
    predicted: Array  # the class that the model gave it last, or NO_CLASS
    ways: Mapping[str, Array]
    margins: Array | None = None  # the mean margins as they are, where they are known
    wrong: Array | None = None  # the chance that a label is wrong, where there are odds
    targets: Array | None = None  # of a regression: the number that an example was given
    said: Array | None = None  # and the one that the model gives it

    @property
    def of_numbers(self) -> bool:
        """Whether labels are numbers, not classes."""
        return len(self.labels) > 0 and bool((self.labels == NO_CLASS).all())

    @property
    def best(self) -> str:
        """The first way that knows at least half of the examples, or else any."""
        known = {way: int(np.isfinite(self.ways[way]).sum()) for way in WAYS}
        most = max(known.values(), default=0)
        return next((way for way in WAYS if 2 * known[way] >= most > 0), "margin")

    def support(self, way: str) -> Array:
        """How much a way speaks for each label, shape (n,): below 0 it speaks against it."""
        values = self.ways[way]
        if way == "loss" and self.of_numbers:
            return 1 - values / self._far()
        if way == "margin" and self.margins is not None:
            return self.margins
        against = {"loss": math.log(2) - values, "influence": -values, "both": 0.5 - values}
        return against.get(way, values)

    def _far(self) -> Array:
        """The loss from which on a number looks wrong, for each example: as far above the median
        of its task as right ones hardly are. Only the user knows what a loss of a regression is,
        and all have a part in common, of the time when the model had learned nothing."""
        losses, far = self.ways["loss"], np.full(len(self.ids), np.nan)
        for task in np.unique(self.tasks):
            inside = self.tasks == task
            if np.isfinite(losses[inside]).any():
                middle, upper = np.nanquantile(losses[inside], (0.5, 0.75))
                far[inside] = max(middle + FAR * (upper - middle), TINY)
        return far

    def ranking(self, way: str) -> Array:
        """What examples are ranked by, shape (n,): the lower the more suspect. A margin is compared
        with those of its label: where wrong labels are one-sided, the network believes them, and
        doubts the right ones of the class that they came from."""
        return self.ways[way] if way == "margin" else self.support(way)

    def order(self, way: str) -> Array:
        """Rows from the most to the least suspect; unknown ones last, ties by id."""
        return np.argsort(np.nan_to_num(self.ranking(way), nan=np.inf), kind="stable")

    def expected(self, way: str) -> int:
        """An estimate of how many labels are wrong. Chances that labels are wrong add up, where
        there are any: those beside odds, and scores. Otherwise: in each task and class those that
        the way speaks against, less as many as there are right ones expected among them. Of these
        there are as many as speak for the label by more than twice the typical size, as a right
        example is as often below what is typical as above it."""
        return round(sum(share.expected for share in self.shares(way)))

    def shares(self, way: str) -> list["Share"]:
        """The same of each class on its own, in their order; without those that a way knows
        nothing of."""
        support = self.support(way)
        known = np.isfinite(support)
        found = []
        for label in np.unique(self.labels[known]):
            mine = known & (self.labels == label)
            expected = 0.0
            if way == "odds" and self.wrong is not None:
                expected = float(self.wrong[mine].sum())
            elif way == "score":
                expected = float(((1 - support[mine]) / 2).sum())
            else:
                for task in np.unique(self.tasks[mine]):
                    expected += _fewer_than_right(support[mine & (self.tasks == task)])
            found.append(Share(int(label), int(mine.sum()), expected))
        return found

    def suspects(self, way: str, top: int | None = None) -> Array:
        """Rows of the most suspect: `top` of them, or as many as are expected to be wrong."""
        return self.order(way)[: self.expected(way) if top is None else top]


def score_examples(tables: Mapping[int, Columns], influence: Columns | None = None) -> Scores:
    """The scores of all examples from the tables of how they fared in each task, by task, and
    from the table of influences; either may be empty."""
    fared = _joined(tables)
    measured = influence or dict.fromkeys((*_INFLUENCE, "loss", "predicted"), ())
    ids = np.unique(np.concatenate([_whole(fared["id"]), _whole(measured["id"])]))
    labels, tasks, predicted = (np.full(len(ids), NO_CLASS) for _ in range(3))
    for columns in (measured, fared):  # the latter knows better, and its last task best
        place = np.searchsorted(ids, _whole(columns["id"]))
        labels[place] = _whole(columns["label"], NO_CLASS)
        tasks[place[::-1]] = _whole(columns["task"])[::-1]  # the first is written last
        predicted[place] = _whole(_column(columns, "predicted"), NO_CLASS)
    ways = {way: _mean_by_id(fared, way, ids) for way in FARED}
    margins = ways["margin"]
    ways["margin"] = _beside_their_own(margins, tasks, labels)
    own = _influences(measured, ids)
    if not np.isfinite(ways["loss"]).any():
        ways["loss"] = own["loss"]
    ways["influence"] = own["influence"]
    ranked = [percentiles(own[way]) for way in ("influence", "loss")]
    ways["both"] = _mean_known(ranked) if np.isfinite(own["influence"]).any() else ranked[0]
    numbers: dict[str, Array | None] = {"targets": None, "said": None}
    if len(ids) and bool((labels == NO_CLASS).all()):
        numbers = {
            "targets": _last_by_id(fared, "target", ids),
            "said": _last_by_id(fared, "said", ids),
        }
    wrong = _mean_by_id(fared, "wrong", ids)
    return Scores(ids, labels, tasks, predicted, ways, margins, wrong, **numbers)


def quality(scores: Scores, way: str, wrong: Collection[int]) -> dict[str, float | int | None]:
    """How well a way finds the ids known to be wrong, as fractions; None: cannot be said.

    `precision`: of the N most suspect, the part that is wrong, where N is the number of wrong
    ones that have a value (it is then the recall too). `area`: the chance that a wrong one is
    more suspect than a right one. `scored`: the part of the wrong ones that have a value.
    `listed`: how many are expected to be wrong; `listed_precision`: the part of those listed that
    is wrong; `listed_recall`: the part of the wrong ones that is listed."""
    ranking = scores.ranking(way)
    fine = np.isfinite(ranking)
    bad = np.isin(scores.ids, list(wrong))
    count, listed = int(bad[fine].sum()), scores.suspects(way)
    hits = int(bad[listed].sum())
    result: dict[str, float | int | None] = {
        "precision": float(bad[scores.order(way)[:count]].mean()) if count else None,
        "area": None,
        "scored": count / len(wrong) if wrong else None,
        "listed": len(listed),
        "listed_precision": hits / len(listed) if len(listed) else None,
        "listed_recall": hits / len(wrong) if wrong else None,
    }
    if 0 < count < int(fine.sum()):
        from sklearn.metrics import roc_auc_score  # slow to load, and needed for this alone

        result["area"] = float(roc_auc_score(bad[fine], -ranking[fine]))
    return result


def percentiles(values: Array) -> Array:
    """Ranks from 0 to 1 of the known values, ties at their middle; NaN stays."""
    out = np.full(len(values), np.nan)
    fine = np.isfinite(values)
    out[fine] = (_ranks(values[fine]) - 0.5) / fine.sum()
    return out


def _fewer_than_right(values: Array) -> int:
    """Of one class of a task: those spoken against, less the right ones expected among them."""
    above = values[values > 0]
    typical = float(np.median(above)) if len(above) else math.inf
    return max(0, int((values < 0).sum() - (values > 2 * typical).sum()))


FARED = ("odds", "score", "margin", "loss")  # ways that the tables of the tasks have a column of
_FARED = ("task", "id", "label", "count", *FARED, "wrong", "predicted", "target", "said")
_INFLUENCE = ("task", "id", "label", "source", "stability", "plasticity", "count")


def _joined(tables: Mapping[int, Columns]) -> dict[str, list[Any]]:
    """The tables of all tasks as one, in their order, with a column that names the task."""
    columns: dict[str, list[Any]] = {name: [] for name in _FARED}
    for task, table in sorted(tables.items()):
        for name in columns:
            given = [task] * len(table["id"]) if name == "task" else _column(table, name)
            columns[name] += given
    return columns


def _influences(columns: Columns, ids: Array) -> dict[str, Array]:
    """Influence and loss of the measured examples, each over its mean size in its task and source,
    as these differ in scale, and averaged by how often an example was measured.

    The influence is that on the validation examples of an example's own kind, where a wrong label
    does its harm: on Plasticity while it is new, on Stability once it is in memory."""
    new = np.asarray([source == "new" for source in columns["source"]], dtype=bool)
    own = np.where(new, _numbers(columns, "plasticity"), _numbers(columns, "stability"))
    groups = [f"{task}/{source}" for task, source in zip(columns["task"], columns["source"])]
    place = np.searchsorted(ids, _whole(columns["id"]))
    counts = np.maximum(_numbers(columns, "count"), 1)
    values = {"influence": own, "loss": _numbers(columns, "loss")}
    return {
        way: _averaged(_scaled(numbers, groups), counts, place, len(ids))
        for way, numbers in values.items()
    }


def _mean_by_id(columns: Columns, name: str, ids: Array) -> Array:
    place = np.searchsorted(ids, _whole(columns["id"]))
    counts = np.maximum(_numbers(columns, "count"), 1)
    return _averaged(_numbers(columns, name), counts, place, len(ids))


def _beside_their_own(values: Array, tasks: Array, labels: Array) -> Array:
    """Values less the median of those of the same task and label; unknown ones stay so."""
    out = values.copy()
    order = np.lexsort((labels, tasks))
    changes = (np.diff(tasks[order]) != 0) | (np.diff(labels[order]) != 0)
    for rows in np.split(order, np.flatnonzero(changes) + 1):
        known = rows[np.isfinite(values[rows])]
        out[known] -= np.median(values[known]) if len(known) else 0.0
    return out


def _last_by_id(columns: Columns, name: str, ids: Array) -> Array:
    found = np.full(len(ids), np.nan)
    found[np.searchsorted(ids, _whole(columns["id"]))] = _numbers(columns, name)
    return found


def _whole(values: Sequence[Any], unknown: int = 0) -> Array:
    return np.asarray([unknown if value is None else value for value in values], dtype=np.int64)


def _column(columns: Columns, name: str) -> list[Any]:
    return list(columns.get(name, [None] * len(columns["id"])))


def _numbers(columns: Columns, name: str) -> Array:
    """A column as numbers; NaN where there is none."""
    given = [np.nan if value is None else value for value in _column(columns, name)]
    return np.asarray(given, dtype=np.float64)


def _mean_known(parts: Sequence[Array]) -> Array:
    """Row by row the mean of what is known; NaN where nothing is."""
    stacked = np.stack(parts)
    counts = np.isfinite(stacked).sum(0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(stacked, axis=0) / np.where(counts, counts, np.nan))


def _scaled(values: Array, groups: Sequence[str]) -> Array:
    """Values over the mean size of those in the same group; zero stays zero."""
    out = values.copy()
    names = np.asarray(groups, dtype=object)
    for group in set(groups):
        inside = names == group
        sizes = np.abs(values[inside])
        size = sizes[np.isfinite(sizes)].mean() if np.isfinite(sizes).any() else 0.0
        out[inside] = values[inside] / (size or 1.0)
    return out


def _averaged(values: Array, weights: Array, place: Array, size: int) -> Array:
    """Weighted mean of the known values that share a place, shape (size,)."""
    fine = np.isfinite(values)
    total = np.bincount(place[fine], (values * weights)[fine], minlength=size)
    weight = np.bincount(place[fine], weights[fine], minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / weight)


def _ranks(values: Array) -> Array:
    """Places from 1 on, ties at the middle of theirs, shape (n,)."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(size) - (size - 1) / 2
    return np.asarray(middle[group])

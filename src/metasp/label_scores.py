"""Which examples are most likely mislabelled: one definition for terminal, page, learner and CSV.

Every way to tell gives an example a number of its own; `Scores.support` brings them to one sense:
below 0 it speaks against the label, and the lower the more suspect."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metasp.noise_rate import WIDEST, Judgement, rate_of

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Sequence[Any]]

WAYS = {
    "odds": "the logarithm of the odds that its label is right, by what the network said of it in "
    "its training, beside all others of the task, and with --folds networks that did not train on "
    "it",
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


@dataclass(frozen=True)
class Share:
    """The number of examples that are expected to carry a label wrongly. `interval` are
    shares between which the true one lies; None: no network has judged the examples that did not
    train on them, and one that did learns wrong labels by heart."""

    label: int
    examples: int
    expected: float
    interval: tuple[float, float] | None = None

    @property
    def part(self) -> float:
        return self.expected / self.examples

    @property
    def known(self) -> bool:
        """Return whether the interval is narrow enough to speak of a number."""
        return self.interval is not None and self.interval[1] - self.interval[0] <= WIDEST


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
    held_out: Judgement | None = None  # by networks that did not train on the examples; NaN: none

    @property
    def of_numbers(self) -> bool:
        """Whether labels are numbers, not classes."""
        return len(self.labels) > 0 and bool((self.labels == NO_CLASS).all())

    @property
    def best(self) -> str:
        """The first way that knows at least half of the examples, or else any."""
        counts = {way: int(np.isfinite(self.ways[way]).sum()) for way in WAYS}
        most = max(counts.values(), default=0)
        return next((way for way in WAYS if 2 * counts[way] >= most > 0), "margin")

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

    def shares(self, way: str) -> list[Share]:
        """Return the share of each class in their order, without those of which a way knows
        nothing."""
        support = self.support(way)
        measured = np.isfinite(support)
        shares = []
        for label in np.unique(self.labels[measured]):
            of_label = measured & (self.labels == label)
            expected = 0.0
            if way == "odds" and self.held_out is not None:
                shares.append(self.share(of_label, int(label)))
                continue
            if way == "odds" and self.wrong is not None:
                expected = float(self.wrong[of_label].sum())
            elif way == "score":
                expected = float(((1 - support[of_label]) / 2).sum())
            else:
                for task in np.unique(self.tasks[of_label]):
                    expected += _fewer_than_right(support[of_label & (self.tasks == task)])
            shares.append(Share(int(label), int(of_label.sum()), expected))
        return shares

    def share(self, rows: Array, label: int = NO_CLASS) -> Share:
        """Return the share of wrong labels among `rows` (n,), True where an example counts, by
        networks that did not train on them."""
        assert self.held_out is not None
        rows = rows & np.isfinite(self.held_out.wrong)
        of_rows = Judgement(*(column[rows] for column in self.held_out))
        in_training = np.full(len(rows), np.nan) if self.wrong is None else self.wrong
        classes = len(np.unique(self.labels))
        rate = rate_of(of_rows, self.labels[rows], in_training[rows], classes)
        count = int(rows.sum())
        return Share(label, count, rate.share * count, (rate.low, rate.high))

    def total(self, way: str) -> Share:
        """Return the share among all examples."""
        if way == "odds" and self.held_out is not None:
            return self.share(np.ones(len(self.ids), bool))
        shares = self.shares(way)
        counted = sum(share.examples for share in shares)
        return Share(NO_CLASS, counted, sum(share.expected for share in shares))

    def suspects(self, way: str, top: int | None = None) -> Array:
        """Rows of the most suspect: `top` of them, or as many as are expected to be wrong."""
        return self.order(way)[: self.expected(way) if top is None else top]


def score_examples(
    tables: Mapping[int, Columns],
    influence: Columns | None = None,
    held_out: Columns | None = None,
) -> Scores:
    """Score all examples by the tables of how they fared in each task, by task, by the table of
    influences, and by that of networks that did not train on them; any may be empty."""
    import pandas as pd

    frames = [
        _frame({**table, "task": [task] * len(table["id"])}) for task, table in tables.items()
    ]
    fared = pd.concat([_frame({}), *frames]).sort_values("task", kind="stable")
    measured = _frame(influence or {})
    ids = np.unique(np.concatenate([fared["id"], measured["id"]]).astype(np.int64))

    # How an example fared in its last task knows best; it came with its first.
    both = pd.concat([measured, fared])
    latest = both.drop_duplicates("id", keep="last").set_index("id").reindex(ids)
    first = pd.concat([fared, measured]).drop_duplicates("id").set_index("id").reindex(ids)
    labels, predicted, tasks = (
        column.fillna(NO_CLASS).to_numpy(np.int64)
        for column in (latest["label"], latest["predicted"], first["task"])
    )
    ways = {way: _mean_by_id(fared, way, ids) for way in FARED}
    margins = pd.Series(ways["margin"])
    ways["margin"] = (margins - margins.groupby([tasks, labels]).transform("median")).to_numpy()
    own = _influences(measured, ids)
    if not np.isfinite(ways["loss"]).any():
        ways["loss"] = own["loss"]
    ways["influence"] = own["influence"]
    ranks = pd.DataFrame({way: percentiles(own[way]) for way in ("influence", "loss")})
    if not np.isfinite(own["influence"]).any():
        ranks = ranks[["influence"]]
    ways["both"] = ranks.mean(axis=1).to_numpy()
    numbers: dict[str, Array | None] = {"targets": None, "said": None}
    if len(ids) and bool((labels == NO_CLASS).all()):
        last = fared.drop_duplicates("id", keep="last").set_index("id").reindex(ids)
        numbers = {"targets": last["target"].to_numpy(), "said": last["said"].to_numpy()}
    wrong = _mean_by_id(fared, "wrong", ids)
    seen = (ids, labels, tasks, predicted, ways, margins.to_numpy(), wrong)
    scores = Scores(*seen, targets=numbers["targets"], said=numbers["said"])
    return scores if held_out is None else with_held_out(scores, held_out)


def with_held_out(scores: Scores, columns: Columns) -> Scores:
    """Return scores that also go by networks that did not train on the examples.

    Odds are the mean of both in units of the standard deviation: what training tells ranks better
    where wrong labels go one way, what it does not touch where classes are few."""
    import pandas as pd

    judged = pd.DataFrame(columns).set_index("id").reindex(scores.ids)
    odds, held_out_odds = scores.ways["odds"], judged["odds"].to_numpy(np.float64)
    scale = np.nanstd(held_out_odds) / max(np.nanstd(odds), TINY) if np.isfinite(odds).any() else 0
    both = np.nanmean(np.stack([odds * scale, held_out_odds]), axis=0)
    judgement = Judgement(*(judged[name].to_numpy(np.float64) for name in Judgement._fields))
    suggested = judged["suggested"].fillna(-1).to_numpy(np.int64)
    predicted = np.where(suggested < 0, scores.predicted, suggested)
    ways = {**scores.ways, "odds": both}
    return replace(scores, ways=ways, predicted=predicted, held_out=judgement)


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
    """Rank the known values from 0 to 1, ties at their middle; NaN stays."""
    import pandas as pd

    ranks = pd.Series(values).where(np.isfinite(values)).rank()
    return np.asarray((ranks - 0.5) / ranks.count())


def _fewer_than_right(values: Array) -> int:
    """Of one class of a task: those spoken against, less the right ones expected among them."""
    above = values[values > 0]
    typical = float(np.median(above)) if len(above) else math.inf
    return max(0, int((values < 0).sum() - (values > 2 * typical).sum()))


FARED = ("odds", "score", "margin", "loss")  # ways that the tables of the tasks have a column of
NUMBERS = (
    "id", "task", "label", "predicted", "count", *FARED, "wrong", "target", "said",
    "stability", "plasticity",
)  # fmt: skip


def _frame(columns: Columns) -> "pd.DataFrame":
    """Return a table as a data frame of all columns that scores read; NaN where one is missing."""
    import pandas as pd

    size = len(columns.get("id", ()))
    numbers = {name: np.asarray(columns[name], np.float64) for name in NUMBERS if name in columns}
    blank = np.full(size, np.nan)
    new = np.asarray([source == "new" for source in columns.get("source", [None] * size)], bool)
    return pd.DataFrame({**dict.fromkeys(NUMBERS, blank), **numbers, "new": new})


def _influences(measured: "pd.DataFrame", ids: Array) -> dict[str, Array]:
    """Average influence and loss of the measured examples, each over its mean size in its task and
    source, as these differ in scale; by how often an example was measured.

    The influence is that on the validation examples of an example's own kind, where a wrong label
    does its harm: on Plasticity while it is new, on Stability once it is in memory."""
    own = measured["plasticity"].where(measured["new"], measured["stability"])
    scaled = measured.assign(influence=own)
    groups = [measured["task"], measured["new"]]
    for name in ("influence", "loss"):
        size = scaled[name].abs().groupby(groups).transform("mean")
        scaled[name] /= size.where(size > 0, 1.0)
    return {name: _mean_by_id(scaled, name, ids) for name in ("influence", "loss")}


def _mean_by_id(frame: "pd.DataFrame", name: str, ids: Array) -> Array:
    """Average the known values of each id, weighted by their counts, shape (len(ids),)."""
    known = frame[np.isfinite(frame[name])]
    weights = known["count"].fillna(0).clip(lower=1)
    totals = (known[name] * weights).groupby(known["id"]).sum()
    means = totals / weights.groupby(known["id"]).sum()
    return np.asarray(means.reindex(ids), dtype=np.float64)

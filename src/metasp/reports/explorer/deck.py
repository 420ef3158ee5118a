"""The examples most worth a person's look: the cards of the page's verify tab.

First come those of each class that are most likely right, for a trusted set that costs one key
each; then, in turn, the most suspect and the most uncertain, where a verdict changes most."""

from typing import Any

import numpy as np

from metasp.suspects import Scores

Array = np.ndarray[Any, Any]

OF_A_CLASS = 60  # candidates for the trusted set: more than anybody asks for, as some are wrong
FURTHER = 500  # of the most suspect, and of the most uncertain


def deck(scores: Scores, way: str) -> dict[str, Any]:
    """Ids in the order to look at them: `right` by class, most likely right first, and `then`."""
    support = scores.support(way)
    known = np.isfinite(support)
    right = {}
    for label in np.unique(scores.labels[known]).tolist():
        rows = np.flatnonzero(known & (scores.labels == label))
        best = rows[np.argsort(-support[rows], kind="stable")][:OF_A_CLASS]
        right[str(label)] = scores.ids[best].tolist()
    suspect = scores.order(way)[: min(FURTHER, int(known.sum()))]
    unsure = np.argsort(np.where(known, np.abs(support), np.inf), kind="stable")[: len(suspect)]
    then = np.stack([suspect, unsure], axis=1).reshape(-1)  # in turn
    first = np.sort(np.unique(then, return_index=True)[1])
    return {"right": right, "then": scores.ids[then[first]].tolist()}


def ids_of(cards: dict[str, Any]) -> Array:
    """All that may be asked about."""
    lists = [*cards["right"].values(), cards["then"]]
    return np.unique(np.concatenate([np.asarray(ids, np.int64) for ids in lists]))

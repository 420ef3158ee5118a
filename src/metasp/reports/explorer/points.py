"""What was measured of the examples: which side each is on, how many help, which to show, which to
look at first, and what entered and left the memory.

A value below 0 lowers the validation loss: the example helps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metasp.errors import UserError
from metasp.label_scores import Scores

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Sequence[Any]]
Stay = tuple[int, int, float | None]  # in memory: id, label, influence

MEASURES = ("stability", "plasticity", "fused")
SIDES = ("both", "remembering", "learning", "neither")
SOURCES = ("new", "memory")
GROUPS = 5  # of the histograms, as in the paper
EXTREMES = 50  # of each measure, task and end that are always shown
OF_A_CLASS = 60  # candidates for the trusted set: more than anybody asks for, as some are wrong
FURTHER = 500  # of the most suspect, and of the most uncertain

NEEDED = ("task", "id", "label", "source", *MEASURES, "count", "kept")
IN_MEMORY = ("id", "label", "task", "influence")


def points_of(columns: Columns, place: object) -> "pd.DataFrame":
    """Return the stored columns with a row per example and task it was measured in; `memory` tells
    examples of the memory from new data, and a `predicted` below 0 was not recorded. `place` names
    the columns where one is missing."""
    import pandas as pd

    refuse_missing(columns, NEEDED, place)
    unknown = [None] * len(columns["id"])
    stored = {"loss": unknown, "predicted": unknown, **columns}
    guesses = np.nan_to_num(np.asarray(stored["predicted"], np.float64), nan=-1)
    memory = [source == "memory" for source in columns["source"]]
    return pd.DataFrame(
        {
            **{name: np.asarray(stored[name], np.int64) for name in ("task", "id", "label")},
            "memory": np.asarray(memory, bool),
            **{name: np.asarray(stored[name], np.float64) for name in (*MEASURES, "loss")},
            "count": np.asarray(stored["count"], np.int64),
            "kept": np.asarray(stored["kept"], bool),
            "predicted": guesses.astype(np.int64),
        }
    )


def refuse_missing(columns: Columns, needed: Sequence[str], place: object, where: str = "") -> None:
    for name in needed:
        if name not in columns:
            raise UserError(f"{place} is damaged ({where or 'it'} lacks the column {name}).")


def side_counts(points: "pd.DataFrame") -> dict[str, int]:
    """Count the examples on each side, each once by its last measurement."""
    last = points.sort_values(["id", "task"]).drop_duplicates("id", keep="last")
    remembers, learns = last["stability"] < 0, last["plasticity"] < 0
    sides = np.where(remembers, np.where(learns, 0, 1), np.where(learns, 2, 3))
    return dict(zip(SIDES, np.bincount(sides, minlength=len(SIDES)).tolist()))


def helped(points: "pd.DataFrame") -> list[dict[str, Any]]:
    """Count the rows that help and that hurt, for each task, source and measure."""
    counted = []
    for task, of_task in points.groupby("task"):
        for source in SOURCES:
            for measure in MEASURES:
                values = of_source(of_task, measure, source)
                signs = {"helps": int((values < 0).sum()), "hurts": int((values > 0).sum())}
                about = {"task": int(task), "source": source, "measure": measure}
                counted.append({**about, **signs})
    return counted


def histograms(points: "pd.DataFrame") -> list[dict[str, Any]]:
    """Count all tasks' values in five groups of equal width, for each source and measure."""
    counted = []
    for source in SOURCES:
        for measure in MEASURES:
            values = of_source(points, measure, source)
            if len(values):
                counts, edges = np.histogram(values, GROUPS)
                bars = {"counts": counts.tolist(), "edges": edges.tolist()}
                counted.append({"source": source, "measure": measure, **bars})
    return counted


def of_source(points: "pd.DataFrame", measure: str, source: str) -> Array:
    values: Array = points.loc[points["memory"] == (source == "memory"), measure].to_numpy()
    return values


def ids_to_show(points: "pd.DataFrame", first: Sequence[Array], others: Array, limit: int) -> Array:
    """Return at most `limit` ids, ascending: those that come `first`, then the ends of each measure
    in each task, and an even sample of the rest, which is all that was measured and `others`."""
    everything = np.unique(np.concatenate([points["id"].to_numpy(), others, *first]))
    if len(everything) <= limit:
        return everything
    ranked = list(first)
    for _, of_task in points.groupby("task"):
        for measure in MEASURES:
            ids = of_task.sort_values(measure, kind="stable")["id"].to_numpy()
            ranked += [ids[:EXTREMES], ids[-EXTREMES:]]
    # Multiplying by a large odd number scatters neighbours: an even sample without randomness.
    scattered = everything.astype(np.uint64) * np.uint64(2654435761) % np.uint64(2**32)
    ranked.append(everything[np.argsort(scattered, kind="stable")])
    return np.sort(once(np.concatenate(ranked))[:limit])


def once(values: Array) -> Array:
    """Return each value at its first place only."""
    return values[np.sort(np.unique(values, return_index=True)[1])]


def deck(scores: Scores, way: str) -> dict[str, Any]:
    """Return the ids most worth a person's look, in their order: `right` by class, the most likely
    right first, for a trusted set that costs one key each; and `then`, in turn, the most suspect
    and the most uncertain, where a verdict changes most."""
    support = scores.support(way)
    known = np.isfinite(support)
    right = {}
    for label in np.unique(scores.labels[known]).tolist():
        rows = np.flatnonzero(known & (scores.labels == label))
        best = rows[np.argsort(-support[rows], kind="stable")][:OF_A_CLASS]
        right[str(label)] = scores.ids[best].tolist()
    suspect = scores.order(way)[: min(FURTHER, int(known.sum()))]
    unsure = np.argsort(np.where(known, np.abs(support), np.inf), kind="stable")[: len(suspect)]
    in_turn = np.stack([suspect, unsure], axis=1).reshape(-1)
    first = suspect[: scores.expected(way)]
    return {"right": right, "then": scores.ids[once(np.concatenate([first, in_turn]))].tolist()}


def ids_of(cards: Mapping[str, Any]) -> Array:
    """Return all ids that may be asked about."""
    lists = [*cards["right"].values(), cards["then"]]
    return np.unique(np.concatenate([np.asarray(ids, np.int64) for ids in lists]))


def memory_history(
    tables: Mapping[int, Columns], points: "pd.DataFrame", place: object
) -> list[Any]:
    """Return for each finished task what is held by class, what entered, what left, what stayed.

    The influence beside an example is what this task's steps said of it; where they said
    nothing, what was last noted in the memory."""
    for task, columns in tables.items():
        refuse_missing(columns, IN_MEMORY, place, f"task {task + 1}")
    told = {
        (int(task), int(identity)): float(value)
        for task, identity, value in zip(points["task"], points["id"], points["fused"])
    }
    history, before = [], dict[int, Stay]()
    for task in sorted(tables):
        now = stays(tables[task])
        entered = [refreshed(now[i], task, told) for i in now if i not in before]
        left = [refreshed(before[i], task, told) for i in before if i not in now]
        history.append(
            {
                "task": task,
                "held": len(now),
                "classes": counts_by([stay[1] for stay in now.values()]),
                "stayed": len(now) - len(entered),
                "entered": sorted(entered, key=by_help),
                "left": sorted(left, key=by_help),
            }
        )
        before = now
    return history


def stays(columns: Columns) -> dict[int, Stay]:
    """Return what a memory table holds, by id."""
    rows = zip(columns["id"], columns["label"], columns["influence"])
    return {int(i): (int(i), int(label), known(value)) for i, label, value in rows}


def refreshed(stay: Stay, task: int, told: Mapping[tuple[int, int], float]) -> Stay:
    return stay[0], stay[1], told.get((task, stay[0]), stay[2])


def by_help(stay: Stay) -> tuple[bool, float, int]:
    """Most helpful first, unknown last, ties by id."""
    return stay[2] is None, stay[2] or 0.0, stay[0]


def known(value: float | None) -> float | None:
    return None if value is None or value != value else float(value)


def counts_by(values: Sequence[int]) -> dict[str, int]:
    names, counts = np.unique(np.asarray(values, np.int64), return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts)}


def ids_in(tables: Mapping[int, Columns]) -> np.ndarray[Any, Any]:
    """Return every id that was in memory at the end of a task, ascending."""
    found = [np.asarray(columns["id"], np.int64) for columns in tables.values()]
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)

"""What the page tells of one run, read from its directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metasp.corrections import Corrections
from metasp.label_scores import NO_CLASS, WAYS
from metasp.metrics import SCENARIOS, matrix_of, scores
from metasp.reports.explorer.pictures import short
from metasp.reports.explorer.points import (
    NEEDED,
    Columns,
    deck,
    helped,
    histograms,
    ids_in,
    ids_of,
    known,
    memory_history,
    points_of,
    side_counts,
)
from metasp.reports.labels import method_name
from metasp.reports.runs import flat_spec
from metasp.reports.suspect_tables import RunScores, count_sentence, scores_of
from metasp.spec import RunSpec
from metasp.store import RunDir, open_run
from metasp.store.files import sha256

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]

EMPTY: Mapping[str, Sequence[Any]] = dict.fromkeys((*NEEDED, "loss", "predicted"), ())


@dataclass(frozen=True)
class Record:
    """A run or a learner as read: its points, and what else the page says of it."""

    name: str
    about: Mapping[str, Any]  # method, benchmark, seed, budget, epochs, backbone, selection
    points: "pd.DataFrame"
    remembered: Array  # ids that were ever in memory
    scores: RunScores
    cards: dict[str, Any]  # what to look at first, see `deck`
    class_names: tuple[str, ...]  # empty: not recorded
    told: dict[str, Any]
    spec: RunSpec | None = None  # of a stored run

    @property
    def labels(self) -> dict[int, int]:
        """The class that each example was given, of all that a person may have a word on."""
        scored = self.scores.scores
        return dict(zip(scored.ids.tolist(), scored.labels.tolist()))

    @property
    def stamp(self) -> str:
        """What tells these examples from others, where names do not."""
        pairs = sorted(self.labels.items())
        return sha256(repr(pairs).encode())[:12]

    @property
    def worth_a_look(self) -> list[Array]:
        """Ids that the page must have: the memory, the cards, and the most suspect."""
        scored = self.scores.scores
        suspects = scored.ids[scored.suspects(scored.best)]
        return [self.remembered, ids_of(self.cards), suspects]


@dataclass(frozen=True)
class Kept:
    """What is kept of a run, or of a learner: its tables and its scores."""

    name: str
    about: Mapping[str, Any]
    influence: Columns | None
    memory: Mapping[int, Columns]
    tasks: Sequence[Mapping[str, Any]]  # of each its classes and the number of its examples
    scenarios: Mapping[str, Any]
    scores: RunScores
    trusted: Columns | None = None
    class_names: tuple[str, ...] = ()
    finished: bool = True
    seconds: float | None = None
    places: tuple[object, object] = ("the influences", "the memory")  # where its tables are
    spec: RunSpec | None = None


def read_run(run: RunDir) -> Record:
    """All the explorer needs of a run, or one sentence about what is amiss."""
    open_run(run.path)
    spec, result, events = run.spec(), run.outcome(), run.events()
    tasks = [e for e in events if e.get("event") == "TaskStarted"]
    found = scores_of(run)
    kept = Kept(
        name=run.path.name,
        about={
            "method": method_name(flat_spec(spec.as_dict())),
            "benchmark": spec.benchmark,
            "seed": spec.seed,
            "budget": spec.memory,
            "epochs": spec.epochs,
            "backbone": spec.backbone,
            "selection": spec.selection,
        },
        influence=run.influence(),
        memory=run.memory_tables(),
        tasks=[{"classes": e["classes"], "examples": e["examples"]} for e in tasks],
        scenarios=scenarios(result, events),
        scores=found,
        trusted=run.trusted(),
        class_names=found.class_names,
        finished=result is not None,
        seconds=result["seconds"]["total"] if result else None,
        places=(run.path / "influence.parquet", run.path / "memory"),
        spec=spec,
    )
    return recorded(kept)


def recorded(kept: Kept) -> Record:
    """What the page tells, from what is kept."""
    points = points_of(EMPTY if kept.influence is None else kept.influence, kept.places[0])
    trusted = kept.trusted
    said = Corrections() if kept.spec is None else kept.spec.corrections
    told = {
        "finished": kept.finished,
        "tasks": list(kept.tasks),
        "scenarios": kept.scenarios,
        "seconds": kept.seconds,
        "sides": side_counts(points),
        "measurements": len(points),
        "measured": points["id"].nunique(),
        "helped": helped(points),
        "histograms": histograms(points),
        "memory": memory_history(kept.memory, points, kept.places[1]),
        "goals": goals(kept.memory, kept.tasks),
        "trusted": [] if trusted is None else list(zip(trusted["id"], trusted["label"])),
        "corrections": vars(said),
        "given_labels": kept.spec is not None and on_given_labels(kept.spec),
    }
    scored = kept.scores.scores
    return Record(
        kept.name,
        kept.about,
        points,
        ids_in(kept.memory),
        kept.scores,
        deck(scored, scored.best),
        kept.class_names,
        told,
        kept.spec,
    )


def on_given_labels(spec: RunSpec) -> bool:
    """Return whether the test labels are those of the user's own list, which may be wrong."""
    own_list = spec.benchmark.startswith(("folder:", "csv:", "json:", "parquet:", "arrays:"))
    return own_list and spec.test is None and spec.true_label_column is None


def score_columns(found: RunScores, shown: Array) -> dict[str, Any]:
    """How suspect the shown examples are: columns of one length, for each way what it knows, the
    rows from the most to the least suspect, and how many labels of all it expects to be wrong."""
    scores = found.scores
    rows = np.flatnonzero(np.isin(scores.ids, shown))
    place = np.full(len(scores.ids), -1)
    place[rows] = np.arange(len(rows))
    ways = {}
    for way in WAYS:
        if np.isfinite(scores.ways[way]).any():
            order = place[scores.order(way)]
            ways[way] = {
                "words": WAYS[way],
                "values": [short(value) for value in scores.ways[way][rows].tolist()],
                "support": [short(value) for value in scores.support(way)[rows].tolist()],
                "order": order[order >= 0].tolist(),
                "expected": scores.expected(way),
            }
    guesses = scores.predicted[rows].tolist()
    numbers = {}
    if scores.targets is not None and scores.said is not None:  # of a regression
        both = {"target": scores.targets, "said": scores.said}
        numbers = {name: [known(v) for v in of[rows].tolist()] for name, of in both.items()}
    return {
        **numbers,
        "id": scores.ids[rows].tolist(),
        "label": scores.labels[rows].tolist(),
        "task": scores.tasks[rows].tolist(),
        "predicted": [None if guess == NO_CLASS else guess for guess in guesses],
        "ways": ways,
        "best": scores.best,
        "all": len(scores.ids),
        "count": count_sentence(scores, scores.best) if len(scores.ids) else "",
        "shares": [
            [share.label, share.examples, short(share.part), *(share.interval or (None, None))]
            for share in scores.shares(scores.best)
        ],
    }


def goals(
    tables: Mapping[int, Mapping[str, Sequence[Any]]], tasks: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """For each finished task whether influences on the old and on the new were measured against
    verified examples alone, which is so where every class has some."""
    found = []
    for task, columns in sorted(tables.items()):
        rows = list(zip(columns["label"], columns["task"], columns.get("pinned") or ()))
        here = set(tasks[task]["classes"]) if task < len(tasks) else set()
        old = {label for label, of, _ in rows if of != task}
        sure_old = {label for label, of, pinned in rows if of != task and pinned}
        sure_new = {label for label, of, pinned in rows if of == task and pinned}
        entry = {"old": bool(old) and old == sure_old, "new": bool(here) and here <= sure_new}
        found.append({"task": task, **entry})
    return found


def scenarios(
    result: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Scores of both scenarios; of an unfinished run, those of its finished tasks."""
    if result is None:
        return {name: so_far(events, name) for name in SCENARIOS}
    return {name: result[name] for name in SCENARIOS}


def so_far(events: Sequence[Mapping[str, Any]], scenario: str) -> dict[str, Any] | None:
    tests = [e for e in events if e.get("event") == "Evaluated"]
    tasks = max((e["task"] + 1 for e in tests if not e["before"]), default=0)
    before = [e[scenario][0] for e in tests if e["before"]][:tasks]
    if not tasks:
        return None
    matrix = matrix_of(tests, scenario, tasks)
    return {"matrix": matrix, "before": before, **scores(matrix, before)}

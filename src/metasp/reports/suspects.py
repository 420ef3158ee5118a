"""The suspects of a stored run, as rows with the names that people know them by."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metasp.corrections import as_cell
from metasp.errors import UserError, unknown
from metasp.store import RunDir
from metasp.suspects import NO_CLASS, WAYS, Scores, quality, score_examples

Row = dict[str, Any]

DEFINITIONS = (
    "precision at N: of the N most suspect the part that is wrong, N being the number of wrong "
    "labels that have a value (it is then the recall too). area: the chance that a wrong label is "
    "more suspect than a right one (under the ROC curve). listed: how many are expected to be "
    "wrong; precision and recall there: the part of these that is wrong, and the part of all wrong "
    "labels among them. scored: the part of the wrong labels that have a value."
)


def place_words(origin: tuple[str, int | None]) -> str:
    """A file, or a row of one, in words."""
    file, row = origin
    return file if row is None else f"{file}, row {row}"


@dataclass(frozen=True)
class RunScores:
    """How suspect each example of a run is, and what is known of the truth: the true label of each
    id whose label is wrong on purpose; None where nobody knows."""

    scores: Scores
    class_names: tuple[str, ...]
    wrong: Mapping[int, int] | None

    def name(self, label: int) -> str | None:
        """What a class is called; None for no class."""
        if label == NO_CLASS:
            return None
        return self.class_names[label] if label < len(self.class_names) else str(label)

    def way(self, by: str | None) -> str:
        """The way asked for, or the best that is known."""
        if by is None:
            return self.scores.best
        if by not in WAYS:
            raise unknown("way to rank", by, WAYS)
        return by

    def row(self, place: int) -> Row:
        """One example in plain values; what is not known is None."""
        identity, label, guess = (
            int(column[place])
            for column in (self.scores.ids, self.scores.labels, self.scores.predicted)
        )
        row: Row = {
            "id": identity,
            "task": int(self.scores.tasks[place]),
            "label": label,
            "label_name": self.name(label),
            "predicted": None if guess == NO_CLASS else guess,
            "predicted_name": self.name(guess),
        }
        for way in WAYS:
            row[way] = _known(self.scores.ways[way][place])
        if self.scores.targets is not None and self.scores.said is not None:
            row["target"] = _known(self.scores.targets[place], digits=None)
            row["said"] = _known(self.scores.said[place])
        if self.wrong is not None:
            row["true_label"] = self.wrong.get(identity, label)
            row["true_name"] = self.name(row["true_label"])
        return row

    def found(self) -> dict[str, Any] | None:
        """How well each way that knows anything finds the wrong labels, where these are known."""
        if self.wrong is None:
            return None
        known = [way for way in WAYS if (self.scores.ways[way] == self.scores.ways[way]).any()]
        return {way: quality(self.scores, way, self.wrong) for way in known}


def _known(value: float, digits: int | None = 6) -> float | None:
    if value != value:
        return None
    return float(value) if digits is None else round(float(value), digits)


def read_scores(run: RunDir) -> RunScores:
    """The scores of a run's examples, or one sentence about why there are none."""
    found = scores_of(run)
    if not len(found.scores.ids):
        raise UserError(
            f"{run.path} has no scores of examples yet: no task of it is finished, or its method "
            "does not train by `learner.update`."
        )
    return found


def scores_of(run: RunDir) -> RunScores:
    """The scores of a run's examples, which may be none."""
    names = tuple(str(name) for name in (run.result() or {}).get("class_names") or ())
    noise = run.noise()
    wrong = None if noise is None else dict(zip(noise["id"], noise["true_label"]))
    return RunScores(score_examples(run.scores(), run.influence()), names, wrong)


def as_csv(rows: Sequence[Row], by: str) -> str:
    """Rows as a file that `--exclude` and, with corrected labels, `--relabel` and `--verified`
    take: classes by their names."""
    names = ["id", "label", "predicted", by, "task", "file", "row"]
    if rows and "true_label" in rows[0]:
        names.append("true_name")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(names)
    for row in rows:
        named = {**row, "label": row["label_name"], "predicted": row["predicted_name"]}
        cells = [named.get(name) for name in names]
        writer.writerow([as_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    return out.getvalue()

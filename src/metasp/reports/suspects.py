"""The suspects of a stored run, as rows with the names that people know them by; and what its
stream was found to be: how many labels look wrong, how many are, and how many the memory holds."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metasp.corrections import as_cell
from metasp.errors import UserError, unknown
from metasp.reports.groups import Configuration, Group, common_ground
from metasp.reports.scores import seeds_text
from metasp.reports.significance import summarise
from metasp.reports.tables import Cell, Table, plus_minus
from metasp.store import RunDir
from metasp.suspects import NO_CLASS, WAYS, Scores, Share, quality, score_examples

Row = dict[str, Any]

DEFINITIONS = (
    "precision at N: of the N most suspect the part that is wrong, N being the number of wrong "
    "labels that have a value (it is then the recall too). area: the chance that a wrong label is "
    "more suspect than a right one (under the ROC curve). listed: how many are expected to be "
    "wrong; precision and recall there: the part of these that is wrong, and the part of all wrong "
    "labels among them. scored: the part of the wrong labels that have a value."
)


HOW = (
    "look wrong: labels expected to be wrong, with the 95% interval of a share of so many "
    "examples; it does not cover a model that is wrong about its examples."
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


@dataclass(frozen=True)
class Held:
    """What the memory holds: how many examples, how many of them verified, and how many whose
    label is known to be wrong (None where nobody knows)."""

    examples: int
    verified: int
    wrong: int | None

    @property
    def part(self) -> float | None:
        return self.wrong / self.examples if self.wrong is not None and self.examples else None


def held_by(run: RunDir, told: RunScores) -> Held | None:
    """What the memory held at the end of the last finished task; None where there is none."""
    tables = run.memory_tables()
    if not tables:
        return None
    last = tables[max(tables)]
    wrong = None
    if told.wrong is not None:
        wrong = int(np.isin(last["id"], list(told.wrong)).sum())
    verified = sum(bool(pinned) for pinned in last.get("pinned", ()))
    return Held(len(last["id"]), verified, wrong)


def class_rows(told: RunScores, way: str) -> list[dict[str, Any]]:
    """What is estimated of each class and of all, and what is true where that is known."""
    shares = told.scores.shares(way)
    total = Share(-1, sum(s.examples for s in shares), sum(s.expected for s in shares))
    rows = []
    for share in (*shares, total) if shares else ():
        low, high = share.interval
        name = told.name(share.label) if share is not total else None
        row: dict[str, Any] = {
            "label": None if share is total else share.label,
            "class": "all" if share is total else name,
            "examples": share.examples,
            "wrong": share.part,
            "low": low,
            "high": high,
        }
        if told.wrong is not None:
            labels = told.scores.labels
            mine = np.ones(len(labels), bool) if share is total else labels == share.label
            bad = np.isin(told.scores.ids[mine], list(told.wrong))
            row["truly_wrong"] = float(bad.mean())
        rows.append(row)
    return rows


def class_table(told: RunScores, way: str, held: Held | None) -> Table:
    """The same for people."""
    data = class_rows(told, way)
    header = ["label", "examples", "look wrong, %", "95% interval"]
    header += ["are wrong, %"] if told.wrong is not None else []
    rows = []
    for row in data:
        interval = f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"
        texts = [row["class"], row["examples"], f"{100 * row['wrong']:.1f}", interval]
        texts += [f"{100 * row['truly_wrong']:.1f}"] if told.wrong is not None else []
        rows.append(tuple(Cell(str(text), bold=row["label"] is None) for text in texts))
    notes = [HOW, *([held_words(held)] if held else [])]
    title = f"how many labels look wrong, by {way}"
    return Table(title, tuple(header), tuple(rows), tuple(data), tuple(notes))


def held_words(held: Held) -> str:
    verified = f", {held.verified} of them verified" if held.verified else ""
    words = f"the memory holds {held.examples} examples{verified}"
    if held.wrong is None:
        return f"{words}."
    share = f" ({100 * held.part:.1f}%)" if held.part is not None else ""
    return f"{words}; {held.wrong}{share} have a wrong label."


def stream_tables(groups: Sequence[Group], damaged: list[str] | None = None) -> list[Table]:
    """A table for each group of runs: what each method took its stream for."""
    return [stream_table(group, damaged) for group in groups]


def stream_table(group: Group, damaged: list[str] | None) -> Table:
    columns = {
        "looks_wrong": "look wrong, %",
        "truly_wrong": "are wrong, %",
        "memory_wrong": "wrong in memory, %",
    }
    rows, data = [], []
    for row in group.rows:
        found = [read for seed in row.seeds if (read := found_by(row, seed, damaged)) is not None]
        cells = []
        entry: dict[str, Any] = {
            "benchmark": group.benchmark,
            "memory": group.memory,
            "data": group.variant,
            "label": row.label,
            "seeds": len(row.seeds),
            "by": " ".join(sorted({each["by"] for each in found})),
        }
        for key in columns:
            values = [100 * each[key] for each in found if each[key] is not None]
            summary = summarise(values)
            entry[key] = summary.mean if summary else None
            entry[f"{key}_std"] = summary.std if summary else None
            cells.append(Cell(plus_minus(entry[key], entry[f"{key}_std"], 1)))
        rows.append((Cell(row.label), Cell(seeds_text(row, group)), Cell(entry["by"]), *cells))
        data.append(entry)
    header = ("method", "seeds", "by", *columns.values())
    notes = (
        f"mean ± standard deviation over seeds; {common_ground(group.rows)}.",
        "look wrong: the share of the stream's labels that each run expects to be wrong.",
        "are wrong: the true share, where labels were made wrong on purpose or the data has both.",
        "wrong in memory: the share of the examples in memory at the end whose label is wrong.",
    )
    title = f"{group.title}: what the stream was found to be"
    return Table(title, header, tuple(rows), tuple(data), notes)


def found_by(row: Configuration, seed: int, damaged: list[str] | None) -> dict[str, Any] | None:
    """What one run found; None where it has no scores of examples, or damaged ones."""
    run = row.runs[seed].directory
    if run is None:
        return None
    try:
        told = scores_of(run)
        held = held_by(run, told)
    except UserError as error:
        if damaged is None:
            raise
        damaged.append(str(error))
        return None
    if not len(told.scores.ids):
        return None
    way = told.scores.best
    *_, whole = class_rows(told, way)
    return {
        "by": way,
        "looks_wrong": whole["wrong"],
        "truly_wrong": whole.get("truly_wrong"),
        "memory_wrong": held.part if held else None,
    }

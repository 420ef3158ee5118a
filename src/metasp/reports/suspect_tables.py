"""The suspects of a stored run, as rows with the names that people know them by; and what its
stream was found to be: how many labels look wrong, how many are, and how many the memory holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metasp.corrections import as_cell, read_rows
from metasp.errors import UserError, unknown
from metasp.label_scores import NO_CLASS, WAYS, Scores, quality, score_examples
from metasp.reports.groups import Configuration, Group, seeds_text
from metasp.reports.notes import common_ground
from metasp.reports.significance import summarise
from metasp.reports.tables import Cell, Table, plus_minus
from metasp.store import RunDir

Row = dict[str, Any]

DEFINITIONS = (
    "precision at N: of the N most suspect the part that is wrong, N being the number of wrong "
    "labels that have a value (it is then the recall too). area: the chance that a wrong label is "
    "more suspect than a right one (under the ROC curve). listed: how many are expected to be "
    "wrong; precision and recall there: the part of these that is wrong, and the part of all wrong "
    "labels among them. scored: the part of the wrong labels that have a value."
)


HOW = (
    "look wrong: the share of labels that look wrong. between: shares between which the true one "
    "lies; it is known where networks that did not train on the examples judged them (--folds)."
)

SHARES = {
    "looks_wrong": (
        "look wrong, %",
        "look wrong: the share of the stream's labels that each run expects to be wrong.",
    ),
    "truly_wrong": (
        "are wrong, %",
        "are wrong: the true share, where labels were made wrong on purpose or the data has both.",
    ),
    "memory_wrong": (
        "wrong in memory, %",
        "wrong in memory: the share of the examples in memory at the end whose label is wrong.",
    ),
}


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
    scores = score_examples(run.scores(), run.influence(), run.held_out())
    return RunScores(scores, names, wrong)


def count_sentence(scores: Scores, way: str) -> str:
    """Return how many labels are wrong, as far as it is known."""
    total = scores.total(way)
    expected, share = round(total.expected), f"{100 * total.part:.1f}%" if total.examples else "–"
    if total.interval is None:
        return (
            f"By {way}, {expected} of {total.examples} labels ({share}) look wrong to a network "
            "that was trained on them, which may be far from the truth."
        )
    low, high = (f"{100 * edge:.0f}%" for edge in total.interval)
    if total.known:
        return (
            f"About {expected} of {total.examples} labels ({share}) are wrong, between {low} and "
            f"{high}, by networks that did not train on them."
        )
    return (
        f"How many of the {total.examples} labels are wrong cannot be told: between {low} and "
        f"{high}. The networks that did not train on them are too unsure; train longer, or give a "
        "stronger network or more examples."
    )


def as_csv(rows: Sequence[Row], by: str) -> str:
    """Return rows as a file that `--exclude`, `--relabel` (by its column suggested) and, with
    corrected labels, `--verified` take: classes by their names, in cells that no spreadsheet takes
    for a formula. Nothing is suggested where the model agrees with the label."""
    names = ["id", "label", "suggested", by, "task", "file", "row"]
    names += ["true_name"] if rows and "true_label" in rows[0] else []
    named = []
    for row in rows:
        suggested = None if row["predicted"] == row["label"] else row["predicted_name"]
        named.append({**row, "label": row["label_name"], "suggested": suggested})
    return _csv(named, names)


CLEANED = ("id", "file", "row", "label", "verdict", "clean_label", "part")


def cleaned_rows(run: RunDir, run_scores: RunScores, way: str) -> list[Row]:
    """Return every example with its verdict: verified or wrong, as a person said; suspect; or ok.
    `clean_label` is the class to go on with: the verified one, of a suspect the suggested one where
    there is one, else the label; none where it is wrong and nobody knows the class. Test examples
    that were held out of the same list are judged where networks judged them (--folds)."""
    scores = run_scores.scores
    verdicts = {i: run_scores.name(label) for i, label in run.spec().verified}
    if run.verdicts.exists():
        verdicts |= read_rows(run.verdicts, len(scores.ids), ("label",))
    suspects = set(scores.ids[scores.suspects(way)].tolist())
    rows = []
    for place, identity in enumerate(scores.ids.tolist()):
        row = run_scores.row(place)
        suggested = None if row["predicted"] == row["label"] else row["predicted_name"]
        rows.append(cleaned_row(identity, row["label_name"], suggested, identity in suspects))
    table = run.held_out() or {"id": (), "fold": (), "label": (), "suggested": (), "wrong": ()}
    columns = (table[name] for name in ("id", "fold", "label", "suggested", "wrong"))
    for identity, fold, label, suggested, wrong in zip(*columns):
        if fold < 0:
            rows.append(
                cleaned_row(
                    identity,
                    run_scores.name(label),
                    run_scores.name(suggested),
                    wrong > 0.5,
                    "test",
                )
            )
    for row in rows:
        if row["id"] in verdicts and row["part"] == "train":
            row["clean_label"] = verdicts[row["id"]] or None
            row["verdict"] = "verified" if verdicts[row["id"]] else "wrong"
    return sorted(rows, key=lambda row: row["id"])


def cleaned_row(
    identity: int, label: str | None, suggested: str | None, suspect: bool, part: str = "train"
) -> Row:
    """Return one row of a cleaned list, before a person's verdicts."""
    verdict, clean = ("suspect", suggested) if suspect else ("ok", label)
    return {"id": identity, "label": label, "verdict": verdict, "clean_label": clean, "part": part}


def cleaned_csv(rows: Sequence[Row]) -> bytes:
    """Return a cleaned list as CSV, in cells that no spreadsheet takes for a formula."""
    return _csv(rows, CLEANED).encode()


def cleaned_parquet(rows: Sequence[Row]) -> bytes:
    """Return a cleaned list as Parquet."""
    import pandas as pd

    content: bytes = pd.DataFrame(rows, columns=CLEANED).astype({"row": "Int64"}).to_parquet()
    return content


def _csv(rows: Sequence[Row], names: Sequence[str]) -> str:
    import pandas as pd

    cells = pd.DataFrame(rows, columns=names, dtype=object)
    safe = cells.map(lambda cell: as_cell(cell) if isinstance(cell, str) else cell)
    text: str = safe.to_csv(index=False, lineterminator="\r\n")
    return text


def memory_at_end(run: RunDir, run_scores: RunScores) -> dict[str, int | None] | None:
    """Count the examples in memory at the end of the last finished task, those of them that are
    verified, and those whose label is known to be wrong (None where nobody knows). None where there
    is no memory."""
    tables = run.memory_tables()
    if not tables:
        return None
    last = tables[max(tables)]
    wrong = (
        None if run_scores.wrong is None else int(np.isin(last["id"], [*run_scores.wrong]).sum())
    )
    verified = sum(bool(pinned) for pinned in last.get("pinned", ()))
    return {"examples": len(last["id"]), "verified": verified, "wrong": wrong}


def class_rows(run_scores: RunScores, way: str) -> list[dict[str, Any]]:
    """Return what is estimated of each class and of all, and what is true where that is known."""
    shares = run_scores.scores.shares(way)
    total = run_scores.scores.total(way)
    rows = []
    for share in (*shares, total) if shares else ():
        low, high = share.interval or (None, None)
        row: dict[str, Any] = {
            "label": None if share is total else share.label,
            "class": "all" if share is total else run_scores.name(share.label),
            "examples": share.examples,
            "wrong": share.part,
            "low": low,
            "high": high,
        }
        if run_scores.wrong is not None:
            of_class = run_scores.scores.ids[
                (run_scores.scores.labels == share.label) | (share is total)
            ]
            row["truly_wrong"] = float(np.isin(of_class, [*run_scores.wrong]).mean())
        rows.append(row)
    return rows


def class_table(run_scores: RunScores, way: str, memory: Mapping[str, int | None] | None) -> Table:
    """Return the rows of classes with a note on the memory."""
    data = class_rows(run_scores, way)
    measured = run_scores.scores.held_out is not None
    header = ["label", "examples", "look wrong, %", *["between, %"] * measured]
    header += ["are wrong, %"] if run_scores.wrong is not None else []
    rows = []
    for row in data:
        texts = [row["class"], row["examples"], f"{100 * row['wrong']:.1f}"]
        if measured:
            texts.append(f"{100 * row['low']:.0f} and {100 * row['high']:.0f}")
        texts += [f"{100 * row['truly_wrong']:.1f}"] if run_scores.wrong is not None else []
        rows.append(tuple(Cell(str(text), bold=row["label"] is None) for text in texts))
    notes = [HOW]
    if memory is not None:
        verified = f", {memory['verified']} of them verified" if memory["verified"] else ""
        note = f"the memory holds {memory['examples']} examples{verified}"
        part = wrong_part(memory)
        if memory["wrong"] is not None:
            share = f" ({100 * part:.1f}%)" if part is not None else ""
            note += f"; {memory['wrong']}{share} have a wrong label"
        notes.append(f"{note}.")
    title = f"how many labels look wrong, by {way}"
    return Table(title, tuple(header), tuple(rows), tuple(data), tuple(notes))


def wrong_part(memory: Mapping[str, int | None] | None) -> float | None:
    """Return the part of the memory whose label is wrong; None where nobody knows."""
    examples, wrong = (memory or {}).get("examples"), (memory or {}).get("wrong")
    return wrong / examples if wrong is not None and examples else None


def stream_tables(groups: Sequence[Group], damaged: list[str] | None = None) -> list[Table]:
    """Return a table for each group of runs: what each method took its stream for."""
    return [stream_table(group, damaged) for group in groups]


def stream_table(group: Group, damaged: list[str] | None) -> Table:
    rows, data = [], []
    for row in group.rows:
        runs = [run_scores for seed in row.seeds if (run_scores := stream_of(row, seed, damaged))]
        about = {"benchmark": group.benchmark, "memory": group.memory, "data": group.variant}
        by = " ".join(sorted({run["by"] for run in runs}))
        numbers: dict[str, Any] = {**about, "label": row.label, "seeds": len(row.seeds), "by": by}
        cells = [Cell(row.label), Cell(seeds_text(row, group)), Cell(by)]
        for key in SHARES:
            summary = summarise([100 * run[key] for run in runs if run[key] is not None])
            numbers[key] = summary.mean if summary else None
            numbers[f"{key}_std"] = summary.std if summary else None
            cells.append(Cell(plus_minus(numbers[key], numbers[f"{key}_std"], 1)))
        rows.append(tuple(cells))
        data.append(numbers)
    header = ("method", "seeds", "by", *(name for name, _ in SHARES.values()))
    notes = [f"mean ± standard deviation over seeds; {common_ground(group.rows)}."]
    notes += [words for _, words in SHARES.values()]
    title = f"{group.title}: what the stream was found to be"
    return Table(title, header, tuple(rows), tuple(data), tuple(notes))


def stream_of(row: Configuration, seed: int, damaged: list[str] | None) -> dict[str, Any] | None:
    """Return what one run took its stream for; None where it has no scores of examples, or damaged
    ones."""
    run = row.runs[seed].directory
    if run is None:
        return None
    try:
        run_scores = scores_of(run)
        memory = memory_at_end(run, run_scores)
    except UserError as error:
        if damaged is None:
            raise
        damaged.append(str(error))
        return None
    if not len(run_scores.scores.ids):
        return None
    *_, total = class_rows(run_scores, run_scores.scores.best)
    shares = {"looks_wrong": total["wrong"], "truly_wrong": total.get("truly_wrong")}
    return {"by": run_scores.scores.best, **shares, "memory_wrong": wrong_part(memory)}

"""What a stream was found to be: how many labels of each class look wrong, how many are, and how
many of those the memory holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metasp.errors import UserError
from metasp.reports.configurations import Configuration, Group, common_ground
from metasp.reports.notes import seeds_text
from metasp.reports.statistics import summarise
from metasp.reports.suspects import RunScores, scores_of
from metasp.reports.table import Cell, Table, plus_minus
from metasp.store import RunDir
from metasp.suspects import Share

HOW = (
    "look wrong: labels expected to be wrong, with the 95% interval of a share of so many "
    "examples; it does not cover a model that is wrong about its examples."
)


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

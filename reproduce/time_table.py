"""What a step and a run of each method cost, beside what the paper measured."""

from collections.abc import Mapping
from typing import Any

from metasp.reports.groups import Configuration, Group, as_published, seeds_text
from metasp.reports.notes import common_ground, version_note
from metasp.reports.significance import Summary, summarise
from metasp.reports.tables import Cell, Table, plus_minus
from reproduce.published import METHODS, PROTOCOL, rows

YARDSTICK = "er"


def time_tables(groups: list[Group]) -> list[Table]:
    """Give one table for each group."""
    return [time_table(group) for group in groups]


def time_table(group: Group) -> Table:
    """Set seconds per step (of the costliest kind) and per run, and both relative to ER, beside
    the published ones."""
    steps = {row.label: step_seconds(row) for row in group.rows}
    totals = {row.label: summarise(total_seconds(row)) for row in group.rows}
    usual = [r.label for r in group.rows if r.method == YARDSTICK and as_published(r)]
    unit = usual[0] if len(usual) == 1 else None
    figures = {r["method"]: r for r in rows("training_time")}
    data = []
    for row in group.rows:
        kind, step = steps[row.label]
        total = totals[row.label]
        entry = {
            "benchmark": group.benchmark,
            "memory": group.memory,
            "data": group.variant,
            "label": row.label,
            "seeds": len(row.seeds),
            "kind": kind,
            "step_s": step.mean if step else None,
            "step_s_std": step.std if step else None,
            "step_ratio": ratio(step, steps[unit][1] if unit else None),
            "total_s": total.mean if total else None,
            "total_s_std": total.std if total else None,
            "total_ratio": ratio(total, totals[unit] if unit else None),
        }
        known = figures.get(METHODS.get(row.method, "")) if as_published(row) else None
        base = figures[METHODS[YARDSTICK]]
        for ours, theirs in (("step", "one_step_s"), ("total", "total_s")):
            entry[f"published_{ours}_s"] = float(known[theirs]) if known else None
            entry[f"published_{ours}_ratio"] = (
                float(known[theirs]) / float(base[theirs]) if known else None
            )
        data.append(entry)
    header = ["method", "seeds", "one step, ms", "× er", "whole run, s", "× er"]
    header += ["published: one step, ms", "× er", "whole run, s", "× er"]
    cells = tuple(time_cells(entry, seeds_text(row, group)) for entry, row in zip(data, group.rows))
    notes = [
        f"one step is the median of the run's costliest kind; {common_ground(group.rows)}.",
        "runs that shared a machine slow each other down: for times use `metasp sweep --jobs 1`.",
        *([] if unit else [f"no ratios: {len(usual) or 'no'} rows of er here."]),
        f"published: {PROTOCOL}, on another machine.",
        *version_note(group.rows),
    ]
    return Table(f"{group.title}: time", tuple(header), cells, tuple(data), tuple(notes))


def time_cells(entry: Mapping[str, Any], seeds: str) -> tuple[Cell, ...]:
    def times(value: float | None) -> Cell:
        return Cell("–" if value is None else f"{value:.2f}")

    def thousand(name: str) -> float | None:
        return None if entry[name] is None else 1000 * entry[name]

    return (
        Cell(entry["label"]),
        Cell(seeds),
        Cell(plus_minus(thousand("step_s"), thousand("step_s_std"))),
        times(entry["step_ratio"]),
        Cell(plus_minus(entry["total_s"], entry["total_s_std"], 1)),
        times(entry["total_ratio"]),
        Cell(plus_minus(thousand("published_step_s"), None, 0)),
        times(entry["published_step_ratio"]),
        Cell(plus_minus(entry["published_total_s"], None, 0)),
        times(entry["published_total_ratio"]),
    )


def step_seconds(row: Configuration) -> tuple[str, Summary | None]:
    """The kind of step that costs most, and what it costs."""
    kinds: dict[str, list[float]] = {}
    for run in row.runs.values():
        for kind, seconds in run.result["seconds"].get("per_step", {}).items():
            kinds.setdefault(kind, []).append(float(seconds))
    if not kinds:
        return "", None
    kind = max(kinds, key=lambda name: sum(kinds[name]) / len(kinds[name]))
    return kind, summarise(kinds[kind])


def total_seconds(row: Configuration) -> list[float]:
    return [float(run.result["seconds"]["total"]) for run in row.runs.values()]


def ratio(value: Summary | None, unit: Summary | None) -> float | None:
    return value.mean / unit.mean if value and unit and unit.mean else None

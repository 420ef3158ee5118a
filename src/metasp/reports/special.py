"""The other tables: time, what the memory keeps, influence approximation, one run's matrix."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metasp.errors import UserError
from metasp.metrics import METRICS, SCENARIO_WORDS
from metasp.reports.configurations import Configuration, Group, common_ground
from metasp.reports.paper import (
    METHODS,
    PROTOCOL,
    SCENARIOS,
    as_published,
    published_stream,
    rows,
    settings_as_published,
)
from metasp.reports.records import Record
from metasp.reports.scores import seeds_text, version_note
from metasp.reports.statistics import Summary, summarise
from metasp.reports.table import Cell, Table, plus_minus

ABLATIONS = ("random", "rehsel-without-cluster", "rehsel-without-influence", "rehsel")
COUNTS = ("true_positive", "true_negative", "false_positive", "false_negative")
YARDSTICK = "er"
PUBLISHED_MEMORY = 500  # of the published ablation of the rehearsal selection


def time_tables(groups: list[Group], paper: bool) -> list[Table]:
    return [time_table(group, paper) for group in groups]


def time_table(group: Group, paper: bool) -> Table:
    """Seconds per step (of the costliest kind) and per run, and both relative to ER."""
    steps = {row.label: step_seconds(row) for row in group.rows}
    totals = {row.label: summarise(total_seconds(row)) for row in group.rows}
    usual = [r.label for r in group.rows if r.method == YARDSTICK and as_published(r)]
    unit = usual[0] if len(usual) == 1 else None
    figures = {r["method"]: r for r in rows("training_time")} if paper else {}
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
        if paper:
            base = figures[METHODS[YARDSTICK]]
            for ours, theirs in (("step", "one_step_s"), ("total", "total_s")):
                entry[f"published_{ours}_s"] = float(known[theirs]) if known else None
                entry[f"published_{ours}_ratio"] = (
                    float(known[theirs]) / float(base[theirs]) if known else None
                )
        data.append(entry)
    header = ["method", "seeds", "one step, ms", "× er", "whole run, s", "× er"]
    header += ["published: one step, ms", "× er", "whole run, s", "× er"] if paper else []
    cells = tuple(time_cells(entry, seeds_text(row, group), paper)
                  for entry, row in zip(data, group.rows))  # fmt: skip
    notes = [
        f"one step is the median of the run's costliest kind; {common_ground(group.rows)}.",
        "runs that shared a machine slow each other down: for times use `metasp sweep --jobs 1`.",
        *([] if unit else [f"no ratios: {len(usual) or 'no'} rows of er here."]),
        *([f"published: {PROTOCOL}, on another machine."] if paper else []),
        *version_note(group.rows),
    ]
    return Table(f"{group.title}: time", tuple(header), cells, tuple(data), tuple(notes))


def time_cells(entry: Mapping[str, Any], seeds: str, paper: bool) -> tuple[Cell, ...]:
    def times(value: float | None) -> Cell:
        return Cell("–" if value is None else f"{value:.2f}")

    def thousand(name: str) -> float | None:
        return None if entry[name] is None else 1000 * entry[name]

    found = [
        Cell(entry["label"]),
        Cell(seeds),
        Cell(plus_minus(thousand("step_s"), thousand("step_s_std"))),
        times(entry["step_ratio"]),
        Cell(plus_minus(entry["total_s"], entry["total_s_std"], 1)),
        times(entry["total_ratio"]),
    ]
    if paper:
        found += [
            Cell(plus_minus(thousand("published_step_s"), None, 0)),
            times(entry["published_step_ratio"]),
            Cell(plus_minus(entry["published_total_s"], None, 0)),
            times(entry["published_total_ratio"]),
        ]
    return tuple(found)


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


def rehearsal_tables(groups: list[Group], paper: bool) -> list[Table]:
    """What the memory keeps: RehSel and its ablations."""
    tables = [
        rehearsal_table(group, scenario, paper)
        for group in groups
        if ablations(group)
        for scenario in SCENARIOS
    ]
    if not tables:
        raise UserError(
            f"no MetaSP runs with a selection of {', '.join(ABLATIONS)} here: "
            "`metasp sweep paper-rehearsal-small` makes them."
        )
    return tables


def ablations(group: Group) -> list[Configuration]:
    found = [
        row
        for row in group.rows
        if row.method.startswith("metasp") and row.spec.get("selection") in ABLATIONS
    ]
    return sorted(found, key=lambda row: (ABLATIONS.index(row.spec["selection"]), row.label))


def rehearsal_table(group: Group, scenario: str, paper: bool) -> Table:
    figures = {
        (r["benchmark"], r["scenario"], r["selection"]): r for r in rows("rehearsal_selection")
    }
    metrics = [name for name in METRICS if name in next(iter(figures.values()))]
    place = (published_stream(group.rows[0]), SCENARIOS[scenario])
    known = paper and group.memory == PUBLISHED_MEMORY and any(key[:2] == place for key in figures)
    chosen = ablations(group)
    names = [row.spec["selection"] for row in chosen]
    lines, data = [], []
    for row, name in zip(chosen, names):
        label = name if names.count(name) == 1 else f"{name}: {row.label}"
        line = [Cell(label), Cell(seeds_text(row, group))]
        for metric in metrics:
            summary = summarise(list(row.scores(scenario, metric).values()))
            mean = summary.mean if summary else None
            line.append(Cell(plus_minus(mean, summary.std if summary else None)))
            ours = known and settings_as_published(row)
            figure = float(figures[(*place, name)][metric]) if ours else None
            if known:
                gap = f" ({mean - figure:+.2f})" if mean is not None and figure is not None else ""
                line.append(Cell("" if figure is None else f"{figure:.2f}{gap}"))
            data.append(
                {
                    "benchmark": group.benchmark,
                    "memory": group.memory,
                    "data": group.variant,
                    "scenario": SCENARIO_WORDS[scenario],
                    "label": label,
                    "metric": metric,
                    "mean": mean,
                    "std": summary.std if summary else None,
                    "seeds": len(row.seeds),
                    "published": figure,
                }
            )
        lines.append(tuple(line))
    header = ["memory keeps", "seeds"]
    for metric in metrics:
        header += [METRICS[metric].name, *(["published (difference)"] if known else [])]
    notes = [f"mean ± standard deviation over seeds; {common_ground(chosen)}."]
    notes += [f"no published figures for {group.title}."] if paper and not known else []
    title = f"{group.title}: what the memory keeps, {SCENARIO_WORDS[scenario]}, %"
    notes += version_note(tuple(chosen))
    return Table(title, tuple(header), tuple(lines), tuple(data), tuple(notes))


def influence_table(file: Path | None) -> Table:
    """How often the sign of an influence agrees with the exact one: ours (from the file that
    `metasp influence-check --json` wrote) above the published figures."""
    ours = [] if file is None else read_check(file)
    entries = [("here", entry) for entry in ours]
    entries += [("published", entry) for entry in rows("influence_approximation")]
    lines, data = [], []
    for where, entry in entries:
        counts = [int(entry[name]) for name in COUNTS]
        right, examples = counts[0] + counts[1], int(entry["examples"])
        texts = [entry["method"], where, *counts, f"{right} of {examples}"]
        lines.append(tuple(Cell(str(text)) for text in texts))
        data.append({"method": entry["method"], "where": where, "examples": examples,
                     **dict(zip(COUNTS, counts)), "agree": right})  # fmt: skip
    header = ("method", "where", *(name.replace("_", " ") for name in COUNTS), "signs agree")
    notes = ["positive: the exact influence lowers the loss; 1000 training examples published."]
    if file is None:
        notes.append(
            "none of ours: `metasp influence-check --json > check.json`, then "
            "`metasp report --table influence --check check.json`."
        )
    return Table("influence approximation against the exact one", header, tuple(lines),
                 tuple(data), tuple(notes))  # fmt: skip


def read_check(file: Path) -> list[Mapping[str, Any]]:
    """The rows of a stored influence check, or one sentence about what is wrong with it."""
    try:
        entries = json.loads(file.read_bytes())["methods"]
        for entry in entries:
            _ = str(entry["method"]), [int(entry[name]) for name in ("examples", *COUNTS)]
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}.") from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(f"{file} is not what `metasp influence-check --json` writes.") from error
    return list(entries)


def matrix_tables(record: Record) -> list[Table]:
    """The accuracy matrix of one run, class-IL and task-IL."""
    tables = []
    for scenario in SCENARIOS:
        matrix = record.result[scenario]["matrix"]
        lines = tuple(
            (
                Cell(f"after task {t + 1}"),
                *(Cell("" if a is None else f"{100 * a:.2f}", bold=k == t)
                  for k, a in enumerate(row)),
            )
            for t, row in enumerate(matrix)
        )  # fmt: skip
        data = tuple(
            {
                "scenario": SCENARIO_WORDS[scenario],
                "after_task": t + 1,
                "task": k + 1,
                "accuracy": a,
            }
            for t, row in enumerate(matrix)
            for k, a in enumerate(row)
            if a is not None
        )
        header = ("", *(f"task {k + 1}" for k in range(len(matrix))))
        title = f"{record.path.name}: accuracy, {SCENARIO_WORDS[scenario]}, %"
        tables.append(Table(title, header, lines, data))
    return tables

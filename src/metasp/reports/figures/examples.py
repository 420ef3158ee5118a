"""What is known of single examples: how many help and how many hurt, and whose label is doubted."""

from collections.abc import Callable, Mapping
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from metasp.errors import UserError
from metasp.reports.figures.style import (
    HELPS,
    HURTS,
    Drawing,
    canvas,
    legend_right,
    line_look,
    slug,
)
from metasp.reports.groups import Configuration, Group
from metasp.store import RunDir
from metasp.store.run_tables import influence_of

MEASURES = {"stability": "S", "plasticity": "P", "fused": "SP"}
SOURCES = {"memory": "memory", "new": "new data"}
GROUPS = 5

Columns = dict[str, np.ndarray[Any, Any]]
DOUBTED = "doubted"  # what a step tells of itself
TRUTH = "labels that are wrong"
Curve = dict[tuple[int, int], float]  # a share by task and epoch


def recorded(row: Configuration, damaged: list[str] | None = None) -> list[Columns]:
    """The influences of each of a row's runs that recorded any, as columns; what is wrong with a
    table that cannot be read goes to `damaged`, if given."""
    names, found = ["task", "source", *MEASURES], []
    for seed in row.seeds:
        run = row.runs[seed].directory
        try:
            table = influence_of(run.path, names) if run else None
        except UserError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
            continue
        if table is not None and table.num_rows:
            found.append({name: np.asarray(table[name].to_pylist()) for name in names})
    return found


def of_each_row(
    draw: Callable[[Group, Configuration, list[Columns]], Drawing],
    groups: list[Group],
    damaged: list[str] | None,
) -> list[Drawing]:
    """One drawing of each row that recorded influences."""
    drawings = []
    for group in groups:
        for row in group.rows:
            runs = recorded(row, damaged)
            if runs:
                drawings.append(draw(group, row, runs))
    return drawings


def counts(groups: list[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """Examples that help (influence below 0) and hurt (above), per task."""
    return of_each_row(one_counts, groups, damaged)


def one_counts(group: Group, row: Configuration, runs: list[Columns]) -> Drawing:
    tasks = sorted({int(task) for run in runs for task in np.unique(run["task"])})
    figure, axes = canvas(2, 3, (7.2, 3.8), sharex=True, sharey="row")
    places, data = np.arange(len(tasks)), []
    for line, source in zip(axes, SOURCES):
        for panel, measure in zip(line, MEASURES):
            helps, hurts = np.zeros(len(tasks)), np.zeros(len(tasks))
            for number, task in enumerate(tasks):
                values = [r[measure][(r["task"] == task) & (r["source"] == source)] for r in runs]
                helps[number] = np.mean([(v < 0).sum() for v in values])
                hurts[number] = np.mean([(v > 0).sum() for v in values])
                data.append(
                    {"label": row.label, "source": source, "measure": MEASURES[measure],
                     "task": task + 1, "helps": helps[number], "hurts": hurts[number],
                     "runs": len(runs)}
                )  # fmt: skip
            panel.bar(places, helps, 0.7, color=HELPS, label="helps (lowers the loss)")
            panel.bar(places, -hurts, 0.7, color=HURTS, hatch="////", edgecolor="white", lw=0,
                      label="hurts (raises it)")  # fmt: skip
            panel.axhline(0, color="black", lw=0.6)
            panel.set_xticks(places, [str(task + 1) for task in tasks])
            panel.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
            panel.set_title(f"on {MEASURES[measure]}, {SOURCES[source]}")
        line[0].set_ylabel("examples")
    for panel in axes[1]:
        panel.set_xlabel("task")
    legend_right(figure, axes[0][0])
    figure.suptitle(f"{group.title}: {row.label}, {runs_text(runs)}", fontsize=9)
    return Drawing(f"influence-counts-{group.slug}-{slug(row.label)}", figure, data)


def runs_text(runs: list[Columns]) -> str:
    return "1 run" if len(runs) == 1 else f"mean of {len(runs)} runs"


def count_text(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or number == round(number) else f"{number:.1f}"


def histograms(groups: list[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """The influences of all tasks in five groups of equal width."""
    return of_each_row(one_histogram, groups, damaged)


def one_histogram(group: Group, row: Configuration, runs: list[Columns]) -> Drawing:
    figure, axes = canvas(2, 3, (7.2, 4.2))
    data = []
    for line, source in zip(axes, SOURCES):
        for panel, measure in zip(line, MEASURES):
            values = np.concatenate([run[measure][run["source"] == source] for run in runs])
            panel.set_title(f"on {MEASURES[measure]}, {SOURCES[source]}")
            panel.grid(visible=False, axis="x")
            if not len(values):
                panel.set_xticks([])
                panel.text(0.5, 0.5, "none recorded", ha="center", transform=panel.transAxes)
                continue
            numbers, edges = np.histogram(values, GROUPS)
            colours = [HELPS if right <= 0 else HURTS if left >= 0 else "#999999"
                       for left, right in pairwise(edges)]  # fmt: skip
            bars = panel.bar(range(GROUPS), numbers / len(runs), 0.9, color=colours)
            panel.bar_label(bars, [count_text(n / len(runs)) for n in numbers], fontsize=6)
            for bar, colour in zip(bars, colours):
                bar.set(hatch="////" if colour == HURTS else "", edgecolor="white", lw=0)
            panel.margins(y=0.15)
            panel.set_xticks(
                np.arange(GROUPS + 1) - 0.5, [f"{edge:.2g}" for edge in edges], rotation=45,
                ha="right", fontsize=6,
            )  # fmt: skip
            data += [
                {"label": row.label, "source": source, "measure": MEASURES[measure],
                 "from": left, "to": right, "examples": number / len(runs), "runs": len(runs)}
                for left, right, number in zip(edges, edges[1:], numbers)
            ]  # fmt: skip
        line[0].set_ylabel("examples per run")
    for panel in axes[1]:
        panel.set_xlabel("influence")
    words = "below 0 helps (blue), above hurts (hatched), grey holds 0"
    figure.suptitle(f"{group.title}: {row.label}; {words}", fontsize=9)
    return Drawing(f"influence-histogram-{group.slug}-{slug(row.label)}", figure, data)


def through_time(groups: list[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """One drawing of each group in which a method doubts labels."""
    drawings = []
    for group in groups:
        curves: dict[str, list[Curve]] = {}
        truths: list[Curve] = []
        for row in group.rows:
            for curve, truth in curves_of(row, damaged):
                curves.setdefault(row.label, []).append(curve)
                truths += [truth] if truth else []
        if curves:
            drawings.append(one_through_time(group, curves, truths))
    return drawings


def curves_of(row: Configuration, damaged: list[str] | None) -> list[tuple[Curve, Curve]]:
    """Of each run that tells it: the mean share doubted in each epoch, and the true share."""
    found = []
    for seed in row.seeds:
        try:
            run = row.runs[seed].directory
            curve = curve_of(run) if run else None
            if run and curve:
                found.append((curve, truth_of(run, curve)))
        except UserError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
    return found


def curve_of(run: RunDir) -> Curve:
    if not (run.path / "events.jsonl").exists():
        return {}
    shares: dict[tuple[int, int], list[float]] = {}
    for event in run.events():
        if event.get(DOUBTED) is not None:
            epoch = (int(event["task"]), int(event["epoch"]))
            shares.setdefault(epoch, []).append(float(event[DOUBTED]))
    return {epoch: float(np.mean(values)) for epoch, values in sorted(shares.items())}


def truth_of(run: RunDir, curve: Curve) -> Curve:
    """The share of wrong labels in each task, at the epochs of a curve; empty where not known."""
    noise, scores = run.noise(), run.scores()
    if noise is None:
        return {}
    parts = {}
    for task, table in scores.items():
        parts[task] = float(np.isin(table["id"], noise["id"]).mean())
    return {(task, epoch): parts[task] for task, epoch in curve if task in parts}


def one_through_time(
    group: Group, curves: Mapping[str, list[Curve]], truths: list[Curve]
) -> Drawing:
    figure, axes = canvas(1, 1, (7.2, 2.9))
    panel = axes[0][0]
    epochs = sorted({epoch for found in curves.values() for curve in found for epoch in curve})
    data = []
    for number, (label, found) in enumerate(curves.items()):
        data += draw_mean(panel, label, found, epochs, line_look(number))
    if truths:
        look = {"color": "black", "linestyle": ":", "linewidth": 1.0}
        data += draw_mean(panel, TRUTH, truths, epochs, look)
    starts = []
    for task, own in groupby(enumerate(epochs, 1), key=lambda placed: placed[1][0]):
        place, _ = next(own)
        starts.append((place, f"task {task + 1}"))
    for place, _ in starts[1:]:
        panel.axvline(place - 0.5, color="#999999", linewidth=0.7)
    panel.set_xticks([place for place, _ in starts], [words for _, words in starts])
    panel.set(xlabel="epochs in which labels are judged", ylabel="new examples, %", ylim=(0, None))
    legend_right(figure, panel)
    figure.suptitle(f"{group.title}: labels judged more likely wrong than right", fontsize=9)
    return Drawing(f"doubt-{group.slug}", figure, data)


def draw_mean(
    panel: Axes,
    label: str,
    curves: list[Curve],
    epochs: list[tuple[int, int]],
    look: dict[str, Any],
) -> list[dict[str, Any]]:
    """The mean over seeds in each epoch, and the numbers drawn."""
    places, means, data = [], [], []
    for place, (task, epoch) in enumerate(epochs, 1):
        values = [100 * curve[task, epoch] for curve in curves if (task, epoch) in curve]
        if values:
            places.append(place)
            means.append(float(np.mean(values)))
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
            data.append(
                {
                    "label": label,
                    "task": task + 1,
                    "epoch": epoch + 1,
                    "share": means[-1],
                    "std": spread,
                    "runs": len(values),
                }
            )
    panel.plot(places, means, label=label, **look)
    return data

"""What the weights did through time: the share of new examples that a method doubts."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from metasp.errors import UserError
from metasp.reports.configurations import Configuration, Group
from metasp.reports.figures.style import Drawing, canvas, legend_right, line_look
from metasp.store import RunDir

DOUBTED = "doubted"  # what a step tells of itself
TRUTH = "labels that are wrong"
Curve = dict[tuple[int, int], float]  # a share by task and epoch


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

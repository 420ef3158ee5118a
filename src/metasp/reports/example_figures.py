"""Figures of one row each: its accuracy matrix, and its examples: how many help and hurt, and whose
label a method doubts."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from metasp.errors import UserError
from metasp.metrics import SCENARIO_WORDS, SCENARIOS
from metasp.reports.figures import (
    COLOURS,
    Drawing,
    canvas,
    legend_right,
    line_look,
    matrices,
    slug,
)
from metasp.reports.groups import Configuration, Group
from metasp.store import RunDir

HELPS, HURTS = COLOURS[0], COLOURS[1]
MEASURES = {"stability": "S", "plasticity": "P", "fused": "SP"}
SOURCES = {"memory": "memory", "new": "new data"}
DOUBTED = "doubted"  # the share of doubted labels in the record of a step
TRUTH = "labels that are wrong"
EPOCH = ["task", "epoch"]


def from_runs(
    row: Configuration, read: Callable[[RunDir], pd.DataFrame | None], damaged: list[str] | None
) -> pd.DataFrame:
    """Return what is read of a row's runs below each other, with a column `seed`.

    Errors go to `damaged`, if there is such a list."""
    frames = [pd.DataFrame()]
    for seed in row.seeds:
        run = row.runs[seed].directory
        try:
            frame = read(run) if run else None
        except UserError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
            continue
        if frame is not None and len(frame):
            frames.append(frame.assign(seed=seed))
    return pd.concat(frames, ignore_index=True)


def influences(run: RunDir) -> pd.DataFrame | None:
    """Return every measured influence of a run: task, source, measure and value."""
    table = run.influence_of(["task", "source", *MEASURES])
    if table is None:
        return None
    frame: pd.DataFrame = table.to_pandas()
    return frame.melt(["task", "source"], var_name="measure").dropna(subset="value")


def recorded(
    groups: Sequence[Group], damaged: list[str] | None
) -> Iterator[tuple[Group, Configuration, pd.DataFrame]]:
    """Yield each row that recorded influences, with these."""
    for group in groups:
        for row in group.rows:
            frame = from_runs(row, influences, damaged)
            if len(frame):
                yield group, row, frame


def panels_of(
    frame: pd.DataFrame, height: float, title: str, **options: Any
) -> tuple[Any, Any, list[tuple[Any, str, str, pd.DataFrame]]]:
    """Return a figure, its axes, and each panel with its source, measure and influences.

    Sources and measures without influences have no panel."""
    sources = [source for source in SOURCES if (frame["source"] == source).any()]
    measures = [measure for measure in MEASURES if (frame["measure"] == measure).any()]
    size = (2.4 * max(2, len(measures)), height * len(sources))
    figure, axes = canvas(len(sources), len(measures), size, title, **options)
    panels = []
    for line, source in zip(axes, sources):
        for panel, measure in zip(line, measures):
            values = frame[(frame["source"] == source) & (frame["measure"] == measure)]
            panel.set_title(f"on {MEASURES[measure]}, {SOURCES[source]}")
            panels.append((panel, source, measure, values))
    return figure, axes, panels


def heat_maps(groups: Sequence[Group]) -> list[Drawing]:
    """Draw the accuracy matrix of every row, mean over seeds."""
    drawings = []
    for group in groups:
        for row in group.rows:
            seeds = f"mean of {len(row.seeds)} seeds" if len(row.seeds) > 1 else "one seed"
            figure, axes = canvas(1, 2, (6.4, 3.3), f"{group.title}: {row.label}, {seeds}")
            data = []
            for panel, scenario in zip(axes[0], SCENARIOS):
                mean = matrices(row, scenario).mean(axis=0)
                image = panel.imshow(mean, vmin=0, vmax=100, cmap="cividis")
                size = 7 if len(mean) <= 6 else 4.5
                for (t, k), value in np.ndenumerate(mean):
                    if not np.isnan(value):
                        look = {"color": "white" if value < 55 else "black", "fontsize": size}
                        panel.text(k, t, f"{value:.0f}", ha="center", va="center", **look)
                        about = {"scenario": SCENARIO_WORDS[scenario], "label": row.label}
                        shown = {"after_task": t + 1, "task": k + 1, "accuracy": float(value)}
                        data.append({**about, **shown, "seeds": len(row.seeds)})
                ticks = [str(task + 1) for task in range(len(mean))]
                panel.set_xticks(range(len(mean)), ticks)
                panel.set_yticks(range(len(mean)), ticks)
                panel.grid(visible=False)
                panel.set(xlabel="accuracy on task", ylabel="after task")
                panel.set_title(SCENARIO_WORDS[scenario])
            figure.colorbar(image, ax=list(axes[0]), label="%", shrink=0.8)
            drawings.append(Drawing(f"matrix-{group.slug}-{slug(row.label)}", figure, data))
    return drawings


def counts(groups: Sequence[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """Draw how many examples help (influence below 0) and hurt (above), per task."""
    drawings = []
    for group, row, frame in recorded(groups, damaged):
        tasks, runs = sorted(frame["task"].unique()), frame["seed"].nunique()
        number = "1 run" if runs == 1 else f"mean of {runs} runs"
        title = f"{group.title}: {row.label}, {number}"
        figure, axes, panels = panels_of(frame, 1.9, title, sharex=True, sharey="row")
        data, xs = [], np.arange(len(tasks))
        for panel, source, measure, values in panels:
            signs = pd.DataFrame({"helps": values["value"] < 0, "hurts": values["value"] > 0})
            mean = signs.groupby(values["task"]).sum().reindex(tasks, fill_value=0) / runs
            for task, numbers in mean.iterrows():
                about = {"label": row.label, "source": source, "measure": MEASURES[measure]}
                data.append({**about, "task": int(str(task)) + 1, **numbers, "runs": runs})
            panel.bar(xs, mean["helps"], 0.7, color=HELPS, label="helps (lowers the loss)")
            hatched = {"hatch": "////", "edgecolor": "white", "lw": 0}
            panel.bar(
                xs, -mean["hurts"], 0.7, color=HURTS, label="hurts (raises the loss)", **hatched
            )
            panel.axhline(0, color="black", lw=0.6)
            panel.set_xticks(xs, [str(task + 1) for task in tasks])
            panel.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        for line in axes:
            line[0].set_ylabel("examples")
        for panel in axes[-1]:
            panel.set_xlabel("task")
        legend_right(figure, axes[0][0])
        name = f"influence-counts-{group.slug}-{slug(row.label)}"
        drawings.append(Drawing(name, figure, data))
    return drawings


def histograms(groups: Sequence[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """Draw the influences of all tasks in five groups of equal width."""
    drawings = []
    for group, row, frame in recorded(groups, damaged):
        runs = frame["seed"].nunique()
        legend = "below 0 helps (blue), above hurts (hatched), grey holds 0"
        figure, axes, panels = panels_of(frame, 2.1, f"{group.title}: {row.label}; {legend}")
        data = []
        for panel, source, measure, values in panels:
            heights, edges = np.histogram(values["value"], 5)
            draw_bars(panel, heights / runs, edges)
            about = {"label": row.label, "source": source, "measure": MEASURES[measure]}
            for (left, right), height in zip(pairwise(edges), heights / runs):
                shown = {"from": left, "to": right, "examples": height, "runs": runs}
                data.append({**about, **shown})
        for line in axes:
            line[0].set_ylabel("examples per run")
        for panel in axes[-1]:
            panel.set_xlabel("influence")
        name = f"influence-histogram-{group.slug}-{slug(row.label)}"
        drawings.append(Drawing(name, figure, data))
    return drawings


def draw_bars(panel: Any, heights: Any, edges: Any) -> None:
    """Draw the bars of a histogram, coloured by the sign of their group."""
    for x, (left, right) in enumerate(pairwise(edges)):
        colour = HELPS if right <= 0 else HURTS if left >= 0 else "#999999"
        hatch = "////" if colour == HURTS else ""
        bar = panel.bar(x, heights[x], 0.9, color=colour, hatch=hatch, edgecolor="white", lw=0)
        text = f"{heights[x]:.0f}" if heights[x] >= 10 else f"{heights[x]:.2g}"
        panel.bar_label(bar, [text], fontsize=6)
    panel.grid(visible=False, axis="x")
    panel.margins(y=0.15)
    ticks = [f"{edge:.2g}" for edge in edges]
    panel.set_xticks(np.arange(len(edges)) - 0.5, ticks, rotation=45, ha="right", fontsize=6)


def doubts(groups: Sequence[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """Draw the share of new examples whose label a method doubts, epoch by epoch."""
    drawings = []
    for group in groups:
        frames = []
        for row in group.rows:
            frame = from_runs(row, doubted_shares, damaged)
            if len(frame):
                frames.append(frame.assign(label=row.label))
        if frames:
            drawings.append(doubt_drawing(group, pd.concat(frames)))
    return drawings


def doubted_shares(run: RunDir) -> pd.DataFrame | None:
    """Return the mean share doubted in each epoch of a run in percent, with the true share where
    it is known; None where its steps say nothing of doubt."""
    if not (run.path / "events.jsonl").exists():
        return None
    steps = [event for event in run.events() if event.get(DOUBTED) is not None]
    if not steps:
        return None
    frame = pd.DataFrame(steps)[[*EPOCH, DOUBTED]]
    means = (100 * frame.groupby(EPOCH).mean()).reset_index()
    noise, wrong = run.noise(), {}
    if noise is not None:
        for task, table in run.scores().items():
            wrong[task] = 100 * float(np.isin(table["id"], noise["id"]).mean())
    return means.assign(**{TRUTH: means["task"].map(wrong).astype(float)})


def doubt_drawing(group: Group, shares: pd.DataFrame) -> Drawing:
    """Draw the doubted shares of the rows of a group, and the true share."""
    title = f"{group.title}: labels judged more likely wrong than right"
    figure, axes = canvas(1, 1, (7.2, 2.9), title)
    panel = axes[0][0]
    epochs = shares[EPOCH].drop_duplicates().sort_values(EPOCH, ignore_index=True)
    data: list[dict[str, Any]] = []
    lines = []
    for number, (label, of_row) in enumerate(shares.groupby("label", sort=False)):
        lines.append((str(label), of_row, DOUBTED, line_look(number)))
    black = {"color": "black", "linestyle": ":", "linewidth": 1.0}
    lines.append((TRUTH, shares.dropna(subset=[TRUTH]), TRUTH, black))
    for label, of_line, column, look in lines:
        mean = of_line.groupby(EPOCH)[column].agg(["mean", "std", "count"]).reset_index()
        points = epochs.reset_index().merge(mean, on=EPOCH)
        if not len(points):
            continue
        panel.plot(points["index"] + 1, points["mean"], label=label, **look)
        points[EPOCH] += 1
        points = points.rename(columns={"mean": "share", "count": "runs"}).assign(label=label)
        data += points.drop(columns="index").replace({np.nan: None}).to_dict("records")
    starts = epochs.drop_duplicates("task")
    for index in starts.index[1:]:
        panel.axvline(index + 0.5, color="#999999", linewidth=0.7)
    panel.set_xticks(starts.index + 1, [f"task {task + 1}" for task in starts["task"]])
    panel.set(xlabel="epochs in which labels are judged", ylabel="new examples, %", ylim=(0, None))
    legend_right(figure, panel)
    return Drawing(f"doubt-{group.slug}", figure, data)

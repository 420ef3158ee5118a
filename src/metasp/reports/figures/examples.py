"""What is known of single examples: how many help and how many hurt, and whose label is doubted."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

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
DOUBTED = "doubted"  # what a step says of its new examples
TRUTH = "labels that are wrong"
EPOCH = ["task", "epoch"]


def from_runs(
    row: Configuration, read: Callable[[RunDir], pd.DataFrame | None], damaged: list[str] | None
) -> pd.DataFrame:
    """Return what is read of a row's runs below each other, with a column `seed`; why a run cannot
    be read goes to `damaged`, if there is such a list."""
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
    table = influence_of(run.path, ["task", "source", *MEASURES])
    return None if table is None else table.to_pandas()


def counts(groups: list[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """Draw the examples that help (influence below 0) and hurt (above), per task."""
    return [one_counts(*drawn) for drawn in recorded(groups, damaged)]


def recorded(
    groups: list[Group], damaged: list[str] | None
) -> Iterator[tuple[Group, Configuration, pd.DataFrame]]:
    """Yield each row that recorded influences, with these."""
    for group in groups:
        for row in group.rows:
            frame = from_runs(row, influences, damaged)
            if len(frame):
                yield group, row, frame


def one_counts(group: Group, row: Configuration, frame: pd.DataFrame) -> Drawing:
    tasks, runs = sorted(frame["task"].unique()), frame["seed"].nunique()
    figure, axes = canvas(2, 3, (7.2, 3.8), sharex=True, sharey="row")
    places, data = np.arange(len(tasks)), []
    for line, source in zip(axes, SOURCES):
        of_source = frame[frame["source"] == source]
        for panel, measure in zip(line, MEASURES):
            values = of_source[measure]
            signs = pd.DataFrame({"helps": values < 0, "hurts": values > 0})
            mean = signs.groupby(of_source["task"]).sum().reindex(tasks, fill_value=0) / runs
            for task, numbers in mean.iterrows():
                about = {"label": row.label, "source": source, "measure": MEASURES[measure]}
                data.append({**about, "task": int(str(task)) + 1, **numbers, "runs": runs})
            panel.bar(places, mean["helps"], 0.7, color=HELPS, label="helps (lowers the loss)")
            panel.bar(places, -mean["hurts"], 0.7, color=HURTS, hatch="////", edgecolor="white",
                      lw=0, label="hurts (raises it)")  # fmt: skip
            panel.axhline(0, color="black", lw=0.6)
            panel.set_xticks(places, [str(task + 1) for task in tasks])
            panel.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
            panel.set_title(f"on {MEASURES[measure]}, {SOURCES[source]}")
        line[0].set_ylabel("examples")
    for panel in axes[1]:
        panel.set_xlabel("task")
    legend_right(figure, axes[0][0])
    words = "1 run" if runs == 1 else f"mean of {runs} runs"
    figure.suptitle(f"{group.title}: {row.label}, {words}", fontsize=9)
    return Drawing(f"influence-counts-{group.slug}-{slug(row.label)}", figure, data)


def histograms(groups: list[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """Draw the influences of all tasks in five groups of equal width."""
    return [one_histogram(*drawn) for drawn in recorded(groups, damaged)]


def one_histogram(group: Group, row: Configuration, frame: pd.DataFrame) -> Drawing:
    figure, axes = canvas(2, 3, (7.2, 4.2))
    data, runs = [], frame["seed"].nunique()
    for line, source in zip(axes, SOURCES):
        for panel, measure in zip(line, MEASURES):
            values = frame.loc[frame["source"] == source, measure].to_numpy()
            panel.set_title(f"on {MEASURES[measure]}, {SOURCES[source]}")
            panel.grid(visible=False, axis="x")
            if not len(values):
                panel.set_xticks([])
                panel.text(0.5, 0.5, "none recorded", ha="center", transform=panel.transAxes)
                continue
            numbers, edges = np.histogram(values, GROUPS)
            draw_bars(panel, numbers / runs, edges)
            about = {"label": row.label, "source": source, "measure": MEASURES[measure]}
            for (left, right), number in zip(pairwise(edges), numbers / runs):
                bar = {"from": left, "to": right, "examples": number, "runs": runs}
                data.append({**about, **bar})
        line[0].set_ylabel("examples per run")
    for panel in axes[1]:
        panel.set_xlabel("influence")
    words = "below 0 helps (blue), above hurts (hatched), grey holds 0"
    figure.suptitle(f"{group.title}: {row.label}; {words}", fontsize=9)
    return Drawing(f"influence-histogram-{group.slug}-{slug(row.label)}", figure, data)


def draw_bars(panel: Any, numbers: Any, edges: Any) -> None:
    colours = [HELPS if right <= 0 else HURTS if left >= 0 else "#999999"
               for left, right in pairwise(edges)]  # fmt: skip
    bars = panel.bar(range(GROUPS), numbers, 0.9, color=colours)
    panel.bar_label(bars, [f"{n:.0f}" if n >= 10 else f"{n:.2g}" for n in numbers], fontsize=6)
    for bar, colour in zip(bars, colours):
        bar.set(hatch="////" if colour == HURTS else "", edgecolor="white", lw=0)
    panel.margins(y=0.15)
    panel.set_xticks(np.arange(GROUPS + 1) - 0.5, [f"{edge:.2g}" for edge in edges],
                     rotation=45, ha="right", fontsize=6)  # fmt: skip


def through_time(groups: list[Group], damaged: list[str] | None = None) -> list[Drawing]:
    """Draw the share of new examples whose label is doubted, where a method says it."""
    drawings = []
    for group in groups:
        frames = [from_runs(row, doubts, damaged).assign(label=row.label) for row in group.rows]
        shares = pd.concat([frame for frame in frames if len(frame)] or [pd.DataFrame()])
        if len(shares):
            drawings.append(one_through_time(group, shares))
    return drawings


def doubts(run: RunDir) -> pd.DataFrame | None:
    """Return the mean share doubted in each epoch of a run, in percent, and the true share where it
    is known; None where its steps say nothing."""
    if not (run.path / "events.jsonl").exists():
        return None
    steps = [event for event in run.events() if event.get(DOUBTED) is not None]
    if not steps:
        return None
    frame = pd.DataFrame(steps)[[*EPOCH, DOUBTED]]
    means = (100 * frame.groupby(EPOCH).mean()).reset_index()
    noise = run.noise()
    wrong = {} if noise is None else {
        task: 100 * float(np.isin(table["id"], noise["id"]).mean())
        for task, table in run.scores().items()
    }  # fmt: skip
    return means.assign(**{TRUTH: means["task"].map(wrong).astype(float)})


def one_through_time(group: Group, shares: pd.DataFrame) -> Drawing:
    figure, axes = canvas(1, 1, (7.2, 2.9))
    panel = axes[0][0]
    epochs = shares[EPOCH].drop_duplicates().sort_values(EPOCH, ignore_index=True)
    data: list[dict[str, Any]] = []
    for number, (label, of_row) in enumerate(shares.groupby("label", sort=False)):
        data += draw_mean(panel, str(label), of_row, DOUBTED, epochs, line_look(number))
    truths = shares.dropna(subset=[TRUTH])
    if len(truths):
        look = {"color": "black", "linestyle": ":", "linewidth": 1.0}
        data += draw_mean(panel, TRUTH, truths, TRUTH, epochs, look)
    starts = epochs.drop_duplicates("task")
    for place in starts.index[1:]:
        panel.axvline(place + 0.5, color="#999999", linewidth=0.7)
    panel.set_xticks(starts.index + 1, [f"task {task + 1}" for task in starts["task"]])
    panel.set(xlabel="epochs in which labels are judged", ylabel="new examples, %", ylim=(0, None))
    legend_right(figure, panel)
    figure.suptitle(f"{group.title}: labels judged more likely wrong than right", fontsize=9)
    return Drawing(f"doubt-{group.slug}", figure, data)


def draw_mean(
    panel: Any,
    label: str,
    shares: pd.DataFrame,
    column: str,
    epochs: pd.DataFrame,
    look: dict[str, Any],
) -> Sequence[dict[str, Any]]:
    """Draw the mean over runs in each epoch, and return the numbers drawn."""
    mean = shares.groupby(EPOCH)[column].agg(["mean", "std", "count"]).reset_index()
    places = epochs.reset_index().merge(mean, on=EPOCH)
    panel.plot(places["index"] + 1, places["mean"], label=label, **look)
    numbers = places.drop(columns="index").rename(columns={"mean": "share", "count": "runs"})
    numbers[EPOCH] += 1
    rows: list[dict[str, Any]] = numbers.replace({np.nan: None}).to_dict("records")
    return [{"label": label, **row} for row in rows]

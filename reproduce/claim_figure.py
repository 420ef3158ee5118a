"""The gain over ER in its parts: what the schedule, the weights and RehSel add, and the paper's."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from metasp.reports.figures import LOOK, Drawing
from metasp.reports.significance import interval
from reproduce.claim import Difference
from reproduce.published import main_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# MetaSP+RehSel − ER = (schedule − ER) + (MetaSP − schedule) + (RehSel − MetaSP)
PARTS = {
    "ER at its schedule − ER": "schedule",
    "MetaSP − ER at its schedule": "weights by influence",
    "RehSel − MetaSP": "RehSel",
}
TOGETHER = "schedule and weights"  # all that the paper's table tells
COLUMNS = ["stream", "part", "difference", "low", "high"]


def gain_parts(compared: Iterable[Difference]) -> pd.DataFrame:
    """Return the parts of the gain over ER of each stream that has all of them (columns COLUMNS),
    and the published means of MetaSP − ER, which no control splits, and RehSel − MetaSP."""
    rows = []
    for gap in compared:
        if gap.name in PARTS:
            _, low, high = interval(gap.gaps) or (gap.mean, None, None)
            rows.append((gap.cell, PARTS[gap.name], gap.mean, low, high))
    frame = pd.DataFrame(rows, columns=COLUMNS)
    complete = frame.groupby("stream")["part"].transform("nunique") == len(PARTS)
    means = {key: score.mean for key, score in main_results().items()}
    published = []
    for benchmark, scenario, memory, method, metric in means:
        if (scenario, method, metric) != ("class", "ER", "A_inf"):
            continue
        er, metasp, rehsel = (
            means[benchmark, scenario, memory, name, metric]
            for name in ("ER", "MetaSP", "MetaSP+RehSel")
        )
        stream = f"paper: {benchmark.removeprefix('Split ')}, memory {memory}"
        published.append((stream, TOGETHER, metasp - er, None, None))
        published.append((stream, "RehSel", rehsel - metasp, None, None))
    return pd.concat([frame[complete], pd.DataFrame(published, columns=COLUMNS)], ignore_index=True)


def draw_gain(compared: Sequence[Difference]) -> Drawing:
    """Return the figure: a panel for each part, a line for each stream."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    gains = gain_parts(compared)
    streams = [*dict.fromkeys(gains["stream"])][::-1]
    titles = [*PARTS.values()]
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(8.6, 0.8 + 0.21 * len(streams)), layout="constrained")
        panels = figure.subplots(1, len(titles), sharex=True, sharey=True)
        for panel, title in zip(panels, titles):
            panel.set_title(title)
            panel.axvline(0, color="#444444", linewidth=0.8)
            for part in gains[gains["part"] == title].itertuples():
                draw_part(panel, streams.index(part.stream), part)
        for part in gains[gains["part"] == TOGETHER].itertuples():
            draw_part(panels[0], streams.index(part.stream), part)
        panels[0].set_yticks(range(len(streams)), streams)
        figure.supxlabel(
            "class-IL A_∞, points; bars: 95% interval over seeds; hollow: published "
            "(schedule and weights together)", fontsize=7,
        )  # fmt: skip
    return Drawing("claim", figure, gains.to_dict("records"))


def draw_part(panel: "Axes", height: int, part: "pd.core.series.Series") -> None:
    """Draw a difference as a point with its interval, or a published mean as a hollow one."""
    measured = pd.notna(part.low)
    face = "#1f77b4" if measured else "white"
    panel.plot(part.difference, height, "o", color="#1f77b4", markerfacecolor=face, markersize=4)
    if measured:
        panel.plot([part.low, part.high], [height, height], color="#1f77b4", linewidth=1)

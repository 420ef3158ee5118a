"""Figures of scores, and the look that all figures share. `FIGURES` names every figure.

All are readable in print, told apart without colour, and written with the numbers they show."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metasp.errors import or_user_error
from metasp.lazy import load
from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.groups import Configuration, Group
from metasp.reports.labels import UPPER_BOUND
from metasp.reports.significance import Summary, interval, reference_of, summarise
from metasp.store.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, np.dtype[np.float64]]
# Okabe and Ito's palette without its yellow, which paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
DASHES = ("-", "--", ":", "-.")
LOOK: Any = {
    "font.size": 8, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#dddddd", "grid.linewidth": 0.5, "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 7, "lines.markersize": 5, "lines.linewidth": 1.3,
    "svg.hashsalt": "metasp", "svg.fonttype": "none",
    "text.parse_math": False,  # names of data are text, whatever their dollars
}  # fmt: skip
CAPTION = "dots: seeds; bars: 95% interval of the mean; filled: it leaves out 0"
LINE_HEIGHT, LETTER_WIDTH = 0.155, 0.052  # of a legend, in inches


@dataclass(frozen=True)
class Drawing:
    """A finished figure, the stem of its files and the numbers it shows, a mapping each."""

    name: str
    figure: "Figure"
    data: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Kind:
    """What a figure shows, the function that draws it, and which runs it takes."""

    of: str  # "module:function", loaded when it first draws
    help: str
    needs: str = "none of these runs will do"  # said where there is nothing to draw
    reads_tables: bool = False  # beside the results; some may be damaged


RECORDED = "it takes runs that record influence, such as those of metasp"
JUDGED = "it takes runs of a method that judges labels, such as metasp-robust"
EXAMPLES = "metasp.reports.example_figures"
FIGURES: dict[str, Kind] = {
    "accuracy": Kind(f"{__name__}:after_each_task", "accuracy after each task"),
    "front": Kind(f"{__name__}:fronts", "A_1 against A_∞ and the front"),
    "differences": Kind(
        f"{__name__}:differences",
        "every row minus one, seed by seed",
        "it takes the row of --against and others",
    ),
    "matrix": Kind(f"{EXAMPLES}:heat_maps", "accuracy matrix of each row"),
    "influence-counts": Kind(
        f"{EXAMPLES}:counts", "examples that help and hurt, per task", RECORDED, True
    ),
    "influence-histogram": Kind(
        f"{EXAMPLES}:histograms", "influences in five groups", RECORDED, True
    ),
    "doubt": Kind(
        f"{EXAMPLES}:doubts",
        "share of new examples whose label a method doubts, through time",
        JUDGED,
        True,
    ),
}
ALONG = Kind(f"{__name__}:along", "scores against a field")
"""The figure of `--by`, of groups with a field."""


def draw(kind: Kind, groups: Sequence[Group], **options: Any) -> list[Drawing]:
    """Return the drawings of one kind; an empty list where the runs will not do."""
    import matplotlib as mpl

    with mpl.rc_context(LOOK):
        drawings: list[Drawing] = load(kind.of)(groups, **options)
        return drawings


def save(drawing: Drawing, folder: Path) -> list[Path]:
    """Write NAME.png, NAME.svg and NAME.csv. Returns their paths."""
    import matplotlib as mpl
    import pandas as pd

    text: str = pd.DataFrame(drawing.data).to_csv(index=False, float_format="%.6g")
    contents = {"csv": text.encode()}
    with mpl.rc_context(LOOK):
        for form, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            out = io.BytesIO()
            drawing.figure.savefig(out, format=form, dpi=200, metadata=metadata)
            contents[form] = out.getvalue()
    paths = []
    with or_user_error(f"cannot write to {folder}", "choose another --out."):
        folder.mkdir(parents=True, exist_ok=True)
        for form in ("png", "svg", "csv"):
            paths.append(folder / f"{drawing.name}.{form}")
            write_atomic(paths[-1], contents[form])
    return paths


def canvas(
    rows: int, columns: int, size: tuple[float, float], title: str, **options: Any
) -> tuple["Figure", Any]:
    """Return a titled figure, `size` in inches, with an array of axes, (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=9)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def line_look(number: int) -> dict[str, Any]:
    """Return colour, marker and dash of the n-th line: no two of the first 28 look alike."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def legend_right(figure: "Figure", axes: "Axes") -> None:
    """Add one legend for all panels to their right; the figure grows to hold it."""
    handles, labels = axes.get_legend_handles_labels()
    width, height = figure.get_size_inches()
    longest = max((len(label) for label in labels), default=0)
    wide, high = 4.6 + LETTER_WIDTH * longest, 0.7 + LINE_HEIGHT * len(labels)
    figure.set_size_inches(max(width, wide), max(height, high))
    figure.legend(handles, labels, loc="outside right center")


def slug(text: str) -> str:
    """Return text as a part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def matrices(row: Configuration, scenario: str) -> Array:
    """Return the accuracy matrices of a row in percent, shape (seeds, tasks, tasks).

    NaN stands above the diagonal, and in rows of tasks after which nothing was tested."""
    stored = [row.runs[seed].result[scenario]["matrix"] for seed in row.seeds]
    return 100 * np.array(stored, dtype=float)


def after_each_task(groups: Sequence[Group]) -> list[Drawing]:
    """Draw the mean accuracy on the tasks seen so far, task by task."""
    drawings = []
    for group in groups:
        figure, axes = canvas(1, 2, (7.2, 2.9), group.title)
        data: list[dict[str, Any]] = []
        for panel, scenario in zip(axes[0], SCENARIOS):
            last = 0
            for number, row in enumerate(group.rows):
                accuracies = matrices(row, scenario)
                tested = np.flatnonzero(~np.isnan(accuracies[0, :, 0]))
                seen = np.nanmean(accuracies[:, tested], axis=2)
                mean = seen.mean(axis=0)
                std = seen.std(axis=0, ddof=1) if len(seen) > 1 else np.zeros_like(mean)
                steps, look = tested + 1, line_look(number)
                last = max(last, accuracies.shape[1])
                panel.plot(steps, mean, label=f"{row.label}, n={len(seen)}", **look)
                low, high = mean - std, mean + std
                panel.fill_between(steps, low, high, color=look["color"], alpha=0.12, lw=0)
                for index, step in enumerate(steps.tolist()):
                    about = {"scenario": SCENARIO_WORDS[scenario], "label": row.label}
                    spread = float(std[index]) if len(seen) > 1 else None
                    shown = {"after_task": step, "mean": float(mean[index]), "std": spread}
                    data.append({**about, **shown, "seeds": len(seen)})
            panel.set(title=SCENARIO_WORDS[scenario], xlabel="after task")
            panel.set_xticks(range(1, last + 1))
        axes[0][0].set_ylabel("accuracy on the tasks so far, %")
        legend_right(figure, axes[0][0])
        drawings.append(Drawing(f"accuracy-{group.slug}", figure, data))
    return drawings


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the points that no other beats in both coordinates, ordered by the first one."""
    front = []
    for index, point in enumerate(points):
        beaten = [p for p in points if p[0] >= point[0] and p[1] >= point[1] and p != point]
        if not beaten:
            front.append(index)
    return sorted(front, key=lambda index: points[index])


def fronts(groups: Sequence[Group]) -> list[Drawing]:
    """Draw A_1 (Plasticity) against A_∞ (Stability) with the Pareto front of the rows."""
    drawings = []
    for group in groups:
        if len(group.rows) < 2:
            continue
        title = f"{group.title} (joint training is a bound, not on the front)"
        figure, axes = canvas(1, 2, (7.2, 3.1), title)
        data: list[dict[str, Any]] = []
        for panel, scenario in zip(axes[0], SCENARIOS):
            data += draw_front(panel, group, scenario)
            xlabel = f"{METRICS['A_1'].name}: learns, %"
            panel.set(title=SCENARIO_WORDS[scenario], xlabel=xlabel)
        axes[0][0].set_ylabel(f"{METRICS['A_inf'].name}: remembers, %")
        legend_right(figure, axes[0][0])
        drawings.append(Drawing(f"front-{group.slug}", figure, data))
    return drawings


def draw_front(panel: "Axes", group: Group, scenario: str) -> list[dict[str, Any]]:
    """Draw the rows of a group as points, and the border of what the front beats as steps."""
    data: list[dict[str, Any]] = []
    for number, row in enumerate(group.rows):
        learned = summary_of(row, scenario, "A_1")
        remembered = summary_of(row, scenario, "A_inf")
        if learned is None or remembered is None:
            continue
        look = {**line_look(number), "linestyle": "none"}
        panel.errorbar(
            learned.mean, remembered.mean, xerr=learned.std, yerr=remembered.std, elinewidth=0.7,
            capsize=1.5, label=f"{row.label}, n={learned.n}", **look,
        )  # fmt: skip
        data.append({
            "scenario": SCENARIO_WORDS[scenario], "label": row.label, "A_1": learned.mean,
            "A_1_std": learned.std, "A_inf": remembered.mean, "A_inf_std": remembered.std,
            "seeds": learned.n, "on_front": row.method != UPPER_BOUND,
        })  # fmt: skip
    rivals = [point for point in data if point["on_front"]]
    points = [(point["A_1"], point["A_inf"]) for point in rivals]
    front = [points[index] for index in pareto_front(points)]
    for point in rivals:
        point["on_front"] = (point["A_1"], point["A_inf"]) in front
    if front:  # none where there is only joint training
        (left, _), (bottom, _) = panel.get_xlim(), panel.get_ylim()
        corners = [(left, front[0][1])]
        for (x, y), below in zip(front, [*(y for _, y in front[1:]), bottom]):
            corners += [(x, y), (x, below)]
        panel.plot(*zip(*corners), color="#444444", lw=1, ls="--", zorder=1, label="Pareto front")
        panel.set(xlim=(left, None), ylim=(bottom, None))
    return data


def summary_of(row: Configuration, scenario: str, metric: str) -> Summary | None:
    """Return mean and standard deviation of a score of a row."""
    return summarise(list(row.scores(scenario, metric).values()))


def along(groups: Sequence[Group], metrics: Sequence[str] = ("A_inf",)) -> list[Drawing]:
    """Draw scores against a field, for each group with two of its values or more."""
    drawings = []
    for group in groups:
        numeric = all(isinstance(value, int | float) for value in group.values)
        ticks = group.values if numeric else range(len(group.values))
        for metric in metrics if len(group.values) > 1 else ():
            figure, axes = canvas(1, 2, (7.2, 3.1), group.title)
            data: list[dict[str, Any]] = []
            for panel, scenario in zip(axes[0], SCENARIOS):
                for number, line in enumerate(group.lines):
                    xs, points = [], []
                    for index, row in sorted(line.at.items()):
                        summary = summary_of(row, scenario, metric)
                        if summary is None:
                            continue
                        xs.append(ticks[index])
                        about = {"by": group.field, "value": group.values[index]}
                        about |= {"scenario": SCENARIO_WORDS[scenario], "label": line.label}
                        shown = {"metric": metric, "mean": summary.mean, "std": summary.std}
                        points.append({**about, **shown, "seeds": summary.n})
                    means = [point["mean"] for point in points]
                    spread = [point["std"] or 0.0 for point in points]
                    panel.errorbar(
                        xs, means, yerr=spread, elinewidth=0.7, capsize=1.5, label=line.label,
                        **line_look(number),
                    )  # fmt: skip
                    data += points
                panel.set_xticks(list(ticks), group.headings, rotation=0 if numeric else 20)
                panel.set(title=SCENARIO_WORDS[scenario], xlabel=group.axis)
            axes[0][0].set_ylabel(f"{METRICS[metric].name}, %")
            legend_right(figure, axes[0][0])
            name = f"by-{slug(group.field)}-{slug(metric)}-{group.slug}"
            drawings.append(Drawing(name, figure, data))
    return drawings


Gaps = tuple[float, ...]  # one difference at each seed, in points


def gaps(a: Configuration, b: Configuration, scenario: str) -> Gaps:
    """Return A_∞ of one row minus that of another, at each seed that both have."""
    minuend, subtrahend = a.scores(scenario, "A_inf"), b.scores(scenario, "A_inf")
    seeds = sorted(minuend.keys() & subtrahend.keys())
    return tuple(minuend[seed] - subtrahend[seed] for seed in seeds)


def differences(groups: Sequence[Group], against: str | None = None) -> list[Drawing]:
    """Draw every row minus the one that reports compare with."""
    drawings = []
    for group in groups:
        reference = reference_of(group.rows, group.title, against)
        rows = [row for row in group.rows if row is not reference]
        if reference is None or not rows:
            continue
        panels: dict[str, dict[str, dict[str, Gaps]]] = {}
        for scenario in SCENARIOS:
            lines = {row.label: gaps(row, reference, scenario) for row in rows}
            panels[SCENARIO_WORDS[scenario]] = {"": lines}
        title = f"{group.title}: A_∞ minus that of {reference.label}"
        name = f"differences-{group.slug}-{slug(reference.label)}"
        drawings.append(forest(name, title, panels, reference.label))
    return drawings


def forest(
    name: str,
    title: str,
    panels: Mapping[str, Mapping[str, Mapping[str, Gaps]]],
    against: str | None = None,
) -> Drawing:
    """Draw differences as lines with their mean and interval, in sections with a heading each.

    `panels` holds sections by heading, which hold differences by label: the same in each panel.
    `against` is what all were subtracted from, if it is one row."""
    labels: list[tuple[str, str]] = []  # heading and label of each line from the top
    for heading, section in next(iter(panels.values())).items():
        labels += [(heading, "")] if heading else []
        labels += [(heading, label) for label in section]
    height = 0.19 * len(labels) + 1.1
    figure, axes = canvas(1, len(panels), (7.2, height), title, sharey=True)
    data = []
    for panel, (scenario, sections) in zip(axes[0], panels.items()):
        for y, (heading, label) in enumerate(labels):
            if label:
                about = {"scenario": scenario, "metric": "A_inf", "against": against}
                shown = draw_gaps(panel, y, sections[heading][label])
                data.append({**about, "heading": heading, "label": label, **shown})
            elif panel is axes[0][0]:
                write_heading(panel, y, heading)
        panel.axvline(0, color="black", linewidth=0.8, zorder=0)
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
        panel.set(title=scenario, xlabel="points", ylim=(len(labels) - 0.4, -0.6))
    axes[0][0].set_yticks(range(len(labels)), [label for _, label in labels])
    figure.supxlabel(CAPTION, fontsize=7)
    return Drawing(name, figure, data)


def draw_gaps(panel: "Axes", y: int, values: Gaps) -> dict[str, Any]:
    """Draw the seeds, their mean and its interval. Returns the numbers drawn."""
    summary = interval(values)
    if summary is None:
        return {"mean": None, "low": None, "high": None, "seeds": 0}
    mean, low, high = summary
    look: dict[str, Any] = {"color": COLOURS[0]}
    panel.plot(values, [y] * len(values), ".", alpha=0.35, markersize=3, **look)
    significant = False
    if low is not None and high is not None:
        panel.plot([low, high], [y, y], **look)
        significant = low > 0 or high < 0
    panel.plot(mean, y, "o", markerfacecolor=COLOURS[0] if significant else "white", **look)
    return {"mean": mean, "low": low, "high": high, "seeds": len(values)}


def write_heading(panel: "Axes", y: int, text: str) -> None:
    """Write a bold line from the left edge of the panel over the next ones."""
    from matplotlib.transforms import blended_transform_factory

    across = blended_transform_factory(panel.transAxes, panel.transData)
    heading = panel.text(0.01, y, text, transform=across, weight="bold", va="center")
    heading.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
    heading.set_in_layout(False)  # or a long one would push the panels apart

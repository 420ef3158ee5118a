"""Differences between rows, seed by seed: what a table of means and deviations hides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.transforms import blended_transform_factory

from metasp.metrics import SCENARIO_WORDS, SCENARIOS
from metasp.reports.figures.style import COLOURS, Drawing, canvas, slug
from metasp.reports.groups import Configuration, Group
from metasp.reports.significance import interval, reference_of

WIDTH, LINE, AROUND = 7.2, 0.19, 1.1  # inches; a line is one difference
CAPTION = "dots: seeds; bars: 95% interval of the mean; filled: it leaves out 0"


@dataclass(frozen=True)
class Line:
    """One difference to draw: its words and its value at each seed, in points."""

    label: str
    gaps: tuple[float, ...]


def gaps(a: Configuration, b: Configuration, scenario: str) -> tuple[float, ...]:
    """A_∞ of one row minus that of another, at each seed that both have."""
    mine, other = a.scores(scenario, "A_inf"), b.scores(scenario, "A_inf")
    return tuple(mine[seed] - other[seed] for seed in sorted(mine.keys() & other.keys()))


def from_reference(groups: list[Group], against: str | None = None) -> list[Drawing]:
    """Every row minus the one that reports compare with."""
    drawings = []
    for group in groups:
        reference = reference_of(group.rows, group.title, against)
        others = [row for row in group.rows if row is not reference]
        if reference is None or not others:
            continue
        panels = {
            SCENARIO_WORDS[scenario]: {
                "": [Line(row.label, gaps(row, reference, scenario)) for row in others]
            }
            for scenario in SCENARIOS
        }
        title = f"{group.title}: A_∞ minus that of {reference.label}"
        stem = f"differences-{group.slug}-{slug(reference.label)}"
        drawings.append(forest(stem, title, panels, reference.label))
    return drawings


def forest(
    name: str,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[Line]]],
    against: str | None = None,
) -> Drawing:
    """One panel for each key, each with the same headings and lines under them; `against` is what
    all were subtracted from, if it is one."""
    first = next(iter(panels.values()))
    lines = sum(len(part) + bool(heading) for heading, part in first.items())
    figure, axes = canvas(1, len(panels), (WIDTH, LINE * lines + AROUND), sharey=True)
    data = []
    for panel, (scenario, sections) in zip(axes[0], panels.items()):
        place = 0
        for heading, part in sections.items():
            if heading:
                if panel is axes[0][0]:
                    write_heading(panel, place, heading)
                place += 1
            for line in part:
                told = {"scenario": scenario, "metric": "A_inf", "against": against}
                data.append({**told, "heading": heading, **draw_line(panel, place, line)})
                place += 1
        panel.axvline(0, color="black", linewidth=0.8, zorder=0)
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
        panel.set(title=scenario, xlabel="points", ylim=(place - 0.4, -0.6))
    labels = list[str]()
    for heading, part in first.items():
        labels += [""] if heading else []
        labels += [line.label for line in part]
    axes[0][0].set_yticks(range(len(labels)), labels)
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(CAPTION, fontsize=7)
    return Drawing(name, figure, data)


def draw_line(panel: Axes, place: int, line: Line) -> dict[str, object]:
    """The seeds, their mean and its interval, and the numbers drawn."""
    found = interval(line.gaps)
    if found is None:
        return {"label": line.label, "mean": None, "low": None, "high": None, "seeds": 0}
    mean, low, high = found
    colour = COLOURS[0]
    panel.plot(line.gaps, [place] * len(line.gaps), ".", color=colour, alpha=0.35, markersize=3)
    if low is not None and high is not None:
        panel.plot([low, high], [place, place], color=colour)
    sure = low is not None and high is not None and (low > 0 or high < 0)
    panel.plot(mean, place, "o", color=colour, markerfacecolor=colour if sure else "white")
    return {"label": line.label, "mean": mean, "low": low, "high": high, "seeds": len(line.gaps)}


def write_heading(panel: Axes, place: int, words: str) -> None:
    """A bold line over those of a section, from the left edge of the panel over the next ones."""
    across = blended_transform_factory(panel.transAxes, panel.transData)
    text = panel.text(0.01, place, words, transform=across, weight="bold", va="center")
    text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
    text.set_in_layout(False)  # or a long one would push the panels apart

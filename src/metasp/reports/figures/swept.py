"""A score against the size of the memory, or any field that was swept."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.figures.style import Drawing, canvas, legend_right, line_look, slug
from metasp.reports.statistics import summarise
from metasp.reports.swept import Line, Swept, axis_words


def along(tables: Sequence[Swept], metrics: Sequence[str]) -> list[Drawing]:
    """A figure for each table and metric with two values of the field or more."""
    several = [table for table in tables if len(table.values) > 1]
    return [one_along(table, metric) for table in several for metric in metrics]


def one_along(table: Swept, metric: str) -> Drawing:
    figure, axes = canvas(1, 2, (7.2, 3.1))
    numbers = all(isinstance(value, int | float) for value in table.values)
    places: Sequence[Any] = table.values if numbers else range(len(table.values))
    data = []
    for panel, scenario in zip(axes[0], SCENARIOS):
        for number, line in enumerate(table.lines):
            data += draw_line(panel, table, line, (scenario, metric), places, line_look(number))
        panel.set_xticks(list(places), table.words, rotation=0 if numbers else 20)
        panel.set(title=SCENARIO_WORDS[scenario], xlabel=axis_words(table))
    axes[0][0].set_ylabel(f"{METRICS[metric].name}, %")
    legend_right(figure, axes[0][0])
    figure.suptitle(table.title, fontsize=9)
    return Drawing(f"by-{slug(table.field)}-{slug(metric)}-{table.slug}", figure, data)


def draw_line(
    panel: Axes,
    table: Swept,
    line: Line,
    what: tuple[str, str],
    places: Sequence[Any],
    look: dict[str, Any],
) -> list[dict[str, Any]]:
    """The means of one row with their deviations, and the numbers drawn."""
    scenario, metric = what
    data = []
    for place, row in sorted(line.at.items()):
        summary = summarise(list(row.scores(scenario, metric).values()))
        if summary is not None:
            data.append(
                {
                    "by": table.field,
                    "value": table.values[place],
                    "place": places[place],
                    "scenario": SCENARIO_WORDS[scenario],
                    "label": line.label,
                    "metric": metric,
                    "mean": summary.mean,
                    "std": summary.std,
                    "seeds": summary.n,
                }
            )
    means = [entry["mean"] for entry in data]
    spread = [entry["std"] or 0.0 for entry in data]
    panel.errorbar(
        [entry.pop("place") for entry in data], means, yerr=spread, elinewidth=0.7, capsize=1.5,
        label=line.label, **look,
    )  # fmt: skip
    return data

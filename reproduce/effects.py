"""The paper's figures of one setting: its effect on the scores, with the time it costs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.figures import Drawing, canvas, legend_right, line_look
from metasp.reports.groups import Configuration, Group, identity
from metasp.reports.labels import Values, bare
from metasp.reports.significance import summarise
from reproduce.time_table import total_seconds


def families(group: Group, keys: Sequence[str]) -> list[list[Configuration]]:
    """Rows that differ in the first field alone, in its order; two or more of them. The other
    fields stay the same, or go with it."""
    found: dict[Any, list[Configuration]] = {}
    for row in group.rows:
        spec = plain(row)
        value = spec.get(keys[0])
        if value is None:
            continue
        rest = {without(row, keys[:1])}
        if all(spec.get(key) in (None, value) for key in keys):
            rest.add(without(row, keys))
        for each in rest:
            found.setdefault(each, []).append(row)
    several = sorted((rows for rows in found.values() if len(rows) > 1), key=len, reverse=True)
    whole: list[list[Configuration]] = []
    for rows in several:
        if not any(all(row in other for row in rows) for other in whole):
            whole.append(rows)
    return [sorted(rows, key=lambda row: float(plain(row)[keys[0]])) for rows in whole]


def without(row: Configuration, keys: Sequence[str]) -> Values:
    """What a row is but for some fields."""
    return tuple(each for each in identity(row.record) if bare(each[0]) not in keys)


def plain(row: Configuration) -> dict[str, Any]:
    """The spec of a row with its settings by their own names."""
    return {bare(key): value for key, value in row.spec.items()}


def validation_size(groups: list[Group]) -> list[Drawing]:
    keys = ("validation_old", "validation_new")
    return effect(
        groups, keys, "validation-size", "size of each validation set (below 1: a part)", False
    )


def influence_epochs(groups: list[Group]) -> list[Drawing]:
    keys = ("influence_last", "rehearse_last")
    return effect(groups, keys, "influence-epochs", "last epochs with influence", True)


def pseudo_steps(groups: list[Group]) -> list[Drawing]:
    return effect(groups, ("pseudo_steps",), "pseudo-steps", "pseudo steps", True)


def effect(
    groups: list[Group], keys: Sequence[str], name: str, words: str, timed: bool
) -> list[Drawing]:
    """One figure for each family of rows that differ in the given fields alone."""
    drawings = []
    for group in groups:
        found = families(group, keys)
        for number, rows in enumerate(found):
            ending = f"-{number + 1}" if len(found) > 1 else ""
            stem = f"{name}-{group.slug}-{rows[0].method}{ending}"
            drawings.append(one_effect(group, rows, (stem, keys[0], words), timed))
    return drawings


def one_effect(
    group: Group, rows: list[Configuration], names: tuple[str, str, str], timed: bool
) -> Drawing:
    stem, key, words = names
    seeds = sorted({len(row.seeds) for row in rows})
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    count += " seed" if seeds[-1] == 1 else " seeds"
    title = f"{group.title}: {rows[0].method}, {count}"
    figure, axes = canvas(1, 2 + timed, (7.2 if timed else 5.6, 2.6), title)
    values = [f"{plain(row)[key]:g}" for row in rows]
    places = np.arange(len(rows))
    data = []
    for panel, scenario in zip(axes[0], SCENARIOS):
        for number, metric in enumerate(m for m in METRICS if not METRICS[m].change):
            found = [summarise(list(row.scores(scenario, metric).values())) for row in rows]
            means = [s.mean if s else np.nan for s in found]
            spread = [(s.std or 0.0) if s else 0.0 for s in found]
            panel.errorbar(places, means, yerr=spread, capsize=2, elinewidth=0.7,
                           label=METRICS[metric].name,
                           **line_look(number))  # fmt: skip
            data += [
                {
                    "scenario": SCENARIO_WORDS[scenario],
                    "label": row.label,
                    key: value,
                    "metric": metric,
                    "mean": s.mean if s else None,
                    "std": s.std if s else None,
                    "seeds": len(row.seeds),
                    "total_s": float(np.mean(total_seconds(row))),
                }
                for row, value, s in zip(rows, values, found)
            ]
        panel.set(title=SCENARIO_WORDS[scenario], xlabel=words, ylabel="%")
        panel.set_xticks(places, values)
    if timed:
        seconds = [float(np.mean(total_seconds(row))) for row in rows]
        bars = axes[0][2].bar(places, seconds, color="#999999", width=0.6)
        axes[0][2].bar_label(bars, fmt="%.3g", fontsize=6)
        axes[0][2].set(title="time of a run, s", xlabel=words)
        axes[0][2].set_xticks(places, values)
    legend_right(figure, axes[0][0])
    return Drawing(stem, figure, data)

"""Accuracy: after each task, A_1 against A_∞, the matrix as a heat map, and against a field."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.figures.style import Drawing, canvas, legend_right, line_look, slug
from metasp.reports.groups import Configuration, Group, Line
from metasp.reports.names import UPPER_BOUND
from metasp.reports.significance import summarise

Array = np.ndarray[Any, np.dtype[np.float64]]


def matrices(row: Configuration, scenario: str) -> Array:
    """The accuracy matrices of a row's runs in percent, shape (seeds, T, T); NaN above, and in
    the rows of tasks after which nothing was tested."""
    stored = [row.runs[seed].result[scenario]["matrix"] for seed in row.seeds]
    return 100 * np.array(stored, dtype=float)


def after_each_task(groups: list[Group]) -> list[Drawing]:
    """The mean accuracy on the tasks seen so far, task by task."""
    return [one_after_each_task(group) for group in groups]


def one_after_each_task(group: Group) -> Drawing:
    figure, axes = canvas(1, 2, (7.2, 2.9))
    data = []
    for panel, scenario in zip(axes[0], SCENARIOS):
        for number, row in enumerate(group.rows):
            whole = matrices(row, scenario)
            steps = 1 + np.flatnonzero(~np.isnan(whole[0, :, 0]))
            seen = np.nanmean(whole[:, steps - 1], axis=2)
            mean = seen.mean(0)
            std = seen.std(0, ddof=1) if len(seen) > 1 else np.zeros_like(mean)
            look = line_look(number)
            panel.plot(steps, mean, label=f"{row.label}, n={len(seen)}", **look)
            panel.fill_between(steps, mean - std, mean + std, color=look["color"], alpha=0.12, lw=0)
            about = {"scenario": SCENARIO_WORDS[scenario], "label": row.label}
            for step, m, s in zip(steps.tolist(), mean.tolist(), std.tolist()):
                spread = {"std": s if len(seen) > 1 else None, "seeds": len(seen)}
                data.append({**about, "after_task": step, "mean": m, **spread})
        panel.set(title=SCENARIO_WORDS[scenario], xlabel="after task")
        panel.set_xticks(
            range(1, max(len(m) for m in (matrices(r, scenario)[0] for r in group.rows)) + 1)
        )
    axes[0][0].set_ylabel("accuracy on the tasks so far, %")
    legend_right(figure, axes[0][0])
    figure.suptitle(group.title, fontsize=9)
    return Drawing(f"accuracy-{group.slug}", figure, data)


def pareto_front(points: list[tuple[float, float]]) -> list[int]:
    """The points that no other beats in both coordinates (ties count), by the first one."""
    front = [
        index
        for index, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]
    return sorted(front, key=lambda index: points[index])


def learning_against_remembering(groups: list[Group]) -> list[Drawing]:
    """A_1 (Plasticity) against A_∞ (Stability) with the front of those none beats in both."""
    return [one_front(group) for group in groups if len(group.rows) > 1]


def one_front(group: Group) -> Drawing:
    figure, axes = canvas(1, 2, (7.2, 3.1))
    data = []
    for panel, scenario in zip(axes[0], SCENARIOS):
        points, rivals = [], []
        for number, row in enumerate(group.rows):
            learned = summarise(list(row.scores(scenario, "A_1").values()))
            kept = summarise(list(row.scores(scenario, "A_inf").values()))
            if learned is None or kept is None:
                continue
            look = {**line_look(number), "linestyle": "none"}
            panel.errorbar(
                learned.mean, kept.mean, xerr=learned.std, yerr=kept.std, elinewidth=0.7,
                capsize=1.5, label=f"{row.label}, n={learned.n}", **look,
            )  # fmt: skip
            points.append((learned.mean, kept.mean))
            rivals.append(row.method != UPPER_BOUND)
            about = {"scenario": SCENARIO_WORDS[scenario], "label": row.label}
            scores = {"A_1": learned.mean, "A_1_std": learned.std}
            scores |= {"A_inf": kept.mean, "A_inf_std": kept.std}
            data.append({**about, **scores, "seeds": learned.n, "on_front": False})
        competing = [point for point, rival in zip(points, rivals) if rival]
        front = [competing[index] for index in pareto_front(competing)]
        if front:  # none where all there is is joint training
            draw_front(panel, front)
        for entry, point, rival in zip(data[-len(points) :], points, rivals):
            entry["on_front"] = rival and point in front
        panel.set(title=SCENARIO_WORDS[scenario], xlabel=f"{METRICS['A_1'].name}: learns, %")
    axes[0][0].set_ylabel(f"{METRICS['A_inf'].name}: remembers, %")
    legend_right(figure, axes[0][0])
    figure.suptitle(f"{group.title} (joint training is a bound, not on the front)", fontsize=9)
    return Drawing(f"front-{group.slug}", figure, data)


def draw_front(panel: Axes, front: list[tuple[float, float]]) -> None:
    """The border of what the front's points beat, as steps, to the edges of the panel."""
    (left, _), (bottom, _) = panel.get_xlim(), panel.get_ylim()
    corners = [(left, front[0][1])]
    for (x, y), after in zip(front, [*(y for _, y in front[1:]), bottom]):
        corners += [(x, y), (x, after)]
    panel.plot(*zip(*corners), color="#444444", lw=1, ls="--", zorder=1, label="Pareto front")
    panel.set(xlim=(left, None), ylim=(bottom, None))


def heat_maps(groups: list[Group]) -> list[Drawing]:
    """The accuracy matrix of every row, mean over seeds."""
    return [heat_map(group, row) for group in groups for row in group.rows]


def heat_map(group: Group, row: Configuration) -> Drawing:
    figure, axes = canvas(1, 2, (6.4, 3.3))
    data = []
    for panel, scenario in zip(axes[0], SCENARIOS):
        mean = matrices(row, scenario).mean(0)
        image = panel.imshow(mean, vmin=0, vmax=100, cmap="cividis")
        small = 7 if len(mean) <= 6 else 4.5
        for (t, k), value in np.ndenumerate(mean):
            if not np.isnan(value):
                colour = "white" if value < 55 else "black"
                panel.text(k, t, f"{value:.0f}", ha="center", va="center", color=colour,
                           fontsize=small)  # fmt: skip
                data.append(
                    {"scenario": SCENARIO_WORDS[scenario], "label": row.label, "after_task": t + 1,
                     "task": k + 1, "accuracy": float(value), "seeds": len(row.seeds)}
                )  # fmt: skip
        ticks = range(len(mean))
        panel.set_xticks(ticks, [str(k + 1) for k in ticks])
        panel.set_yticks(ticks, [str(k + 1) for k in ticks])
        panel.grid(visible=False)
        panel.set(title=SCENARIO_WORDS[scenario], xlabel="accuracy on task", ylabel="after task")
    figure.colorbar(image, ax=list(axes[0]), label="%", shrink=0.8)
    seeds = f"mean of {len(row.seeds)} seeds" if len(row.seeds) > 1 else "one seed"
    figure.suptitle(f"{group.title}: {row.label}, {seeds}", fontsize=9)
    return Drawing(f"matrix-{group.slug}-{slug(row.label)}", figure, data)


def along(groups: list[Group], metrics: Sequence[str] = ("A_inf",)) -> list[Drawing]:
    """Draw the scores against a field, for each group with two of its values or more."""
    several = [group for group in groups if len(group.values) > 1]
    return [one_along(group, metric) for group in several for metric in metrics]


def one_along(group: Group, metric: str) -> Drawing:
    figure, axes = canvas(1, 2, (7.2, 3.1))
    numbers = all(isinstance(value, int | float) for value in group.values)
    places: Sequence[Any] = group.values if numbers else range(len(group.values))
    data = []
    for panel, scenario in zip(axes[0], SCENARIOS):
        for number, line in enumerate(group.lines):
            data += draw_along(panel, group, line, (scenario, metric), places, line_look(number))
        panel.set_xticks(list(places), group.words, rotation=0 if numbers else 20)
        panel.set(title=SCENARIO_WORDS[scenario], xlabel=group.axis)
    axes[0][0].set_ylabel(f"{METRICS[metric].name}, %")
    legend_right(figure, axes[0][0])
    figure.suptitle(group.title, fontsize=9)
    return Drawing(f"by-{slug(group.field)}-{slug(metric)}-{group.slug}", figure, data)


def draw_along(
    panel: Axes,
    group: Group,
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
            about = {"by": group.field, "value": group.values[place], "place": places[place],
                     "scenario": SCENARIO_WORDS[scenario], "label": line.label}  # fmt: skip
            score = {"metric": metric, "mean": summary.mean, "std": summary.std}
            data.append({**about, **score, "seeds": summary.n})
    means = [number["mean"] for number in data]
    spread = [number["std"] or 0.0 for number in data]
    panel.errorbar(
        [number.pop("place") for number in data], means, yerr=spread, elinewidth=0.7, capsize=1.5,
        label=line.label, **look,
    )  # fmt: skip
    return data

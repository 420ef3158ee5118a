"""What a tracker shows of a run, as plain numbers by name; and the accuracies as a picture."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTITIES = ("stability", "plasticity", "fused")
KNOWN = {"event", "task", "epoch", "step", "kind", "seconds"}


def scalars_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one record of the log: loss, learning rate, gamma and what else a step tells;
    the loss on held-out examples; accuracies per task."""
    if record["event"] == "StepTaken":
        return {f"train/{k}": float(v) for k, v in record.items() if k not in KNOWN}
    if record["event"] == "Validated":
        return {"validation/loss": float(record["loss"])}
    if record["event"] != "Evaluated":
        return {}
    values = {}
    for scenario in SCENARIOS:
        if record["before"]:
            values[f"before/{scenario}"] = float(record[scenario][0])
            continue
        for task, accuracy in zip(record["on"], record[scenario]):
            values[f"{scenario}/task_{task + 1}"] = float(accuracy)
        values[f"{scenario}/mean"] = sum(record[scenario]) / len(record[scenario])
    return values


def spread_of(influence: Mapping[str, Sequence[Any]]) -> dict[str, list[float]]:
    """The influences of a finished task by quantity, of new examples and of the memory's."""
    spread = {}
    for quantity in QUANTITIES:
        for source in ("new", "memory"):
            values = [
                value
                for value, own in zip(influence.get(quantity, ()), influence.get("source", ()))
                if own == source
            ]
            if values:
                spread[f"influence/{quantity}_{source}"] = values
    return spread


def scores_of(result: Mapping[str, Any]) -> dict[str, float]:
    """The final scores that are known: every metric of both scenarios."""
    found = {}
    for scenario in SCENARIOS:
        for name in METRICS:
            value = result[scenario][name]
            if value is not None:
                found[f"{scenario}/{name}"] = float(value)
    return found


def heat_map(matrix: Sequence[Sequence[float | None]], scenario: str) -> "Figure":
    """Accuracy on task k (column) after task t (row), in percent."""
    from matplotlib.figure import Figure  # slow to load: only when there is something to draw

    size = len(matrix)
    figure = Figure(figsize=(1.5 + 0.6 * size, 1.2 + 0.5 * size), layout="constrained")
    axes = figure.subplots()
    values = [[float("nan") if cell is None else 100 * cell for cell in row] for row in matrix]
    image = axes.imshow(values, vmin=0, vmax=100, cmap="viridis")
    for t, row in enumerate(values):
        for k, cell in enumerate(row):
            if cell == cell:
                axes.text(k, t, f"{cell:.0f}", ha="center", va="center",
                          color="white" if cell < 60 else "black")  # fmt: skip
    ticks = [str(number + 1) for number in range(size)]
    axes.set_xticks(range(size), ticks)
    axes.set_yticks(range(size), ticks)
    title = f"{SCENARIO_WORDS[scenario]} accuracy, %"
    axes.set(xlabel="tested on task", ylabel="after task", title=title)
    figure.colorbar(image)
    return figure

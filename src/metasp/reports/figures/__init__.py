"""The figures. FIGURES is a dictionary you can read: what draws each, and which sweep feeds it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

from metasp.reports.configurations import Group
from metasp.reports.figures import accuracy, differences, influence
from metasp.reports.figures.style import LOOK, Drawing, save

__all__ = ["FIGURES", "Drawing", "Kind", "draw", "save"]


@dataclass(frozen=True)
class Kind:
    """How a figure is made, what it shows, and the sweep that makes its runs."""

    make: Callable[..., list[Drawing]]
    help: str
    sweep: str
    reads: bool = False  # tables beside the results, of which some may be damaged


FIGURES: dict[str, Kind] = {
    "accuracy": Kind(accuracy.after_each_task, "accuracy after each task", "paper-table-1"),
    "front": Kind(
        accuracy.learning_against_remembering, "A_1 against A_∞ and the front", "paper-table-1"
    ),
    "differences": Kind(
        differences.from_reference, "every row minus one, seed by seed", "paper-table-1"
    ),
    "matrix": Kind(accuracy.heat_maps, "accuracy matrix of each row", "paper-table-1"),
    "influence-counts": Kind(
        influence.counts, "examples that help and hurt, per task", "paper-statistics", True
    ),
    "influence-histogram": Kind(
        influence.histograms, "influences in five groups", "paper-statistics", True
    ),
}


def draw(kind: Kind, groups: list[Group], **options: Any) -> list[Drawing]:
    """The drawings of one kind in our look; none where its runs are missing."""
    with mpl.rc_context(LOOK):
        return kind.make(groups, **options)

"""The figures of the reports that one run is enough for."""

from collections.abc import Mapping
from typing import Any

from metasp.reports.figures import FIGURES, draw
from metasp.reports.groups import group
from metasp.reports.runs import record_of
from metasp.store import RunDir

TOLD_OTHERWISE = ("matrix",)  # of each scenario, see numbers.heat_map


def pictures_of(run: RunDir, result: Mapping[str, Any]) -> dict[str, Any]:
    """Each figure by its name in `metasp figures`; those that compare runs draw nothing here."""
    groups = group([record_of(run.path, result)])
    return {
        name: drawing.figure
        for name, kind in FIGURES.items()
        if name not in TOLD_OTHERWISE
        for drawing in draw(kind, groups)
    }

"""The figures. FIGURES is a dictionary you can read: what draws each, and of which runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metasp.lazy import lazily, load
from metasp.reports.groups import Group

if TYPE_CHECKING:
    from metasp.reports.figures.style import Drawing, save

__getattr__ = lazily(__name__, {"Drawing": "style", "save": "style"})

__all__ = ["ALONG", "FIGURES", "Drawing", "Kind", "draw", "save"]


@dataclass(frozen=True)
class Kind:
    """How a figure is made, what it shows, and which runs it takes."""

    of: str  # "module:function", which is loaded when it first draws
    help: str
    reads: bool = False  # tables beside the results, of which some may be damaged
    needs: str = ""  # what its runs must be, where not all will do

    @property
    def make(self) -> "Callable[..., list[Drawing]]":
        found: Callable[..., list[Drawing]] = load(self.of)
        return found


HERE = __name__
RECORDED = "it takes runs that record influence, such as those of metasp"
FIGURES: dict[str, Kind] = {
    "accuracy": Kind(f"{HERE}.accuracy:after_each_task", "accuracy after each task"),
    "front": Kind(f"{HERE}.accuracy:learning_against_remembering", "A_1 against A_∞ and the front"),
    "differences": Kind(f"{HERE}.differences:from_reference", "every row minus one, seed by seed"),
    "matrix": Kind(f"{HERE}.accuracy:heat_maps", "accuracy matrix of each row"),
    "influence-counts": Kind(
        f"{HERE}.examples:counts", "examples that help and hurt, per task", True, RECORDED
    ),
    "influence-histogram": Kind(
        f"{HERE}.examples:histograms", "influences in five groups", True, RECORDED
    ),
    "doubt": Kind(
        f"{HERE}.examples:through_time",
        "share of new examples whose label a method doubts, through time",
        True,
        "it takes runs of a method that judges labels, such as metasp-robust",
    ),
}


ALONG = Kind(f"{HERE}.accuracy:along", "scores against a field")
"""What `--by` draws, of groups with a field."""


def draw(kind: Kind, groups: list[Group], **options: Any) -> "list[Drawing]":
    """The drawings of one kind in our look; none where its runs are missing."""
    import matplotlib as mpl

    from metasp.reports.figures.style import LOOK

    with mpl.rc_context(LOOK):
        return kind.make(groups, **options)

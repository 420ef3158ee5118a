"""The influence explorer: one self-contained page that shows the examples of a run, which of them
help it remember or learn, and what its memory kept."""

from metasp.reports.explorer.html import Built, Place, build_page, page_of
from metasp.reports.explorer.pictures import Examples, Material, Missing, Texts
from metasp.reports.explorer.records import Kept, recorded

__all__ = [
    "Built",
    "Examples",
    "Kept",
    "Material",
    "Missing",
    "Place",
    "Texts",
    "build_page",
    "page_of",
    "recorded",
]

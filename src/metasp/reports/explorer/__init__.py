"""The influence explorer: one self-contained page that shows the examples of a run, which of them
help it remember or learn, and what its memory kept."""

from metasp.reports.explorer.html import Built, build_page
from metasp.reports.explorer.pictures import Examples, Material, Missing

__all__ = ["Built", "Examples", "Material", "Missing", "build_page"]

"""The documentation site: `make docs`."""

from importlib.metadata import version as installed

project = "metasp"
author = "the metasp authors"
release = installed("metasp")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["images"]
html_theme = "furo"
html_title = "metasp"
autodoc_typehints = "description"
autodoc_member_order = "bysource"

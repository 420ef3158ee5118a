"""One look for all figures: readable in print, told apart without colour, data beside."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metasp.errors import or_user_error
from metasp.store.files import write_atomic

# Okabe and Ito's palette without its yellow, which paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
LINES: tuple[Any, ...] = ("-", "--", ":", "-.")
HELPS, HURTS = COLOURS[0], COLOURS[1]
LOOK: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.markersize": 5,
    "lines.linewidth": 1.3,
    "svg.hashsalt": "metasp",
    "svg.fonttype": "none",
    "text.parse_math": False,  # names of data are text, whatever their dollars
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure, its name and the numbers it shows."""

    name: str
    figure: Figure
    data: Sequence[Mapping[str, Any]]


def canvas(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> tuple[Figure, Any]:
    """A figure with a grid of axes."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def line_look(number: int) -> dict[str, Any]:
    """Colour, marker and dash of the n-th line: no two of the first 28 look alike."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number // len(COLOURS) % len(LINES)],
    }


LEGEND_LINE, LEGEND_WIDTH = 0.155, 0.052  # inches: a line of the legend, a letter of it
TITLE_HEIGHT, PANELS_WIDTH = 0.7, 4.6


def legend_right(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, outside them; the figure grows with it, down and to the right."""
    handles, labels = axes.get_legend_handles_labels()
    width, height = figure.get_size_inches()
    room = LEGEND_WIDTH * max((len(label) for label in labels), default=0)
    needed = LEGEND_LINE * len(labels) + TITLE_HEIGHT
    figure.set_size_inches(max(width, PANELS_WIDTH + room), max(height, needed))
    figure.legend(handles, labels, loc="outside right center")


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def save(drawing: Drawing, folder: Path) -> list[Path]:
    """NAME.png, NAME.svg and NAME.csv."""
    contents: dict[str, bytes] = {"csv": as_csv(drawing.data).encode()}
    with mpl.rc_context(LOOK):
        for form, about in (("png", {"Software": None}), ("svg", {"Date": None})):
            out = io.BytesIO()
            drawing.figure.savefig(out, format=form, dpi=200, metadata=about)
            contents[form] = out.getvalue()
    paths = []
    with or_user_error(f"cannot write to {folder}", "choose another --out."):
        folder.mkdir(parents=True, exist_ok=True)
        for form in ("png", "svg", "csv"):
            paths.append(folder / f"{drawing.name}.{form}")
            write_atomic(paths[-1], contents[form])
    return paths


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()

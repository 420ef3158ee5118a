"""What a table is, whoever draws it: titled rows of cells, notes, and the numbers behind them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BETTER, WORSE = "●", "○"


@dataclass(frozen=True)
class Cell:
    """What one place of a table says; `mark` follows the text."""

    text: str
    bold: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """`data` holds the same as plain values, one mapping per number or row, for CSV and JSON."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    data: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = field(default=())


def plus_minus(mean: float | None, std: float | None, digits: int = 2) -> str:
    if mean is None:
        return "–"
    tail = f" ± {std:.{digits}f}" if std is not None else ""
    return f"{mean:.{digits}f}{tail}"

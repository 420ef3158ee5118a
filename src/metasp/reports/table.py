"""What a table is, whoever draws it: titled rows of cells, notes, and the numbers behind them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BETTER, WORSE = "●", "○"


@dataclass(frozen=True)
class Cell:
    """What one place of a table says; a `mark` follows the text, and so does a `footnote`, the sign
    of a note below the table."""

    text: str
    bold: bool = False
    mark: str = ""
    footnote: str = ""

    @property
    def tail(self) -> str:
        """What follows the text; a footnote clings to it."""
        return self.footnote + (f" {self.mark}" if self.mark else "")


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
    return f"{mean:z.{digits}f}{tail}"


def signed(value: float, digits: int = 2) -> str:
    """`+1.20`, `-0.30`, and `0.00` for what is rounded to zero: it has no direction to show."""
    text = f"{value:+z.{digits}f}"
    return text if float(text) else text.removeprefix("+")


def p_text(p: float) -> str:
    """`.013`, or `<.001`."""
    if p < 0.001:
        return "<.001"
    return f"{p:.3f}".removeprefix("0")


def difference_text(difference: float, p: float | None, corrected: float | None) -> str:
    """`+1.20 (.013; .040)`: a difference, its p-value, and that after the correction."""
    text = signed(difference)
    if p is None:
        return text
    ps = [p_text(each) for each in (p, corrected) if each is not None]
    return f"{text} ({'; '.join(ps)})"

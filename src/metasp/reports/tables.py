"""A table of strings with the numbers behind them, in five formats."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from metasp.metrics import METRICS

TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "±": r"$\pm$",
    "●": r"$\bullet$",
    "○": r"$\circ$",
    "∞": r"$\infty$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "→": r"$\rightarrow$",
    "–": "--",
    "−": r"$-$",
}


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """`data` holds the same as plain values, one mapping per number or row, for CSV and JSON."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    data: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = field(default=())


def terminal(tables: Sequence[Table]) -> Text:
    """Return tables as columns of text."""
    text = Text()
    for table in tables:
        texts = [[one_line(cell.text) for cell in row] for row in table.rows]
        widths = [max(map(cell_len, column)) for column in zip(table.header, *texts)]
        text.append(f"{table.title}\n", "bold")
        text.append("".join(aligned(table.header, widths)) + "\n")
        text.append("─" * (sum(widths) + 2 * len(widths) - 2) + "\n")
        for row, cells in zip(table.rows, texts):
            for cell, column in zip(row, aligned(cells, widths)):
                text.append(column, "bold" if cell.bold else "")
            text.append("\n")
        text.append("".join(f"  {note}\n" for note in table.notes) + "\n")
    return text


def aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return cells as wide as their columns: the first to the left, the others to the right."""
    spaces = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths)]
    first, *others = zip(cells, spaces)
    return ["".join(first), *(f"  {space}{cell}" for cell, space in others)]


def one_line(text: str) -> str:
    return " ".join(text.split())


def markdown(tables: Sequence[Table]) -> str:
    """Return pipe tables, as GitHub and MkDocs read them."""
    lines = []
    for table in tables:
        rows = [[f"**{md(c.text)}**" if c.bold else md(c.text) for c in row] for row in table.rows]
        lines += [f"### {md(table.title)}", "", *pipe_table([md(n) for n in table.header], rows)]
        lines += ["", *(f"- {md(note)}" for note in table.notes), ""]
    return "\n".join(lines)


def pipe_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose cells are Markdown; columns after the first are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]


def md(text: str) -> str:
    """Return text as one line without markup."""
    return "".join(f"\\{sign}" if sign in "\\|*_`[<" else sign for sign in one_line(text))


def latex(tables: Sequence[Table]) -> str:
    """Return floats for a paper that uses booktabs."""
    import pandas as pd

    floats = ["% needs \\usepackage{booktabs}\n"]
    for table in tables:
        rows = [
            [rf"\textbf{{{tex(c.text)}}}" if c.bold else tex(c.text) for c in row]
            for row in table.rows
        ]
        shown = pd.DataFrame(rows, columns=[tex(name) for name in table.header])
        columns = "l" + "r" * (len(table.header) - 1)
        body = shown.to_latex(index=False, escape=False, column_format=columns)
        lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{tex(table.title)}.}}"]
        lines += [body.rstrip()]
        lines += [rf"\par\smallskip{{\footnotesize {tex(note)}}}" for note in table.notes]
        floats.append("\n".join([*lines, r"\end{table}", ""]))
    return "\n".join(floats)


def tex(text: str) -> str:
    """Return text in signs that every TeX can set."""
    for metric in METRICS.values():
        if text == metric.name:
            return metric.tex
    return "".join(TEX.get(sign, sign) for sign in one_line(text))


def as_csv(tables: Sequence[Table]) -> str:
    """Return one line per number (or row), with every column that any of the tables has."""
    import pandas as pd

    numbers = list(chain.from_iterable(table.data for table in tables))
    csv: str = pd.DataFrame(numbers, dtype=object).to_csv(index=False)
    return csv


def as_json(tables: Sequence[Table], **more: Any) -> str:
    shown = [
        {"title": table.title, "notes": list(table.notes), "rows": [dict(d) for d in table.data]}
        for table in tables
    ]
    return json.dumps({"tables": shown, **more}, indent=1, allow_nan=False, default=str)


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}


def plus_minus(mean: float | None, std: float | None, digits: int = 2) -> str:
    if mean is None:
        return "–"
    tail = f" ± {std:.{digits}f}" if std is not None else ""
    return f"{mean:z.{digits}f}{tail}"


def signed(value: float, digits: int = 2) -> str:
    """Return `+1.20`, `-0.30`, and `0.00` for what is rounded to zero: it has no direction."""
    text = f"{value:+z.{digits}f}"
    return text if float(text) else text.removeprefix("+")


def p_text(p: float) -> str:
    """Return `.013`, or `<.001`."""
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def difference_text(difference: float, p: float | None, corrected: float | None) -> str:
    """Return `+1.20 (.013; .040)`: a difference, its p-value, and that after the correction."""
    if p is None:
        return signed(difference)
    ps = [p_text(each) for each in (p, corrected) if each is not None]
    return f"{signed(difference)} ({'; '.join(ps)})"

"""A table of text with the numbers behind it, in five formats.

People read it on a terminal, in Markdown or in LaTeX; programs read its numbers as CSV or JSON."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from metasp.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"$<$", ">": r"$>$", "|": r"$|$", "±": r"$\pm$", "●": r"$\bullet$", "○": r"$\circ$",
    "∞": r"$\infty$", "×": r"$\times$", "·": r"$\cdot$", "→": r"$\rightarrow$", "–": "--",
    "−": r"$-$",
}  # fmt: skip
COLOURS = {"ours": "red", "others": "blue"}  # of the best of a kind, as in the paper's tables


@dataclass(frozen=True)
class Cell:
    """The text of a cell; `best_of` is "ours" or "others" for the best mean of these methods."""

    text: str
    bold: bool = False
    best_of: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells with notes below and cautions beside.

    `data` holds the same as plain values, one mapping for each number or row, for CSV and JSON."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    data: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def two_kinds(self) -> bool:
        """Return whether the table shows a best of ours and a best of the others."""
        kinds: set[str] = set()
        for row in self.rows:
            kinds.update(cell.best_of for cell in row)
        return kinds.issuperset(COLOURS)


def of_frame(title: str, frame: "pd.DataFrame") -> Table:
    """Return a data frame as a table, floats with two digits and `–` for no value."""
    frame = frame.astype(object).where(frame.notna(), None)
    rows, data = [], []
    for values in frame.to_dict("records"):
        cells = []
        for value in values.values():
            shown = f"{value:z.2f}" if isinstance(value, float) else str(value)
            cells.append(Cell("–" if value is None else shown))
        rows.append(tuple(cells))
        data.append({str(name): value for name, value in values.items()})
    return Table(title, tuple(map(str, frame.columns)), tuple(rows), tuple(data))


def terminal(tables: Sequence[Table]) -> Text:
    """Return tables as columns of text, the first aligned to the left."""
    text = Text()
    for table in tables:
        header = Cell(table.header[0]), *map(Cell, table.header[1:])
        lines = [header, *table.rows]
        widths = [0] * len(header)
        for line in lines:
            for index, cell in enumerate(line):
                widths[index] = max(widths[index], cell_len(one_line(cell.text)))
        text.append(f"{table.title}\n", "bold")
        for line in lines:
            for index, cell in enumerate(line):
                content = one_line(cell.text)
                space = " " * (widths[index] - cell_len(content))
                shown = f"  {space}{content}" if index else content + space
                text.append(shown, "bold" if cell.bold else "")
            text.append("\n")
            if line is header:
                text.append("─" * (sum(widths) + 2 * len(widths) - 2) + "\n")
        for note in (*table.notes, *table.cautions):
            text.append(f"  {note}\n")
        text.append("\n")
    return text


def one_line(text: str) -> str:
    """Return text without line breaks and repeated spaces."""
    return " ".join(text.split())


def markdown(tables: Sequence[Table]) -> str:
    """Return pipe tables, as GitHub and Sphinx read them, the best of each kind in colour."""
    lines = []
    for table in tables:
        rows = formatted(table, md, "**{}**", '<span style="color:{}">{}</span>')
        lines += [f"### {md(table.title)}", "", *pipe_table([*map(md, table.header)], rows), ""]
        lines += [f"- {md(note)}" for note in all_notes(table)]
        lines += [f"\n> {md(caution)}" for caution in table.cautions]
        lines.append("")
    return "\n".join(lines)


def formatted(
    table: Table, escape: Callable[[str], str], bold: str, colour: str
) -> list[list[str]]:
    """Return the cells of a table in a markup, the best of each kind in colour."""
    rows = []
    for row in table.rows:
        cells = []
        for cell in row:
            text = escape(cell.text)
            text = bold.format(text) if cell.bold else text
            if cell.best_of and table.two_kinds:
                text = colour.format(COLOURS[cell.best_of], text)
            cells.append(text)
        rows.append(cells)
    return rows


def all_notes(table: Table) -> tuple[str, ...]:
    """Return the notes of a table in colours, with what these mean."""
    if not table.two_kinds:
        return table.notes
    return (*table.notes, "red: best of the MetaSP methods; blue: best of the others.")


def pipe_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose cells are Markdown; columns after the first are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]


def md(text: str) -> str:
    """Return text as one line without markup."""
    return re.sub(r"([\\|*_`\[<])", r"\\\1", one_line(text))


def latex(tables: Sequence[Table]) -> str:
    """Return floats for a paper, with a label each; cautions stand behind their float."""
    import pandas as pd

    packages = "booktabs}, \\usepackage{xcolor" if any(t.two_kinds for t in tables) else "booktabs"
    floats = [f"% needs \\usepackage{{{packages}}}\n"]
    for table in tables:
        rows = formatted(table, tex, r"\textbf{{{}}}", r"\textcolor{{{}}}{{{}}}")
        shown = pd.DataFrame(rows, columns=[tex(name) for name in table.header])
        columns = "l" + "r" * (len(table.header) - 1)
        body = shown.to_latex(index=False, escape=False, column_format=columns)
        label = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")
        lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{tex(table.title)}.}}"]
        lines += [rf"\label{{tab:{label}}}", body.rstrip()]
        lines += [rf"\par\smallskip{{\footnotesize {tex(note)}}}" for note in all_notes(table)]
        lines += [r"\end{table}", *(rf"\noindent {tex(text)}" for text in table.cautions), ""]
        floats.append("\n".join(lines))
    return "\n".join(floats)


def tex(text: str) -> str:
    """Return text in characters that every TeX can set."""
    for metric in METRICS.values():
        if text == metric.name:
            return metric.tex
    return "".join(TEX.get(character, character) for character in one_line(text))


def as_csv(tables: Sequence[Table]) -> str:
    """Return one line for each number or row, with every column that any of the tables has."""
    import pandas as pd

    numbers: list[Mapping[str, Any]] = []
    for table in tables:
        numbers += map(rounded, table.data)
    csv: str = pd.DataFrame(numbers, dtype=object).to_csv(index=False)
    return csv


def as_json(tables: Sequence[Table], **more: Any) -> str:
    """Return title, notes, cautions and numbers of each table, and further values."""
    shown = []
    for table in tables:
        numbers = [rounded(number) for number in table.data]
        notes = {"notes": list(table.notes), "cautions": list(table.cautions)}
        shown.append({"title": table.title, **notes, "rows": numbers})
    return json.dumps({"tables": shown, **more}, indent=1, allow_nan=False, default=str)


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with floats at six digits: accuracies are stored from single precision."""
    return {
        key: float(f"{value:.6g}") if isinstance(value, float) else value
        for key, value in values.items()
    }


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}


def plus_minus(mean: float | None, std: float | None, digits: int = 2) -> str:
    """Return `61.20 ± 1.05`; `–` for no mean."""
    if mean is None:
        return "–"
    spread = f" ± {std:.{digits}f}" if std is not None else ""
    return f"{mean:z.{digits}f}{spread}"


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
    shown = p_text(p) if corrected is None else f"{p_text(p)}; {p_text(corrected)}"
    return f"{signed(difference)} ({shown})"

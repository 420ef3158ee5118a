"""A table for the terminal, Markdown, LaTeX, CSV or JSON."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType

from metasp.metrics import METRICS
from metasp.reports.fitting import Fitted, said
from metasp.reports.table import Table

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
    **{sign: f"$^{number}$" for number, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}


def terminal(tables: Sequence[Table]) -> RenderableType:
    """For a person at a terminal."""
    return Group(*(Fitted(table) for table in tables))


def markdown(tables: Sequence[Table]) -> str:
    """Pipe tables, as GitHub and MkDocs read them."""
    lines = []
    for table in tables:
        lines += [f"### {md(table.title)}", "", pipes([md(name) for name in table.header])]
        lines.append(pipes(["---", *["---:"] * (len(table.header) - 1)]))
        for row in table.rows:
            lines.append(pipes([f"**{md(said(c))}**" if c.bold else md(said(c)) for c in row]))
        lines += ["", *(f"- {md(note)}" for note in table.notes), ""]
    return "\n".join(lines)


def pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def md(text: str) -> str:
    """Text that is one line and no markup."""
    return "".join(f"\\{sign}" if sign in "\\|*_`[<" else sign for sign in " ".join(text.split()))


def latex(tables: Sequence[Table]) -> str:
    """Floats for a paper that uses booktabs."""
    parts = ["% needs \\usepackage{booktabs}"]
    for table in tables:
        lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{tex(table.title)}.}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", r"\toprule"]
        lines += [" & ".join(tex(name) for name in table.header) + r" \\", r"\midrule"]
        for row in table.rows:
            cells = [rf"\textbf{{{tex(c.text)}}}" if c.bold else tex(c.text) for c in row]
            tails = [tex_signs(c.tail) for c in row]
            lines.append(" & ".join(a + b for a, b in zip(cells, tails)) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip{{\footnotesize {tex(note)}}}" for note in table.notes]
        parts.append("\n".join([*lines, r"\end{table}"]))
    return "\n\n".join(parts) + "\n"


def tex(text: str) -> str:
    for metric in METRICS.values():
        if text == metric.name:
            return metric.tex
    return tex_signs(" ".join(text.split()))


def tex_signs(text: str) -> str:
    return "".join(TEX.get(sign, sign) for sign in text)


def as_csv(tables: Sequence[Table]) -> str:
    """One line per number (or row), with every column that any of the tables has."""
    names = list(dict.fromkeys(key for table in tables for entry in table.data for key in entry))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for table in tables:
        writer.writerows(table.data)
    return out.getvalue()


def as_json(tables: Sequence[Table], **more: Any) -> str:
    entries = [
        {"title": table.title, "notes": list(table.notes), "rows": [dict(d) for d in table.data]}
        for table in tables
    ]
    return json.dumps({"tables": entries, **more}, indent=1, allow_nan=False, default=str)


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}

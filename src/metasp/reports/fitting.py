"""A table on a terminal of any width: words stay whole, and columns that have no room come in a
second table below."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from metasp.reports.table import Cell, Table

BORDER = 3  # columns of the screen that a column of a table takes beside its text
BOLD = Style(bold=True)
NARROWEST = 12  # what the names of rows are given at least


@dataclass(frozen=True)
class Fitted:
    """A table that asks how wide the terminal is when it is drawn."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        room = options.max_width - 1
        widths = [column_width(table, number) for number in range(len(table.header))]
        whole = [max(width, width_of(name)) for width, name in zip(widths, table.header)]
        widths = whole if sum(whole) + BORDER * len(whole) <= room else widths
        parts = list(chunks(widths, names_width(table, widths[0], room), room))
        for number, (columns, first) in enumerate(parts):
            more = f" ({number + 1} of {len(parts)})" if len(parts) > 1 else ""
            yield Text(f"{table.title}{more}", style="bold")
            yield Drawn(table, columns, [first, *(widths[column] for column in columns[1:])])
        yield from (Padding(Text(note), (0, 0, 0, 2), expand=False) for note in table.notes)
        yield Text("")


def width_of(text: str) -> int:
    """How many columns of the screen a text takes. Rich counts letter by letter, which only those
    beyond Latin need."""
    latin = text.isprintable() and max(text, default="") < "\u0300"
    return len(text) if latin else cell_len(text)


def said(cell: Cell) -> str:
    return cell.text + cell.tail


def column_width(table: Table, number: int) -> int:
    """The width that a column takes if no cell of it is wrapped; its name may be."""
    cells = [width_of(said(row[number])) for row in table.rows]
    name = table.header[number]
    return max([*cells, longest_word(name) if number else width_of(name), 1])


def longest_word(text: str) -> int:
    return max((width_of(word) for word in text.split()), default=0)


def names_width(table: Table, whole: int, room: int) -> int:
    """What the first column, the names of the rows, takes at least: its longest word."""
    words = [longest_word(said(row[0])) for row in table.rows]
    needed = max([*words, longest_word(table.header[0]), min(NARROWEST, whole)])
    return min(needed, room - BORDER)


def chunks(widths: Sequence[int], narrowest: int, room: int) -> Iterator[tuple[list[int], int]]:
    """Which columns stand side by side, the first in every part, and how wide it is there."""
    whole = widths[0]
    if len(widths) == 1:
        yield [0], min(whole, room - BORDER)
        return
    left = list(range(1, len(widths)))
    while left:
        free = room - 1 - narrowest - BORDER
        taken: list[int] = []
        while left and (not taken or widths[left[0]] + BORDER <= free):
            free -= widths[left[0]] + BORDER
            taken.append(left.pop(0))
        yield [0, *taken], min(whole, narrowest + max(0, free))


@dataclass(frozen=True)
class Drawn:
    """Some columns of a table as rich draws them. It takes a minute for ten thousand rows, so its
    part is what stands above and below them, and the rows whose words need several lines."""

    table: Table
    columns: Sequence[int]
    widths: Sequence[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        *above, below = self.by_rich(console, options, [], header=True)
        edges = HEAVY_HEAD.substitute(options, safe=console.safe_box)
        yield from chain.from_iterable(above)
        for row in self.table.rows:
            cells = [row[column] for column in self.columns]
            if all(map(fits, cells, self.widths)):
                yield from self.line(cells, edges)
            else:
                lines = self.by_rich(console, options, cells, header=False)[1:-1]
                yield from chain.from_iterable(lines)
        yield from below

    def by_rich(
        self, console: Console, options: ConsoleOptions, row: Sequence[Cell], header: bool
    ) -> list[list[Segment]]:
        """The lines of a table with one row or none, each with its end."""
        found = RichTable(show_header=header)
        for column, width in zip(self.columns, self.widths):
            name, side = self.table.header[column], "right" if column else "left"
            found.add_column(name, justify=side, width=width)  # type: ignore[arg-type]
        if row:
            found.add_row(*(Text(said(cell), style="bold" if cell.bold else "") for cell in row))
        return console.render_lines(found, options, pad=False, new_lines=True)

    def line(self, cells: Sequence[Cell], edges: Box) -> Iterator[Segment]:
        """A row whose cells fit."""
        before = edges.mid_left
        for place, (cell, width) in enumerate(zip(cells, self.widths)):
            text = said(cell)
            room = " " * (width - width_of(text))
            padded = room + text if place else text + room
            if cell.bold:
                yield Segment(f"{before} ")
                yield Segment(padded, BOLD)
                before = f" {edges.mid_vertical}"
            else:
                before = f"{before} {padded} {edges.mid_vertical}"
        yield Segment(f"{before.removesuffix(edges.mid_vertical)}{edges.mid_right}\n")


def fits(cell: Cell, width: int) -> bool:
    """Whether a cell is one line as it stands."""
    text = said(cell)
    return width_of(text) <= width and text.isprintable() and text == text.strip()

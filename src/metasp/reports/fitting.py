"""A table on a terminal of any width: words stay whole, and columns that have no room come in a
second table below."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from metasp.reports.table import Cell, Table

BORDER = 3  # columns of the screen that a column of a table takes beside its text
NARROWEST = 12  # what the names of rows are given at least


@dataclass(frozen=True)
class Fitted:
    """A table that asks how wide the terminal is when it is drawn."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        room = options.max_width - 1
        widths = [column_width(table, number) for number in range(len(table.header))]
        whole = [max(width, cell_len(name)) for width, name in zip(widths, table.header)]
        widths = whole if sum(whole) + BORDER * len(whole) <= room else widths
        parts = list(chunks(widths, names_width(table, widths[0], room), room))
        for number, (columns, first) in enumerate(parts):
            more = f" ({number + 1} of {len(parts)})" if len(parts) > 1 else ""
            yield Text(f"{table.title}{more}", style="bold")
            yield drawn(table, columns, [first, *(widths[column] for column in columns[1:])])
        yield from (Padding(Text(note), (0, 0, 0, 2), expand=False) for note in table.notes)
        yield Text("")


def said(cell: Cell) -> str:
    return cell.text + cell.tail


def column_width(table: Table, number: int) -> int:
    """The width that a column takes if no cell of it is wrapped; its name may be."""
    cells = [cell_len(said(row[number])) for row in table.rows]
    name = table.header[number]
    return max([*cells, longest_word(name) if number else cell_len(name), 1])


def longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


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


def drawn(table: Table, columns: Sequence[int], widths: Sequence[int]) -> RichTable:
    found = RichTable()
    for column, width in zip(columns, widths):
        found.add_column(table.header[column], justify="right" if column else "left", width=width)
    for row in table.rows:
        cells = [row[column] for column in columns]
        found.add_row(*(Text(said(cell), style="bold" if cell.bold else "") for cell in cells))
    return found

"""What a person says of examples in a CSV file: leave it out, it is another class, it is right."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_cell(text: str) -> str:
    """A name as a cell of a CSV file: a spreadsheet takes a text that begins so for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def from_cell(cell: str) -> str:
    """The name that `as_cell` wrote."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell

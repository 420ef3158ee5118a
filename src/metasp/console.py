"""What goes to a terminal: text as it is, whatever signs a name holds."""

import os
from typing import Any

from rich.console import Console

from metasp.config import is_text

PIPED = 240  # columns, where no terminal says how many: a folded name cannot be searched for


def text_console(**how: Any) -> Console:
    """Return a console that takes names for what they are: `[red]` and `:bug:` are no markup."""
    console = Console(markup=False, emoji=False, highlight=False, **how)
    if not console.is_terminal and how.get("width") is None and "COLUMNS" not in os.environ:
        console.width = PIPED
    return console


def printable(text: str) -> str:
    """Return a message with the control characters that names in it may hold written out."""
    return "".join(
        sign if sign in "\n\t" or is_text(sign) else sign.encode("unicode_escape").decode()
        for sign in text
    )


def duration(seconds: float) -> str:
    """Return 1:02:03, 2:03 or 3 s."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

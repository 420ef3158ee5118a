"""What goes to the terminal: text as it is, and commands that can be typed again."""

import os
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from metasp.spec import is_text

PIPED = 240  # columns, where no terminal says how many: a folded name cannot be searched for


def text_console(**how: Any) -> Console:
    """A console that takes names for what they are: `[red]` and `:bug:` are no markup."""
    console = Console(markup=False, emoji=False, highlight=False, **how)
    if not console.is_terminal and how.get("width") is None and "COLUMNS" not in os.environ:
        console.width = PIPED
    return console


def printable(text: str) -> str:
    """A message with the control characters that names in it may hold written out."""
    return "".join(
        sign if sign in "\n\t" or is_text(sign) else sign.encode("unicode_escape").decode()
        for sign in text
    )


def typed(name: str) -> bool:
    """Whether an option of the present command was typed."""
    return source_of(name) is ParameterSource.COMMANDLINE


def typed_again(*names: str) -> list[str]:
    """Those of the options of the present command that were given, to be given once more."""
    context, words = click.get_current_context(), []
    for option in context.command.params:
        name = option.name or ""
        if not isinstance(option, click.Option) or name not in names:
            continue
        if source_of(name) is ParameterSource.DEFAULT:
            continue
        for value in context.params[name] if option.multiple else [context.params[name]]:
            words += [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]
    return words


def source_of(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)

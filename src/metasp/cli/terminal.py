"""What was typed, and commands that can be typed again."""

import click
from click.core import ParameterSource


def typed(name: str) -> bool:
    """Return whether an option of the present command was typed."""
    return source_of(name) is ParameterSource.COMMANDLINE


def typed_again(*names: str) -> list[str]:
    """Return those of the options of the present command that were given, and all imports, to be
    given once more."""
    from metasp.plugins import IMPORTED

    context, arguments = click.get_current_context(), list[str]()
    for file in IMPORTED:
        arguments += ["--import", file]
    for option in context.command.params:
        name = option.name or ""
        if not isinstance(option, click.Option) or name not in names or not option.expose_value:
            continue
        if source_of(name) is ParameterSource.DEFAULT:
            continue
        for value in context.params[name] if option.multiple else [context.params[name]]:
            arguments += [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]
    return arguments


def source_of(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)

"""python -m reproduce NAME: a sweep of the paper by its name, or one of the commands below."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from metasp.cli import main as run_command
from metasp.errors import unknown
from metasp.sweeps.grid import PRESETS, presets
from reproduce.claim import command as claim
from reproduce.influence_check import command as influence_check
from reproduce.show import figures, report


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Repeat what the paper did. The name of a sweep, such as table-1-small, runs that sweep and
    takes the options of `metasp sweep`."""


for command in (influence_check, report, figures, claim):
    app.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a sweep by its name, with or without `paper-` in front, or a command of this package."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else ""
    short = [preset.removeprefix("paper-") for preset in presets()]
    if name.removeprefix("paper-") in short:
        files = (Path(PRESETS) / f"{prefix}{name}.toml" for prefix in ("", "paper-"))
        file = next(file for file in files if file.is_file())
        run_command(["sweep", str(file), *given[1:]])
    if name and name not in app.commands and not name.startswith("-"):
        run_command(given, refuse(name, [*app.commands, *short]))
    run_command(given, app, "python -m reproduce")


def refuse(name: str, known: Sequence[str]) -> click.Command:
    """Give a command that names what is nearest to a name that nothing has."""

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("rest", nargs=-1)
    def command(rest: Sequence[str]) -> None:
        raise unknown("command or sweep", name, known)

    return command


if __name__ == "__main__":
    main()

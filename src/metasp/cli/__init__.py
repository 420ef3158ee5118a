"""The command line: one file per command, loaded only when it is called."""

import io
import os
import re
import sys
from collections.abc import Sequence

import click

from metasp import __version__
from metasp.errors import UserError
from metasp.lazy import load

COMMANDS = {
    "run": "Train on a stream of tasks and store the run.",
    "resume": "Continue a run that was stopped.",
    "sweep": "Run a grid of specs, here or on a Ray cluster.",
    "report": "Tables of stored runs: mean ± std and tests.",
    "figures": "Figures of stored runs, each with its data.",
    "explore": "Look at the examples of a run, and what became of them, in the browser.",
    "list": "List methods, benchmarks, backbones, selections or runs.",
    "memory": "List what a run's memory holds, or make it forget examples.",
    "suspects": "List the examples most likely mislabelled.",
    "why": "Which examples of a run raised or lowered its final losses.",
    "what-if": "Make a run again without some of its examples.",
    "compare": "What changed from one run to another on the same data.",
}
PLACES = {"run": "run:run", "resume": "run:resume", "report": "report:report",
          "figures": "report:figures"}  # fmt: skip
NO_ROOM = re.compile(r"(can't|cannot|not enough|out of) (allocate )?memory", re.IGNORECASE)


class Lazy(click.Group):
    """A group whose commands are imported on first use, so that help is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # `list` is a command here, once that is imported

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        target = PLACES.get(name, f"{name.replace('-', '_')}:command")
        command: click.Command = load(f"metasp.cli.{target}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from metasp.errors import unknown

            raise unknown("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="metasp")
def app() -> None:
    """Continual learning with example influence: which examples help a model remember, which
    help it learn, and what its memory should keep."""


def main(
    arguments: Sequence[str] | None = None, group: click.Command = app, name: str = "metasp"
) -> None:
    """Run a command; a user's mistake is one sentence and exit code 2."""
    # Threads that wait for work by spinning would stop a busy machine; read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Python has none where the shell closed it (>&-).
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # one that cannot say ∞ says \u221e
            stream.reconfigure(errors="backslashreplace")
    try:
        code = group.main(args=arguments, prog_name=name, standalone_mode=False)
    except UserError as error:
        sys.exit(fail(str(error)))
    except click.exceptions.NoArgsIsHelpError as error:
        sys.exit(fail(f"no command given.\n{error.format_message()}"))
    except click.UsageError as error:
        message = error.format_message()
        if isinstance(error, click.NoSuchOption):
            message = setting_hint(error.option_name) or message
        takes = {part.name for part in error.ctx.command.params} if error.ctx else set()
        if "unexpected extra argument" in message and takes & {"run", "file"}:
            message += ". Where a * found several runs, name one of them"
        sys.exit(fail(f"{message}{'' if message.endswith(('.', '?')) else '.'} {hint(error)}"))
    except click.ClickException as error:
        sys.exit(fail(error.format_message()))
    except click.Abort:
        sys.exit(fail("stopped.", 130))
    except OSError as error:  # a disk, folder or file that is not as it should be
        what = f"cannot use {error.filename}" if error.filename else "the system refused"
        sys.exit(fail(f"{what}: {error.strerror or error}; fix that, or choose another place."))
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not NO_ROOM.search(str(error)):
            raise
        sys.exit(fail("this machine has too little memory for this: choose a smaller width, "
                      "batch_size or image_size. What was stored is intact."))  # fmt: skip
    sys.exit(code if isinstance(code, int) else 0)


def setting_hint(option: str) -> str:
    """Return how a setting of a method is given, where somebody gave it as an option."""
    from metasp.methods import METHODS

    name = option.lstrip("-").removeprefix("no-").replace("-", "_")
    owners = [method for method, recipe in METHODS.items() if name in recipe.settings]
    if not owners:
        return ""
    return f"{name} is a setting of method {', '.join(owners)}: give --set {name}=VALUE"


def hint(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "metasp"
    return f"See `{path} --help`."


def fail(message: str, code: int = 2) -> int:
    from metasp.console import printable  # rich comes with it: not for a mere --help

    print(f"metasp: {printable(message)}", file=sys.stderr)
    return code

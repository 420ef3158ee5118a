"""Write docs/cli.md from the commands' own help: `python docs/make_cli.py`."""

from pathlib import Path

import click

from metasp.cli import COMMANDS, app

ABOUT = (
    "The help of every command, written by `docs/make_cli.py`. `metasp list methods NAME`",
    "prints the settings of a method, which `metasp run --set NAME=VALUE` changes.",
)


def reference() -> str:
    """The help of every command, as one page."""
    parts = ["# Command line", "", *ABOUT, ""]
    settings = {"terminal_width": 88, **app.context_settings}
    root = click.Context(app, info_name="metasp", **settings)
    for name in COMMANDS:
        command = app.get_command(root, name)
        context = click.Context(command, info_name=name, parent=root, terminal_width=88)
        parts += [f"## metasp {name}", "", "```text", command.get_help(context).rstrip(), "```", ""]
        for part, inner in getattr(command, "commands", {}).items():
            below = click.Context(inner, info_name=part, parent=context, terminal_width=88)
            parts += [f"### metasp {name} {part}", "", "```text", inner.get_help(below).rstrip()]
            parts += ["```", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(reference(), encoding="utf-8")

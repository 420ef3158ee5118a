"""The written pages: their fences, and the commands that they show."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
from reproduce.__main__ import app as reproduced

from metasp.cli import COMMANDS, app
from metasp.methods import BEST, METHODS
from metasp.sweeps.grid import presets
from tests.helpers import ROOT

FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PLACEHOLDER = re.compile(r"[A-Z_]+|.*…")


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, the file it stands for if it has a title, its text and line."""

    kind: str
    title: str | None
    text: str
    line: int

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, or those behind a prompt of a console block."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.kind == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


@dataclass(frozen=True)
class Page:
    """One Markdown file, named by its path without `docs/` and the ending."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT).with_suffix("")).removeprefix("docs/")

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def blocks(self) -> list[Block]:
        found = []
        for match in FENCE.finditer(self.text):
            kind, about, text = match.groups()
            title = TITLE.search(about)
            line = self.text.count("\n", 0, match.start()) + 1
            found.append(Block(kind, title and title.group(1), text, line))
        return found

    @property
    def prose(self) -> str:
        """The page without its fences."""
        return FENCE.sub("", self.text)

    @property
    def inline(self) -> list[str]:
        """What stands between backticks in running text."""
        return [" ".join(found.split()) for found in INLINE.findall(self.prose)]

    @property
    def links(self) -> list[str]:
        """Links to other files, without their anchors."""
        targets = re.findall(r"\]\(([^)\s]+)\)", self.prose)
        return [t.split("#")[0] for t in targets if "://" not in t and not t.startswith("#")]


def pages() -> list[Page]:
    """Every page there is: a new one is found by itself."""
    own = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [Page(path) for path in own + sorted((ROOT / "docs").rglob("*.md"))]


def words_of(command: str) -> list[str]:
    """A command as words, its redirection left out."""
    words = shlex.split(command, comments=True)
    return words[: words.index(">")] if ">" in words else words


def simple_commands(text: str) -> Iterator[list[str]]:
    """The words of each command of `a && b`."""
    for part in text.split("&&"):
        yield words_of(part)


def parse(words: list[str], complete: bool) -> None:
    """Let the command line itself read `metasp …` without running it; a mistake is a
    click.UsageError. What is not `complete` may leave out arguments and use placeholders
    (RUN, N, …) for values."""
    command: click.Command = app
    if "--import" in words:  # the file is the reader's, and so are the names that it adds
        assert {word for word in words if word.startswith("--")} <= every_flag()
        return
    context, rest = click.Context(app, info_name="metasp", **app.context_settings), words[1:]
    try:
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            name = rest[0]
            inner = command.get_command(context, name)
            if inner is None:
                raise click.UsageError(f"there is no command {name}")
            command, rest = inner, rest[1:]
            context = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            command.make_parser(context).parse_args(list(rest))
            return
        values = command.make_context(context.info_name, list(rest), parent=context.parent).params
    except click.exceptions.Exit:  # --help
        return
    except click.BadParameter as error:
        open_ = isinstance(error, click.MissingParameter) or any(
            PLACEHOLDER.fullmatch(word) for word in rest
        )
        if complete or not open_:
            raise
        return
    check_names(command, values)


def check_names(command: click.Command, values: dict[str, object]) -> None:
    """A named method, sweep, or what to list or measure must exist."""
    method, sweep, what = (values.get(key) for key in ("method", "sweep", "what"))
    if method and method not in (*METHODS, BEST):
        raise click.UsageError(f"there is no method {method}")
    known = re.findall(r"\w+", command.help or "")
    if what and not set(str(what).split("|")) <= set(known):
        raise click.UsageError(f"there is no {what}")
    if sweep and not (sweep in presets() or sweep in shown_files() or (ROOT / str(sweep)).exists()):
        raise click.UsageError(f"there is no sweep {sweep}")


@cache
def every_flag() -> set[str]:
    """All flags of all commands."""
    root = click.Context(app)
    commands = [app.get_command(root, name) for name in COMMANDS]
    commands += [c for group in commands for c in getattr(group, "commands", {}).values()]
    return {
        flag
        for command in commands
        for parameter in command.params
        for flag in [*parameter.opts, *parameter.secondary_opts, "--help"]
    }


@cache
def shown_files() -> set[str]:
    """Files that some page lets the reader write."""
    return {block.title for page in pages() for block in page.blocks if block.title}


def check_console(words: list[str]) -> None:
    """A command that is shown and not run: its program is known, and what it names exists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if words[0] == "metasp":
        parse(words, complete=False)
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), words
    elif words[:2] == ["pip", "install"]:
        extra = re.fullmatch(r"-e \.\[([a-z]+)\]", " ".join(words[2:]))
        assert extra, words
        assert extra.group(1) in project["optional-dependencies"], words
    elif words[:3] == ["python", "-m", "reproduce"]:
        command = reproduced.commands.get(words[3])
        assert command or f"paper-{words[3]}" in presets(), words
        if command:
            command.make_context(words[3], words[4:])
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    else:
        assert words[:2] == ["ray", "start"], words

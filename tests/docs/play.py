"""Play pages as a reader would: `python play.py` takes lines `PAGE FOLDER` and answers each with
the exit code.

Everything heavy is loaded once and each page, and each command of a page, is a fork of this one: a
process of its own that need not load PyTorch anew.
"""

import contextlib
import glob
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path

import click
import torch

import metasp
from metasp.cli import COMMANDS, app, main
from tests.docs.pages import Block, Page
from tests.helpers import ROOT

PROGRAMS = {"torchrun": ["-m", "torch.distributed.run"], "python": []}


def forked(act: Callable[[], object], out: int | None = None) -> int:
    """Do it in a child, which may write to the given file; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return child
    code = 1
    try:
        if out is not None:
            os.dup2(out, 1)
        act()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def play(page: Page) -> None:
    """All blocks of a page in their order."""
    names = {"__name__": "__main__"}
    for block in page.blocks:
        print(f"--- {page.name}, line {block.line}: {block.kind}", flush=True)
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            exec(compile(block.text, f"{page.name}:{block.line}", "exec"), names)
        elif block.kind == "diff":
            apply(block)
        elif block.kind == "sh":
            for command in block.commands:
                shell(command)


def apply(block: Block) -> None:
    """Insert each line marked + after the one above it, in the file that the first line names."""
    first, *lines = block.text.splitlines()
    file = Path(first.removeprefix("+++ "))
    text, above = file.read_text(encoding="utf-8"), ""
    for line in lines:
        if line.startswith("+"):
            assert text.count(above) == 1, f"{above!r} is not in {file} exactly once"
            text = text.replace(above, f"{above}{line[1:]}\n")
            above += f"{line[1:]}\n"
        else:
            above = f"{line[1:]}\n"
    file.write_text(text, encoding="utf-8")


def shell(command: str) -> None:
    """One command: `metasp` in a fork, other programs by their file. Patterns are filled in, and
    `> FILE` is a file."""
    print(f"$ {command}", flush=True)
    words = shlex.split(command, comments=True)
    target = None
    if ">" in words:
        words, target = words[: words.index(">")], words[words.index(">") + 1]
    words = [found for word in words for found in sorted(glob.glob(word)) or [word]]
    if words[0] != "metasp":
        subprocess.run([sys.executable, *PROGRAMS[words[0]], *words[1:]], check=True)
    elif "--serve" in words:
        serve(words[1:])
    else:
        with open(target or os.devnull, "w") as file:
            out = file.fileno() if target else None
            code = ended(forked(lambda: metasp_main(words[1:]), out))
        assert code == 0, f"{command}: exit code {code}"


def metasp_main(words: list[str]) -> None:
    source = Path("src/metasp").resolve()
    if source.is_dir():  # a page about the code itself: the code as that page has changed it
        environment = {**os.environ, "PYTHONPATH": str(source.parent)}
        command = [sys.executable, "-m", "metasp", *words]
        sys.exit(subprocess.run(command, env=environment).returncode)
    main(words)


def serve(words: list[str]) -> None:
    """Serve the page, ask for it as a browser would, and press Ctrl-C."""
    reading, writing = os.pipe()
    child = forked(lambda: metasp_main(words), writing)
    os.close(writing)
    with open(reading) as said:
        address = next(found for line in said if (found := re.search(r"http://\S+", line)))
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(address.group(), timeout=30) as answer:
            assert b"</html>" in answer.read()
        os.kill(child, signal.SIGINT)
    assert ended(child) == 0


def play_in(page: Page, folder: Path) -> None:
    with open(folder / "output.txt", "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(folder)
    play(page)


def load() -> None:
    """Import whatever a run and the commands import when they need it."""
    for name in COMMANDS:
        app.get_command(click.Context(app), name)
    with tempfile.TemporaryDirectory() as runs:
        metasp.run(method="metasp-rehsel", epochs=1, limit_per_class=5, threads=1, runs=runs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    load()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    for line in sys.stdin:
        name, folder = line.rstrip("\n").split("\t")
        code = ended(forked(lambda: play_in(Page(ROOT / name), Path(folder))))  # noqa: B023
        print(code, flush=True)

"""Draw docs/images/run.svg: the real output of `metasp run` in a real terminal."""

import io
import os
import pty
import sys
import tempfile
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console

COLUMNS, LINES = 110, 40


def in_terminal(command: list[str]) -> str:
    """What a command shows in a terminal, as it stands at the end."""
    pid, handle = pty.fork()
    if pid == 0:
        os.environ.update(COLUMNS=str(COLUMNS), LINES=str(LINES), TERM="xterm-256color")
        os.execvp(command[0], command)
    parts = []
    while True:
        try:
            parts.append(os.read(handle, 65536))
        except OSError:
            break
        if not parts[-1]:
            break
    os.waitpid(pid, 0)
    return b"".join(parts).decode()


def settled(text: str) -> list[str]:
    """The lines left on the screen once the progress bar has redrawn itself for the last time."""
    screen: list[str] = []
    row = 0
    for chunk in text.replace("\r\n", "\n").split("\n"):
        while "\x1b[1A" in chunk:  # one line up: the bar is drawn again
            chunk = chunk.split("\x1b[1A", 1)[1]
            row = max(0, row - 1)
        line = chunk.split("\r")[-1].replace("\x1b[2K", "")
        for code in ("\x1b[?25l", "\x1b[?25h"):
            line = line.replace(code, "")
        screen[row:] = [line]
        row += 1
    return screen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = in_terminal([sys.executable, "-m", "metasp", "run"])
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print("[bold]$ metasp run[/]")
    for line in AnsiDecoder().decode("\n".join(settled(text))):
        console.print(line)
    target = Path(__file__).resolve().parent / "images" / "run.svg"
    target.write_text(console.export_svg(title="metasp run"), encoding="utf-8")

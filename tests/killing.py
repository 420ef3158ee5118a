"""A process that forks runs and kills them: torch is imported once, every run is a process of its
own, and every kill is a real SIGKILL. Usage: python -m tests.killing FOLDER SEED METHOD..."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import metasp.cli.run  # noqa: F401  imported before the forks, which share it
from metasp.cli import main

FLAGS = ["--epochs", "2", "--limit-per-class", "24", "--memory", "40", "--threads", "1"]
# Some methods need a setting to fit a test's patience.
SHORT = {"gdumb": ["--memory-epochs", "4"], "hal": ["--anchor-steps", "5"]}


def spawn(arguments: list[str]) -> int:
    """Start the command line in a forked process, silent."""
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        code: object = 1
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code
        finally:
            os._exit(code if isinstance(code, int) else 1)
    return pid


def wait(pid: int, seconds: float) -> int | None:
    """The exit code, or None if it is still running after the given time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def run_only(folder: Path) -> Path:
    (run,) = [path for path in folder.iterdir() if path.is_dir()]
    return run


def disturb(folder: Path, arguments: list[str], length: float, dice: random.Random) -> int:
    """Run, killing at random moments, until it finishes; the number of kills."""
    kills = 0
    command = ["run", *arguments]
    while True:
        pid = spawn([*command, "--runs", str(folder)] if kills == 0 else command)
        # From the fifth kill on it is left in peace.
        code = wait(pid, dice.uniform(0, 0.7 * length) if kills < 4 else 120)
        if code is not None:
            if code:
                raise SystemExit(f"{command} ended with {code}")
            return kills
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
        stored = folder.exists() and [p for p in folder.iterdir() if (p / "spec.toml").exists()]
        if stored:
            command = ["resume", str(stored[0]), "--checkpoint-seconds", "0.01"]
        else:
            command = ["run", *arguments, "--runs", str(folder)]


def killed_and_whole(folder: Path, method: str, dice: random.Random) -> None:
    arguments = ["--method", method, *FLAGS, *SHORT.get(method, []), "--checkpoint-seconds", "0.01"]
    began = time.monotonic()
    if wait(spawn(["run", *arguments, "--runs", str(folder / method / "whole")]), 120) != 0:
        raise SystemExit(f"{method} failed undisturbed")
    length = time.monotonic() - began
    kills = disturb(folder / method / "killed", arguments, length, dice)
    print(f"{method} {kills}", flush=True)


if __name__ == "__main__":
    where, seed, *methods = sys.argv[1:]
    for name in methods:
        killed_and_whole(Path(where), name, random.Random(f"{seed}/{name}"))

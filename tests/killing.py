"""A process that forks runs and kills them with real SIGKILLs: what a run imports is imported once,
so that a fork trains at once and a kill can hit it anywhere. It prints one line for each kill:
method, task and kind of phase of the last step that was stored, or "nothing" if none was.
Usage: python -m tests.killing FOLDER SEED METHOD..."""

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import sklearn.datasets
import torch._dynamo  # noqa: F401  as every training imports it on its way

import metasp.cli.run  # noqa: F401
from metasp.cli import main
from metasp.methods import METHODS
from metasp.store.checkpoints import newest
from metasp.train.optimizers import OPTIMIZERS as KINDS
from tests.methods.factories import TELLING

FLAGS = ["--epochs", "3", "--limit-per-class", "10", "--batch-size", "8", "--memory", "30",
         "--memory-batch", "8", "--label-noise", "0.1",
         "--trusted", "1", "--threads", "1", "--checkpoint-seconds", "0"]  # fmt: skip
INFLUENCE = "+"  # between a method and the influence that is added to it
# A covering sample: every method has one optimizer, and every optimizer several methods.
MOMENTUM = ["--momentum", "0.9", "--lr", "0.02"]
OPTIMIZERS = [MOMENTUM, *(["--optimizer", name] for name in list(KINDS)[1:])]
OPTIMIZER = dict(zip(METHODS, itertools.cycle(OPTIMIZERS)))
STOPPED = ("er", "derpp", "metasp-rehsel", "icarl", "joint")  # at a rate that is too high
EACH = 2  # kills in each kind of phase
ROUNDS = 12  # runs that may be needed for it where the machine is busy


def spawn(arguments: list[str], said: Path | None = None) -> int:
    """Start the command line in a forked process, silent but for mistakes, which may be kept."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if said is not None:
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        code: object = 1
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code
        finally:
            os._exit(code if isinstance(code, int) else 1)
    return pid


def finish(pid: int, what: object) -> None:
    """Wait for the end of a process, which must be a good one."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise SystemExit(f"{what} ended with {code}")


def stored(runs: Path) -> Path | None:
    """The one run in a folder, if it has begun."""
    return next((path.parent for path in runs.glob("*/spec.toml")), None)


def checkpoints(runs: Path) -> int:
    """How many checkpoints were written so far: one after each step, and one after each task."""
    return max((int(path.stem) for path in runs.glob("*/checkpoint/*.safetensors")), default=0)


def command(runs: Path, arguments: list[str]) -> list[str]:
    run = stored(runs)
    if run is None:
        return ["run", *arguments, "--runs", str(runs)]
    return ["resume", str(run), "--checkpoint-seconds", "0"]


def kill(pid: int, runs: Path, aim: int, delay: float) -> bool:
    """SIGKILL a while after checkpoint `aim` was stored; whether it was still at work."""
    while checkpoints(runs) < aim and not over(pid):
        time.sleep(0.0005)
    time.sleep(delay)
    alive = not over(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return alive


def over(pid: int) -> bool:
    """Whether a process has ended; it stays to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def last_stored(runs: Path) -> tuple[int, str]:
    """Task and kind of phase of the last step that a run will not have to do again."""
    run = stored(runs)
    found = newest(run) if run else None
    if run is None or found is None:
        return 0, "nothing"
    log = (run / "events.jsonl").read_bytes()[: found.numbers["log"]]
    events = [json.loads(line) for line in log.splitlines()]
    step = [event for event in events if event["event"] == "StepTaken"][-1]
    return step["task"], step["kind"]


def aims(kinds: list[str], missing: dict[str, int], dice: random.Random) -> list[int]:
    """Checkpoints to kill after, ascending: in each kind of phase some, spread over all of it, and
    one anywhere, perhaps before the first."""
    chosen = {dice.randrange(len(kinds))}
    for kind, count in missing.items():
        places = [number for number, each in enumerate(kinds, 1) if each == kind]
        for part in range(count):
            share = places[part * len(places) // count : (part + 1) * len(places) // count]
            chosen.add(dice.choice(share))
    return sorted(chosen)


def kinds_of(runs: Path) -> list[str]:
    """The kind of phase that each checkpoint of a finished run was taken in."""
    run, kinds = stored(runs), list[str]()
    for line in (run / "events.jsonl").read_text().splitlines() if run else ():
        event = json.loads(line)
        if event["event"] == "StepTaken":
            kinds.append(event["kind"])
        elif event["event"] == "TaskFinished":
            kinds.append("end")
    return kinds


def arguments_of(method: str) -> list[str]:
    """The command line of a small run in which all that a method keeps across a stop has a say."""
    name, _, influence = method.partition(INFLUENCE)
    arguments = ["--method", name, *FLAGS, *OPTIMIZER.get(method, MOMENTUM)]
    if influence:
        arguments += ["--influence", influence]
        arguments += ["--set", "influence.shuffle_influence=true"]
    if influence == "metasp":
        arguments += ["--set", "influence.every=2", "--set", "influence.influence_last=2"]
    if name in STOPPED:
        arguments += ["--validation", "0.3", "--patience", "1", "--lr", "0.1"]
    if name == "joint":  # one phase that is long enough to wait in
        arguments += ["--epochs", "6", "--patience", "2"]
    for setting, value in TELLING.get(name, {}).items():
        arguments += ["--set", f"{setting}={value}"]
    if name == "er":
        arguments += ["--observe", "1"]
    if METHODS[name].kind.schedules():
        arguments += ["--rehearse-last", "2"]
    return arguments


def killed_and_whole(folder: Path, method: str, dice: random.Random) -> None:
    """One run in peace, and as many others as it takes to be killed in each kind of phase."""
    arguments = arguments_of(method)
    began = time.monotonic()
    finish(spawn(command(folder / "whole", arguments)), f"{method} undisturbed")
    kinds = kinds_of(folder / "whole")
    length = (time.monotonic() - began) / len(kinds)
    hits = Counter[str]()
    for number in range(ROUNDS):
        missing = {kind: EACH - hits[kind] for kind in set(kinds) - {"end"} if hits[kind] < EACH}
        if not missing:
            return
        runs = folder / f"killed-{number}"
        for aim in aims(kinds, missing, dice):
            pid = spawn(command(runs, arguments))
            # Each round that missed aims shorter: a phase may last for two steps only.
            if kill(pid, runs, aim, dice.uniform(0, 1.5 * length / (1 + number))):
                task, kind = last_stored(runs)
                hits[kind] += 1
                print(folder.name, task, kind, flush=True)
        finish(spawn(command(runs, arguments)), f"{method} after its kills")


def load_all() -> None:
    """What any run may load, before the first fork."""
    sklearn.datasets.load_digits()
    for recipe in METHODS.values():
        assert recipe.kind  # loads its module


if __name__ == "__main__":
    where, seed, *methods = sys.argv[1:]
    load_all()
    for name in methods:
        killed_and_whole(Path(where) / name, name, random.Random(f"{seed}/{name}"))

"""Break what a resumed run restores, one part at a time: does the test of kills notice each?

A checkpoint holds named arrays and the numbers of a position. For each of them, a run is killed in
every task and resumed by a metasp that takes this one from the start of the run instead; what it
stores is then compared with the run that was left in peace, as tests/test_kill.py does. What a
method keeps for itself must be noticed in runs of that method, everything else in runs of any: so
only a call that names no method judges all parts.

Usage: python -m tests.broken_restores [METHOD...]"""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metasp.store import runs_in
from metasp.store.checkpoints import newest
from metasp.train.trainer import Position, Trainer
from tests.helpers import assert_same_run
from tests.killing import (
    arguments_of,
    checkpoints,
    command,
    finish,
    kill,
    kinds_of,
    load_all,
    spawn,
    stored,
)
from tests.test_kill import KILLED

# Of no consequence for what a run learns: clocks, what only a learner's streams and schedulers
# count, and the stream that first weights were drawn from before any checkpoint. Whether influences
# tell labels is said anew with the same answer on the digits;
# tests/train/test_state.py restores it.
WITHOUT_EFFECT = {
    "log", "seconds", "observed", "scheduled", "streams/model", "weigh/tells",
}  # fmt: skip
COUNTED_ONLY = "num_batches_tracked"  # BatchNorm with a momentum counts batches and uses no count
OWN = ("method", "weigh")  # what a method keeps for itself
SAME_OF_ALL = ("model", "optimizer")  # one part each, whatever the network


def part_of(name: str) -> str:
    """The part that a stored name belongs to, such as memory/labels or method/anchors."""
    first, _, rest = name.partition("/")
    if first in SAME_OF_ALL:
        return first
    if rest.startswith("stopping/weights"):
        return "engine/stopping/weights"
    return re.sub(r"[0-9]+", "N", name)


def forgetting(part: str) -> Callable[..., None]:
    """A restore that leaves one part as it is at the start of a run, or zero where it is longer."""
    whole = Trainer.restore

    def restore(self: Trainer, tensors: Mapping[str, Tensor], position: Mapping[str, Any]) -> None:
        fresh, _ = self.state()
        taken = dict(tensors)
        for name, value in tensors.items():
            if part_of(name) == part:
                start = fresh.get(name)
                alike = start is not None and start.shape == value.shape
                taken[name] = start.clone() if alike else torch.zeros_like(value)
        first = asdict(Position())
        place = {name: first[name] if name == part else value for name, value in position.items()}
        whole(self, taken, place)

    return restore


def begin(runs: Path, arguments: list[str]) -> int:
    """A process with the run; what a broken one complains of is not shown."""
    return spawn(command(runs, arguments), Path(os.devnull))


def killed_in_every_task(runs: Path, arguments: list[str], kinds: list[str]) -> set[str]:
    """Kill a run twice in each task, let it end, and give the names that its checkpoints held."""
    found = set[str]()
    ends = [number for number, kind in enumerate(kinds, 1) if kind == "end"]
    starts = [0, *ends[:-1]]
    for start, end in zip(starts, ends):
        for aim in (start + (end - start) // 3, end - 2):
            pid = begin(runs, arguments)
            kill(pid, runs, max(aim, checkpoints(runs) + 1), 0.0)
            run = stored(runs)
            checkpoint = newest(run) if run else None
            if checkpoint:
                found |= {part_of(name) for name in checkpoint.arrays if COUNTED_ONLY not in name}
                found |= checkpoint.numbers.keys()
    finish(begin(runs, arguments), "a run after its kills")
    return found - WITHOUT_EFFECT


def noticed(part: str, folder: Path, arguments: list[str], kinds: list[str]) -> bool:
    """Whether a run that does not restore the part ends otherwise, or not at all."""
    whole, runs = Trainer.restore, folder / part.replace("/", "-")
    Trainer.restore = forgetting(part)  # type: ignore[method-assign]
    try:
        killed_in_every_task(runs, arguments, kinds)
        assert_same_run(*(next(iter(runs_in(each))) for each in (runs, folder / "whole")))
    except (AssertionError, SystemExit):
        return True
    finally:
        Trainer.restore = whole  # type: ignore[method-assign]
    return False


def main(methods: list[str]) -> int:
    load_all()
    seen, known = dict[str, list[str]](), set[str]()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        for method in methods:
            folder, arguments = Path(root) / method, arguments_of(method)
            finish(begin(folder / "whole", arguments), f"{method} undisturbed")
            kinds = kinds_of(folder / "whole")
            parts = killed_in_every_task(folder / "killed", arguments, kinds)
            assert_same_run(*(next(iter(runs_in(folder / each))) for each in ("killed", "whole")))
            for part in sorted(parts):
                name = f"{part} of {method}" if part.startswith(OWN) else part
                if name not in known and len(seen.get(name, ())) < 6:
                    if noticed(part, folder, arguments, kinds):
                        known.add(name)
                        print(f"{name}: noticed by {method}", flush=True)
                    seen.setdefault(name, []).append(method)
    passed = {name: tried for name, tried in seen.items() if name not in known}
    for name, tried in passed.items():
        print(f"{name}: not noticed by {', '.join(tried)}")
    print(f"{len(known)} of {len(seen)} parts are noticed")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or KILLED))

"""Every method with every optimizer, in runs and in a learner, each killed with a real SIGKILL in
its second task and resumed. It prints one line of JSON for each cell: how, method, optimizer and
what happened: "yes" where it learned and ended with the bits of one left in peace, else a sentence.
Usage: python -m tests.methods.optimizer_cells FOLDER SEED [METHOD...]"""

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.learner.learner import ContinualLearner
from metasp.methods import METHODS
from metasp.store import runs_in
from metasp.train.optimizers import OPTIMIZERS
from tests.helpers import assert_same_run
from tests.killing import command, kill, kinds_of, load_all, spawn
from tests.methods.factories import TELLING

MakeOptimizer = Callable[..., torch.optim.Optimizer]
RATES = {"adadelta": 1.0, "lbfgs": 1.0, "radam": 0.1}  # all others learn with 0.02
NAMED: dict[str, MakeOptimizer] = {name: kind.make for name, kind in OPTIMIZERS.items()}
OTHERS: dict[str, MakeOptimizer] = {  # that only a learner can be given
    name: getattr(torch.optim, name)
    for name in (
        "RAdam",
        "Adamax",
        "Adadelta",
        "ASGD",
        "Rprop",
        "Adafactor",
        "LBFGS",
        "Muon",
    )
}
MAKES = {
    name: partial(make, lr=RATES.get(name.lower(), 0.02))
    for name, make in {**NAMED, **OTHERS}.items()
}
MAKES["sgd"] = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
YES = "yes"
STEPPING = [name for name in METHODS if name not in ("slda", "ridge")]  # these have closed forms
GOES_BACK = "aer-abs"  # every other epoch ends where it began, and its losses need not fall
FLAGS = ["--tasks", "2", "--epochs", "3", "--limit-per-class", "6", "--batch-size", "8",
         "--memory", "20", "--memory-batch", "8", "--width", "4", "--threads", "1",
         "--checkpoint-seconds", "0"]  # fmt: skip
TRIES = 5  # kills that may come too late on a busy machine
LEARNS = {"memory_epochs": 15, "train_batch": 4, "cutmix": 0.0}  # of gdumb: long enough for it


def falls(losses: Sequence[float]) -> bool:
    """Whether the losses of a task are lower in its second half."""
    half = len(losses) // 2
    return sum(losses[half:]) / (len(losses) - half) < sum(losses[:half]) / half


def arguments_of(method: str, optimizer: str) -> list[str]:
    """The command line of a small run."""
    given = ["--optimizer", optimizer, "--lr", "0.02" if optimizer == "adagrad" else "3e-3"]
    if optimizer == "sgd":
        given = ["--momentum", "0.9", "--lr", "0.02"]
    if method == "verified-only":
        given += ["--trusted", "2"]
    for setting, value in (LEARNS if method == "gdumb" else TELLING.get(method, {})).items():
        given += ["--set", f"{setting}={value if isinstance(value, str) else json.dumps(value)}"]
    return ["--method", method, *FLAGS, *given]


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_killed(folder: Path, method: str, optimizer: str, dice: random.Random) -> str:
    """A run in peace, and one that is killed in its second task and resumed."""
    arguments, said = arguments_of(method, optimizer), folder / "said"
    folder.mkdir(parents=True)
    code = ended(spawn(command(folder / "whole", arguments), said))
    if code == 2:
        return said.read_text(encoding="utf-8").strip()
    assert code == 0, f"{method} with {optimizer} ended with {code}"
    (whole,) = runs_in(folder / "whole")
    steps = [event for event in whole.events() if event["event"] == "StepTaken"]
    losses = [step["loss"] for step in steps if step["task"] == 0]
    assert method == GOES_BACK or falls(losses), f"{method} {optimizer}"
    kinds = kinds_of(folder / "whole")
    begun = kinds.index("end") + 2  # a step of the second task is stored
    for number in range(TRIES):
        runs = folder / f"killed-{number}"
        hit = kill(spawn(command(runs, arguments)), runs, dice.randrange(begun, len(kinds) - 2), 0)
        if hit:
            break
    assert hit, f"{method} with {optimizer} could not be killed in {TRIES} tries"
    assert ended(spawn(command(runs, arguments))) == 0
    assert_same_run(runs_in(runs)[0], whole)
    return YES


def learner_for(method: str, make: MakeOptimizer) -> ContinualLearner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    settings = {"gdumb": {"memory_epochs": 8}, "hal": {"anchor_steps": 2}}.get(method, {})
    return ContinualLearner(
        model, method, optimizer=make, memory=16, epochs=3, batch_size=4, memory_batch=4,
        settings=settings,
    )  # fmt: skip


def tasks_for(method: str) -> list[dict[str, object]]:
    """What the learner is given: two tasks, with verified examples where the method needs them."""
    found: list[dict[str, object]] = []
    for number in range(2):
        x = torch.randn(24, 4, generator=torch.Generator().manual_seed(number))
        y = (x[:, number] > 0).long() + 2 * number
        verified = (x[:12], y[:12]) if method == "verified-only" else None
        found.append({"dataset": (x, y), "trusted": verified})
    return found


def learner_killed(folder: Path, method: str, make: MakeOptimizer) -> str:
    """A learner in peace, and one that is saved after its first task, killed in its second, loaded
    and given that one again."""
    first, second = tasks_for(method)
    try:
        whole = learner_for(method, make)
        losses = [e.loss for e in whole.stream(**first) if isinstance(e, StepTaken)]
    except UserError as error:
        return str(error)
    losses = [loss for loss in losses if loss]  # 0: nothing was trained
    assert method == GOES_BACK or falls(losses), f"{method} {make}"
    whole.learn(**second, progress=False)
    folder.mkdir(parents=True)
    place = folder / "learner"
    pid = os.fork()
    if pid == 0:
        one = learner_for(method, make)
        one.learn(**first, progress=False).save(place)
        for event in one.stream(**second):
            if isinstance(event, StepTaken) and event.step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    assert ended(pid) == -signal.SIGKILL
    again = ContinualLearner.load(place, learner_for(method, make).model, optimizer=make)
    again.learn(**second, progress=False)
    states = [own.model.state_dict() for own in (whole, again)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0]), f"{method} {make}"
    return YES


def main() -> None:
    where, seed, *methods = sys.argv[1:]
    torch.set_num_threads(1)
    load_all()
    for method in methods or STEPPING:
        folder, dice = Path(where) / method, random.Random(f"{seed}/{method}")
        for name, make in MAKES.items():
            said = learner_killed(folder / "learner" / name, method, make)
            print(json.dumps(["learner", method, name, said]), flush=True)
        for name in NAMED:
            said = run_killed(folder / name, method, name, dice)
            print(json.dumps(["run", method, name, said]), flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

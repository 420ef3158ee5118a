"""Every method with every optimizer learns and, killed with SIGKILL, resumes to the same bits, or
says why it cannot: the page of the docs is what happened."""

import json
import os
import subprocess
import sys
import tempfile

import pytest

from metasp.config import declared
from metasp.errors import UserError
from metasp.methods import METHODS
from metasp.spec import RunSpec
from metasp.train.optimizers import OPTIMIZERS
from tests.helpers import ROOT
from tests.methods.factories import digits
from tests.methods.optimizer_cells import NAMED, OTHERS, YES

PAGE = ROOT / "docs" / "optimizers.md"
KINDS = ", ".join(f"`{name}`" for name in OPTIMIZERS)
ABOVE = f"""# Optimizers

The test `tests/methods/test_optimizers.py` tries every cell of the table and writes this page.

`metasp run --optimizer NAME` takes {KINDS} (default `sgd`). If you give no learning rate or
weight decay, torch's defaults are used; RMSprop starts with Adam's rate. Only `sgd` and `rmsprop`
have a momentum.

A `ContinualLearner` takes more:

- `optimizer=lambda params: …` takes any optimizer of torch.
- `scheduler=lambda optimizer: …` takes any learning-rate scheduler that counts steps. It starts
  again with each task.
- `clip_norm=1.0` scales a gradient down to this norm before each step if it is longer.

Some methods simulate a training step before they take one: those that compute influence in
training, MIR, HAL and GMED. This simulated step (the paper calls it a pseudo step) is the step
that the optimizer would take, with its state and with clipping. It is exact if the optimizer moves
each parameter by a smooth function of that parameter's own gradient and state. These methods
refuse other optimizers, and optimizers with hooks around their step. The first step of Adam and of
optimizers like it is nearly the sign of the gradient, so influence is nearly zero there.

**yes** means two things. The method learns with this optimizer. And if it is killed with SIGKILL
in its second task and continued, it ends with the same bits as without the kill. For optimizers in
small letters this is tried in a run (`metasp resume`) and in a learner (`save` and `load`). The
others exist only in a learner, and are tried there. **runs** means that it works in a run and not
in a learner. A number in brackets refers to the error message below the table.
"""


def test_the_choices_of_a_run_are_those_there_are():
    assert tuple(OPTIMIZERS) == declared(RunSpec)["optimizer"].choices


def tried() -> dict[tuple[str, str, str], str]:
    """What happened in each cell: in a run or a learner, with a method, with an optimizer."""
    seed = os.environ.get("METASP_KILL_SEED") or int.from_bytes(os.urandom(4), "little")
    print(f"METASP_KILL_SEED={seed}")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        command = [sys.executable, "-m", "tests.methods.optimizer_cells", folder, str(seed)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr[-2000:]
    cells = map(json.loads, done.stdout.splitlines())
    return {(how, method, name): said for how, method, name, said in cells}


def page(found: dict[tuple[str, str, str], str]) -> str:
    """The page of the docs, with a table of what was tried."""
    names = [*NAMED, *OTHERS]
    lines = ["| method | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    sentences: list[str] = []
    for method in METHODS:
        cells = []
        for name in names:
            given = [found["learner", method, name]]
            given += [found["run", method, name]] if name in NAMED else []
            words = [one for one in given if one != YES]
            sentences += [one for one in words if one not in sentences]
            notes = ", ".join(str(sentences.index(one) + 1) for one in words)
            told = YES if not words else f"{'runs' if YES in given else 'no'} ({notes})"
            cells.append(told)
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    notes = [f"{number}. {text}" for number, text in enumerate(sentences, 1)]
    return "\n".join([ABOVE, *lines, "", *notes, ""])


@pytest.mark.slow
def test_the_page_says_what_happens():
    found = tried()
    assert PAGE.read_text(encoding="utf-8") == page(found), (
        "run `python -m tests.methods.test_optimizers` and commit docs/optimizers.md"
    )
    for method, recipe in METHODS.items():
        follows = "cannot follow Rprop" not in found["learner", method, "Rprop"]
        assert follows != ("elementwise" in recipe.kind.needs)


def test_a_momentum_that_the_optimizer_does_not_have_is_refused():
    with pytest.raises(UserError, match="adamw has no momentum"):
        digits("er", optimizer="adamw", momentum=0.9)
    with pytest.raises(UserError, match="optimizer"):
        RunSpec(optimizer="lbfgs")


def test_a_run_has_the_optimizers_own_defaults():
    groups = {
        name: digits("er", optimizer=name, limit_per_class=2).learner.optimizer.param_groups[0]
        for name in ("adamw", "rmsprop", "sgd")
    }
    assert (groups["adamw"]["lr"], groups["adamw"]["weight_decay"]) == (1e-3, 0.01)
    assert (groups["rmsprop"]["lr"], groups["rmsprop"]["momentum"]) == (1e-3, 0.0)
    assert (groups["sgd"]["lr"], groups["sgd"]["weight_decay"]) == (0.1, 0.0)


if __name__ == "__main__":
    PAGE.write_text(page(tried()), encoding="utf-8")

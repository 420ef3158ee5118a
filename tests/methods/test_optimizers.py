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
from tests.methods.optimizer_cells import NAMED, OTHERS, STEPPING, YES

PAGE = ROOT / "docs" / "optimizers.md"
KINDS = ", ".join(f"`{name}`" for name in OPTIMIZERS)
ABOVE = f"""# Optimizers

`metasp run --optimizer NAME` takes {KINDS} (default `sgd`). If you give no learning rate or
weight decay, torch's defaults are used; RMSprop starts with Adam's rate. Only `sgd` and `rmsprop`
have a momentum.

A `ContinualLearner` takes more:

- `optimizer=lambda params: …` takes any optimizer of torch.
- `scheduler=lambda optimizer: …` takes any learning-rate scheduler that counts steps. It moves
  after each epoch (`scheduler_step="epoch"`, the default) or after each step, and starts again with
  each task. The log `logging.getLogger("metasp")` says when the rate changes (INFO for epochs,
  DEBUG for steps).
- `clip_norm=1.0` scales a gradient down to this norm before each step if it is longer.

Methods that compute influence in training, MIR, HAL and GMED simulate a training step (the paper
calls it a pseudo step) before they take one: the step of your optimizer, with its state and with
clipping. It is exact if the optimizer moves each parameter by a smooth function of that parameter's
own gradient and state. These methods refuse other optimizers, and optimizers with hooks around
their step. The first step of Adam and its like is nearly the sign of the gradient, so influence is
nearly zero there.

In the table, **yes** means that the method learns with this optimizer, and that if it is killed
with SIGKILL in its second task and continued, it ends with the same bits. Optimizers in small
letters are tried in a run (`metasp resume`) and in a learner (`save` and `load`), the others, which
exist only there, in a learner. **runs** means that it works in a run and not in a learner. A number
in brackets refers to the error message below. SparseAdam works with no method: torch refuses the
gradients of dense layers. The analytic methods `slda` and `ridge` have no optimizer.

`python -m tests.methods.test_optimizers` tries every cell and writes this page.
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


def cell(found: dict[tuple[str, str, str], str], method: str, name: str, notes: list[str]) -> str:
    """Return what happened with a method and an optimizer; sentences go to the notes."""
    results = [found["learner", method, name]]
    results += [found["run", method, name]] if name in NAMED else []
    refusals = [result for result in results if result != YES]
    notes += [refusal for refusal in refusals if refusal not in notes]
    numbers = ", ".join(str(notes.index(refusal) + 1) for refusal in refusals)
    return f"{'runs' if YES in results else 'no'} ({numbers})" if refusals else YES


def grouped(rows: dict[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """Return the names of equal rows together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, row in rows.items():
        groups.setdefault(row, []).append(name)
    return groups


def page(found: dict[tuple[str, str, str], str]) -> str:
    """Return the page of the docs, with a table of what was tried: equal rows and columns once."""
    notes: list[str] = []
    rows = {m: tuple(cell(found, m, n, notes) for n in (*NAMED, *OTHERS)) for m in STEPPING}
    columns = grouped(dict(zip((*NAMED, *OTHERS), zip(*rows.values()))))
    lines = [
        "| methods | " + " | ".join(", ".join(names) for names in columns.values()) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for row, methods in grouped(dict(zip(rows, zip(*columns)))).items():
        names = ", ".join(f"`{method}`" for method in methods)
        lines.append(f"| {names} | " + " | ".join(row) + " |")
    numbered = [f"{number}. {text}" for number, text in enumerate(notes, 1)]
    return "\n".join([ABOVE, *lines, "", *numbered, ""])


@pytest.mark.slow
def test_the_page_says_what_happens():
    found = tried()
    assert PAGE.read_text(encoding="utf-8") == page(found), (
        "run `python -m tests.methods.test_optimizers` and commit docs/optimizers.md"
    )
    for method in STEPPING:
        follows = "cannot follow Rprop" not in found["learner", method, "Rprop"]
        assert follows != ("elementwise" in METHODS[method].kind.needs)


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

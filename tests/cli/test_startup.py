"""A command loads what it uses: one that trains nothing no torch, and a run nothing that draws,
compiles or reads tables before its first step."""

import subprocess
import sys

import pytest
import torch
from sklearn.datasets import load_digits

from metasp.cli import COMMANDS
from metasp.data.digits import digits
from metasp.influence.updates import elementwise
from metasp.train.optimizers import OPTIMIZERS, without_compiler
from tests.cli.test_cli import QUICK
from tests.helpers import ROOT, metasp

LIGHT = [
    "--help", "--version", "list methods", "list methods der", "list selections",
    "list backbones", "list benchmarks",
    "list runs --runs RUNS", "report RUNS", "report RUNS --format latex",
    "report RUN --table matrix", "figures RUNS --out OUT --only front",
    "figures RUNS --out OUT", "suspects RUN", "compare RUN OTHER", "memory list RUN",
    "memory forget RUN 11", "resume RUN", "resume RUN --json",
    *(f"{name} --help" for name in COMMANDS),
    "memory list --help", "memory forget --help",
]  # fmt: skip
SLOW = {"torch", "datasets", "ray", "scipy.stats", "sklearn"}  # half a second or more to load
AT_THE_END = "import atexit, sys; atexit.register(lambda: print(*({slow!r} & sys.modules.keys()), \
file=sys.stderr))"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """What the words in capital letters stand for."""
    folder = tmp_path_factory.mktemp("light")
    runs = folder / "runs"
    for method in ("metasp", "er"):
        done = metasp("run", "--method", method, *QUICK[2:], "--runs", runs, "--json")
        assert done.returncode == 0, done.stderr
    (run,), (other,) = runs.glob("*-metasp-*"), runs.glob("*-er-*")
    return {"RUNS": runs, "RUN": run, "OTHER": other}


def in_a_process(words, slow, before="", **places):
    """The command itself, in a process that tells at its end what slow modules it has loaded."""
    words = [str(places.get(word, word)) for word in words.split()]
    code = f"{AT_THE_END.format(slow=slow)}\n{before}\nfrom metasp.cli import main; main({words!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    *said, loaded = done.stderr.splitlines()
    return done, said, loaded


@pytest.mark.parametrize("command", LIGHT)
def test_a_command_that_trains_nothing_never_waits_for_torch(command, places, tmp_path):
    slow = SLOW if command.startswith("figures RUNS") else SLOW | {"matplotlib"}
    done, _, loaded = in_a_process(command, slow, **places, OUT=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert loaded == ""


@pytest.mark.parametrize(
    ("command", "module", "name"),
    [
        ("explore RUN", "metasp.cli.explore", "examples_of"),
        ("sweep paper-table-1-small --dry-run --runs OUT", "metasp.cli.sweep", "plan"),
        ("figures RUNS --out OUT", "metasp.reports.figures", "draw"),
    ],
)
def test_up_to_its_work_a_command_loads_nothing_slow(command, module, name, places, tmp_path):
    """The examples, the specs of a sweep and the figures take torch or matplotlib: these commands
    have read all else by then, so that what was wrong with it was told at once."""
    before = f"import {module}; {module}.{name} = lambda *given, **more: sys.exit(9)"
    done, _, loaded = in_a_process(command, SLOW | {"matplotlib"}, before, **places, OUT=tmp_path)
    assert done.returncode == 9, done.stderr
    assert loaded == ""


MISTAKES = [
    ("explore nowhere", "is not a run"),
    ("explore RUN --port 80", "--port only applies with --serve"),
    ("resume nowhere", "is not a run"),
    ("run --method erx", "did you mean 'er'"),
    ("run --epochs 0", "at least 1"),
    ("sweep nowhere --dry-run", "nowhere"),
]


@pytest.mark.parametrize(("command", "sentence"), MISTAKES)
def test_a_mistake_is_told_before_torch_is_loaded(command, sentence, places):
    done, said, loaded = in_a_process(command, SLOW | {"matplotlib"}, **places)
    assert done.returncode == 2
    assert sentence in said[-1]
    assert loaded == ""


NOT_NEEDED = {
    "datasets", "matplotlib", "mlflow", "pandas", "pyarrow.compute", "pyarrow.dataset",
    "pyarrow.parquet", "ray", "scipy", "sklearn", "sympy", "tensorboard", "torch._dynamo",
    "torch._inductor", "torch.distributed.tensor",
}  # fmt: skip
AT_FIRST_STEP = f"""
import os, sys
from metasp import events
def first(self, *values, **more):
    print(*sorted({NOT_NEEDED!r} & sys.modules.keys()), flush=True)
    os._exit(0)
events.StepTaken.__init__ = first
from metasp.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("more", ["--method er", "--method metasp-rehsel --optimizer adam"])
def test_before_its_first_step_a_run_loads_nothing_that_it_does_not_use(more, tmp_path):
    words = ["run", *more.split(), "--runs", str(tmp_path), "--limit-per-class", "20"]
    done = subprocess.run(
        [sys.executable, "-c", AT_FIRST_STEP, *words, "--memory", "20"],
        capture_output=True, text=True, cwd=ROOT / "src",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "\n"


def test_the_digits_are_those_of_scikit_learn():
    source, bunch = digits(), load_digits()
    for ids, inputs, labels in (
        (source.train.ids, source.inputs, source.labels),
        (None, source.test_inputs, source.test_labels),
    ):
        known = torch.ones(len(bunch.target), dtype=torch.bool)
        known[source.train.ids] = False
        rows = known.nonzero()[:, 0] if ids is None else ids
        assert torch.equal(inputs[:, 0].double() / 15, torch.from_numpy(bunch.images)[rows])
        assert torch.equal(labels, torch.from_numpy(bunch.target)[rows])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_the_compiler_an_optimizer_takes_the_same_steps(name):
    kind = OPTIMIZERS[name]
    start = torch.arange(6.0).reshape(2, 3).cos()
    ways = [start.clone().requires_grad_() for _ in range(2)]
    more = {"momentum": 0.9} if kind.momentum else {}
    own, torchs = (
        make([way], lr=0.1, weight_decay=0.01, **more)
        for make, way in zip((without_compiler(kind.make), kind.make), ways)
    )
    for _ in range(3):
        for way, optimizer in zip(ways, (own, torchs)):
            optimizer.zero_grad()
            way.square().sum().backward()
            optimizer.step()
    assert torch.equal(*ways)
    assert not torch.equal(ways[0], start)
    assert elementwise(own) is elementwise(torchs)
    assert repr(own) == repr(torchs)

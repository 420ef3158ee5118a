"""A run loads what it uses: nothing that draws, compiles or reads tables before its first step."""

import subprocess
import sys

import pytest
import torch
from sklearn.datasets import load_digits

from metasp.benchmarks.digits import digits
from metasp.engine.optimizers import OPTIMIZERS, without_compiler
from metasp.influence.optimizers import elementwise
from tests.cli.test_cli import ROOT

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

"""The public names, and a run in three lines of Python."""

import subprocess
import sys

import pytest
import torch
from torch.utils.data import TensorDataset

import metasp
from metasp.errors import UserError
from tests.learner.making import (
    X,
    Y,
)


def test_public_names_are_there_and_importing_them_is_lazy():
    code = (
        "import sys, metasp\n"
        "assert 'torch' not in sys.modules\n"
        "assert metasp.RunSpec().method == 'metasp-rehsel' and 'torch' not in sys.modules\n"
        "for name in metasp.PUBLIC: assert getattr(metasp, name) and name in dir(metasp)\n"
        "from metasp import sp_influence, example_influence, fuse, Ledger, ContinualLearner, Memory"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        metasp.nothing  # noqa: B018


def test_a_run_in_three_lines(tmp_path, capsys):
    result = metasp.run(method="metasp", runs=tmp_path, epochs=1, limit_per_class=20, threads=1,
                        gamma=0.5)  # fmt: skip
    assert result["spec"]["settings"]["gamma"] == 0.5
    assert len(result["class_il"]["matrix"]) == 5
    assert capsys.readouterr().out == ""
    rows = TensorDataset(X[:200].reshape(-1, 8, 8), Y[:200])
    own = metasp.run(metasp.split(rows, tasks=2), method="er", runs=tmp_path, epochs=1, threads=1)
    assert len(own["class_il"]["matrix"]) == 2
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        metasp.run(method="er", epoch=1, runs=tmp_path)


def test_a_run_gives_the_number_of_threads_back(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        metasp.run(method="er", runs=tmp_path, epochs=1, limit_per_class=20, threads=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

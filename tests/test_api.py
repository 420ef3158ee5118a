"""The public names, and a run in three lines of Python."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import metasp
from metasp.errors import UserError, without_flags
from tests.data.factories import class_folder_set
from tests.helpers import ROOT
from tests.learner.factories import (
    X,
    Y,
)


def test_public_names_are_there_and_importing_them_is_lazy():
    code = (
        "import sys, metasp\n"
        "assert 'torch' not in sys.modules\n"
        "assert metasp.RunSpec().method == 'metasp-robust' and 'torch' not in sys.modules\n"
        "for name in metasp.PUBLIC: assert getattr(metasp, name) and name in dir(metasp)\n"
        "from metasp import sp_influence, example_influence, fuse, ContinualLearner, ExampleStats\n"
        "from metasp import Memory"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        metasp.nothing  # noqa: B018


def test_a_process_that_a_test_starts_runs_this_tree(tmp_path):
    command = [sys.executable, "-c", "import metasp; print(metasp.__file__)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == ROOT / "src" / "metasp" / "__init__.py"


def test_a_run_in_three_lines(tmp_path, capsys):
    result = metasp.run(method="metasp", runs=tmp_path, epochs=1, limit_per_class=20, threads=1,
                        gamma=0.5)  # fmt: skip
    assert result["spec"]["method"]["gamma"] == 0.5
    assert len(result["class_il"]["matrix"]) == 5
    assert capsys.readouterr().out == ""
    rows = TensorDataset(X[:200].reshape(-1, 8, 8), Y[:200])
    own = metasp.run(metasp.split(rows, tasks=2), method="er", runs=tmp_path, epochs=1, threads=1)
    assert len(own["class_il"]["matrix"]) == 2
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        metasp.run(method="er", epoch=1, runs=tmp_path)


def test_folders_that_are_not_given_are_those_of_the_environment(tmp_path, monkeypatch):
    """As on the command line; what is given comes first."""
    monkeypatch.chdir(tmp_path)
    class_folder_set(tmp_path / "sets" / "pets", ["cat", "cow", "dog", "owl"])
    monkeypatch.setenv("METASP_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("METASP_RUNS", str(tmp_path / "kept"))
    pets = {"benchmark": "folder:pets", "method": "er", "tasks": 2, "epochs": 1, "threads": 1}
    assert Path(metasp.run(**pets)["run"]).parent == tmp_path / "kept"
    assert Path(metasp.run(**pets, runs="other")["run"]).parent == Path("other")
    with pytest.raises(UserError, match="not a folder"):
        metasp.run(**pets, data=tmp_path / "elsewhere")
    monkeypatch.delenv("METASP_RUNS")
    assert Path(metasp.run(**pets)["run"]).parent == Path("runs")
    monkeypatch.setenv("METASP_DATA", "")
    with pytest.raises(UserError, match="not a folder"):
        metasp.run(**pets)


def test_a_run_gives_the_number_of_threads_back(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        metasp.run(method="er", runs=tmp_path, epochs=1, limit_per_class=20, threads=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_mistakes_in_python_name_keywords_and_not_flags(tmp_path):
    small = {"runs": tmp_path, "limit_per_class": 4, "epochs": 1, "threads": 1}
    for settings, words in (
        ({"memory": 3}, "give `memory` 10 or more"),
        ({"image_size": 4}, "`image_size` does not apply to the digits"),
        ({"split_by": "column:angle"}, "use `split_by` class or order"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            metasp.run(method="er", **small, **settings)
        assert "--" not in str(caught.value)
    assert without_flags("as in `metasp run --lr 1`, a smaller --lr") == (
        "as in `metasp run --lr 1`, a smaller `lr`"
    )
    with pytest.raises(UserError, match=r"cannot be made .*: give a function without arguments"):
        metasp.run(method="er", model=lambda size: None, **small)

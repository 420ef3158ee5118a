"""What reaches the terminal: names as they are, and commands that work when they are pasted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import torch

from metasp.cli import main
from metasp.cli.options import spec_from
from metasp.cli.terminal import typed_again
from metasp.console import printable
from metasp.experiment import Interrupted
from metasp.methods import METHODS, RECOMMENDED
from metasp.spec import RunSpec
from tests.helpers import finish, metasp
from tests.reports.run_factories import make_run

SMALL = ["--method", "er", "--epochs", "1", "--threads", "1", "--memory", "10"]


def told(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(part) for part in arguments])
    heard = capsys.readouterr()
    return int(stop.value.code or 0), heard.out, heard.err


def test_control_characters_are_written_out(tmp_path, capsys):
    assert printable("a\x1b]0;x\x07\tb\nc∞") == "a\\x1b]0;x\\x07\tb\nc∞"
    np.savez(tmp_path / "a.npz", **{"inp\x1b]0;x\x07uts": np.ones((4, 2))})
    code, _, heard = told(capsys, "run", "--benchmark", f"arrays:{tmp_path / 'a.npz'}")
    assert code == 2
    assert "\x1b" not in heard
    assert "\\x1b]0;x\\x07" in heard


def test_a_piped_list_can_be_searched_for_a_long_name(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    run = make_run(tmp_path, 0.5, method="metasp-rehsel", benchmark="split-mini-imagenet")
    assert len(run.name) > 50
    done = metasp("list", "runs", "--runs", tmp_path)
    assert sum(run.name in line for line in done.stdout.splitlines()) == 1


def test_too_little_memory_is_one_sentence(capsys, monkeypatch):
    """The error is torch's own; there is no run that would fit any machine but this."""
    monkeypatch.setattr("metasp.experiment.prepare", lambda *_, **__: torch.empty(10**15))
    code, _, heard = told(capsys, "run")
    assert code == 2
    assert "too little memory" in heard
    monkeypatch.setattr("metasp.experiment.prepare", lambda *_, **__: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError):
        main(["run"])


def test_the_folder_of_runs_may_come_from_the_environment(tmp_path, capsys, monkeypatch):
    make_run(tmp_path / "kept", 0.5, method="er", seed=1)
    monkeypatch.chdir(tmp_path)
    assert told(capsys, "report")[0] == 2
    monkeypatch.setenv("METASP_RUNS", str(tmp_path / "kept"))
    assert told(capsys, "report")[0] == 0
    assert told(capsys, "list", "methods")[0] == 0  # it is not typed, so it is not refused


def test_what_was_typed_is_typed_again():
    seen = []

    @click.command()
    @click.option("--data")
    @click.option("--track", multiple=True)
    @click.option("--shared", is_flag=True)
    @click.option("--gpus-per-run", type=float, default=0.0)
    @click.option("--other")
    def command(**_):
        seen.append(typed_again("data", "track", "shared", "gpus_per_run"))

    given = ["--gpus-per-run", "0.5", "--shared", "--track", "a b", "--track", "c", "--other", "x"]
    command.main(given, standalone_mode=False)
    command.main([], standalone_mode=False)
    repeated = ["--track", "a b", "--track", "c", "--shared", "--gpus-per-run", "0.5"]
    assert seen == [repeated, []]


def test_a_damaged_checkpoint_is_told_beside_json(tiny, capsys):
    stop = iter([False, False, True])
    experiment = tiny(method="er")
    experiment.stop = lambda: next(stop)
    with pytest.raises(Interrupted):
        finish(experiment)
    run = experiment.directory.path
    newest = max((run / "checkpoint").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-10])
    code, out, err = told(capsys, "resume", run, "--json")
    assert code == 0
    assert json.loads(out)["run"] == str(run)
    assert "warning: " in err
    assert "damaged" in err


def test_another_number_of_epochs_rehearses_in_all_of_them(tmp_path):
    """A stored spec says "all epochs" by their number."""
    stored = RunSpec(method="er", epochs=1, rehearse_last=1, data_digest="0" * 16)
    (tmp_path / "spec.toml").write_text(stored.to_toml())
    assert spec_from(tmp_path / "spec.toml", {"epochs": 4}).rehearse_last == 4
    some = {"epochs": 4, "rehearse_last": 2}
    assert spec_from(tmp_path / "spec.toml", some).rehearse_last == 2
    for own in (stored.with_(epochs=3, rehearse_last=2), RunSpec(epochs=2, rehearse_last=2)):
        (tmp_path / "spec.toml").write_text(own.to_toml())
        assert spec_from(tmp_path / "spec.toml", {"epochs": 4}).rehearse_last == 2


def test_another_method_or_network_does_not_get_what_the_stored_one_was_given(tmp_path):
    stored = RunSpec(
        method="er", lr=0.1, momentum=0.0, weight_decay=0.0, selection="reservoir", memory=70,
        backbone="convnet", width=16, data_digest="0" * 16,
    )  # fmt: skip
    file = tmp_path / "spec.toml"
    file.write_text(stored.to_toml())
    same = spec_from(file, {"seed": 5})
    assert (same.lr, same.selection, same.width) == (0.1, "reservoir", 16)
    other = spec_from(file, {"method": "gem", "backbone": "resnet18"})
    assert (other.lr, other.momentum, other.weight_decay, other.selection) == (None,) * 4
    assert other.width is None
    assert other.memory == 70
    assert spec_from(file, {"method": "gem", "lr": 0.5}).lr == 0.5
    file.write_text(RunSpec(method="er", lr=0.1, width=16).to_toml())  # written by hand
    mine = spec_from(file, {"method": "gem", "backbone": "resnet18"})
    assert (mine.lr, mine.width) == (0.1, 16)


def test_a_sweep_does_not_run_files_that_happen_to_lie_there(tmp_path):
    """Started as people do: the installed script does not look where it stands."""
    (tmp_path / "json.py").write_text("raise SystemExit('this was executed')")
    spec = 'method = "er"\nepochs = 1\nthreads = 1\nlimit_per_class = 20\n'
    (tmp_path / "my.toml").write_text(f"{spec}[grid]\nseed = [1]\n")
    script = Path(sys.executable).with_name("metasp")
    if not script.exists():
        pytest.skip("the package is not installed beside this Python: make .venv/installed-dev")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [script, "sweep", "my.toml", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 1


def test_lists_break_no_word_in_80_columns():
    """Methods with their names and citations; every word is one of the JSON list."""
    for what in ("methods", "benchmarks", "selections", "backbones"):
        done = metasp("list", what, COLUMNS="80")
        assert done.returncode == 0, done.stderr
        assert max(map(len, done.stdout.splitlines())) <= 80
        rows = json.loads(metasp("list", what, "--json").stdout)[what]
        shown = {*done.stdout.split()}
        for row in rows:
            assert {row["name"], *row.get("what", "").split()} <= shown
    methods = json.loads(metasp("list", "methods", "--json").stdout)["methods"]
    assert [row["name"] for row in methods if row["recommended"]] == [RECOMMENDED.method]
    assert {row["name"] for row in methods} == {*METHODS}
    (derpp,) = (row for row in methods if row["name"] == "derpp")
    assert "Dark Experience Replay" in derpp["what"]
    assert "(Buzzega et al. 2020)" in derpp["what"]

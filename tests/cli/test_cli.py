import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from metasp.cli import COMMANDS
from metasp.cli.options import spec_from
from metasp.methods import RECOMMENDED
from metasp.spec import RunSpec
from tests.helpers import ROOT, finish, metasp

QUICK = ["--method", "er", "--epochs", "1", "--limit-per-class", "20", "--threads", "1"]


def test_run_prints_rows_scores_and_place_when_piped(tmp_path):
    done = metasp("run", *QUICK, "--runs", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:14] for line in lines[:5]] == [f"after task {t}/5" for t in range(1, 6)]
    for words in ("class-IL", "task-IL", "A_1", "A_∞", "A_m", "BWT", "stored in"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    again = metasp("run", *QUICK, "--runs", tmp_path)
    assert "already finished" in again.stdout
    listed = json.loads(metasp("list", "runs", "--runs", tmp_path, "--json").stdout)
    assert [row["state"] for row in listed["runs"]] == ["finished"]


def test_a_finished_run_is_shown_without_its_data(tmp_path):
    """`metasp resume` has nothing to train, so it asks for nothing to train on."""
    inputs, labels = np.arange(80.0).reshape(40, 2), np.arange(40) % 4
    np.savez(tmp_path / "mine.npz", inputs=inputs, labels=labels)
    words = ("--benchmark", f"arrays:{tmp_path / 'mine.npz'}", "--backbone", "mlp", "--tasks", "2")
    done = metasp("run", *QUICK, *words, "--runs", tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stderr
    (tmp_path / "mine.npz").unlink()
    run = json.loads(done.stdout)["run"]
    assert json.loads(metasp("resume", run, "--json").stdout) == json.loads(done.stdout)
    assert metasp("resume", run).stdout.startswith(f"already finished: {run}")
    (Path(run) / "result.json").unlink()
    unfinished = metasp("resume", run)
    assert unfinished.returncode == 2
    assert "mine.npz is not a file" in unfinished.stderr


def test_json_is_one_object_and_several_seeds_are_a_run_each(tmp_path):
    done = metasp("run", *QUICK, "--runs", tmp_path, "--json")
    result = json.loads(done.stdout)
    assert result["spec"]["method"]["name"] == "er"
    assert len(result["class_il"]["matrix"]) == 5
    seeds = f"1,{result['spec']['seed']},2"
    both = metasp("run", *QUICK, "--seeds", seeds, "--runs", tmp_path, "--json")
    runs = json.loads(both.stdout)["runs"]
    assert [run["spec"]["seed"] for run in runs] == [1, result["spec"]["seed"], 2]
    assert runs[1] == result  # which was finished
    shown = metasp("run", *QUICK, "--seeds", seeds, "--runs", tmp_path).stdout
    scores = [100 * run["class_il"]["A_inf"] for run in runs]
    assert f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}" in shown


def test_a_reader_that_goes_away_gets_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "metasp", "list", "methods"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


BAD = [
    (["run", "--benchmark", "split-digit"], "did you mean 'split-digits'"),
    (["run", "--method", "erx"], "did you mean 'er'"),
    (["run", "--backbone", "convnets"], "did you mean 'convnet'"),
    (["run", "--selection", "rings"], "did you mean 'ring'"),
    (["run", "--memmory", "3"], "--memory"),
    (["run", "--epochs", "0"], "at least 1"),
    (["run", "--epochs", "two"], "not a valid integer"),
    (["run", "--memory", "-3"], "at least 0"),
    (["run", "--method", "metasp", "--set", "gamma=2"], "between 0 and 1"),
    (["run", "--method", "er", "--set", "gamma=0.5"], "or add influence metasp"),
    (["run", "--method", "er", "--set", "cutmix=0.5"], "no settings of its own"),
    (["run", "--method", "er", "--set", "gamma"], "NAME=VALUE"),
    (["run", "--method", "der", "--alpha", "0.5"], "give --set alpha=VALUE"),
    (["list", "methods", "dre"], "did you mean"),
    (["list", "runs", "der"], "takes no name"),
    (["run", "--method", "bests"], "did you mean 'best'"),
    (["run", "--method", "er", "--influence", "metsp"], "did you mean 'metasp'"),
    (["run", "--memory", "5"], "smaller than the 10 classes"),
    (["run", "--tasks", "3"], "do not divide"),
    (["run", "--spec", "nowhere.toml"], "cannot read nowhere.toml"),
    (["run", "--spec", "one.toml", "two.toml"], "a * found several runs"),
    (["run", "--device", "abacus"], "no device"),
    (["resume", "nowhere"], "is not a run"),
    (["list", "method"], "did you mean 'methods'"),
    (["report", "--format", "jsn"], "unknown --format 'jsn': did you mean 'json'?"),
    (["report", "--table", "scors"], "unknown --table 'scors': did you mean 'scores'?"),
    (["sweep", "my.toml", "--on", "lcoal"], "unknown --on 'lcoal': did you mean 'local'?"),
    (["rnu"], "did you mean 'run'"),
    (["resume"], "Missing argument"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, words, capsys, tmp_path, monkeypatch):
    from metasp.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert words in text
    assert len(text.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_help_lists_the_commands_after_one_of_them_was_called(capsys):
    """The module of `metasp list` has the name of Python's own list."""
    from metasp.cli import main

    for arguments in (["list", "methods"], ["--help"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    assert "List methods" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["list methods", "report RUNS", "resume RUNS/RUN"])
def test_a_closed_output_is_no_mistake(command, tiny):
    run = finish(tiny()).path
    words = command.replace("RUNS", shlex.quote(str(run.parent))).replace("RUN", run.name)
    line = f"{shlex.quote(sys.executable)} -m metasp {words} >&-"
    done = subprocess.run(line, shell=True, stderr=subprocess.PIPE, text=True, cwd=ROOT / "src")
    assert (done.returncode, done.stderr) == (0, "")
    line = f"{shlex.quote(sys.executable)} -m metasp {words} 2>&-"
    done = subprocess.run(line, shell=True, stdout=subprocess.PIPE, text=True, cwd=ROOT / "src")
    assert done.returncode == 0
    assert "er" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name, capsys):
    from metasp.cli import main

    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"metasp {name}" in text


@pytest.mark.parametrize(
    ("given", "used"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")]
)
def test_threads_wait_without_spinning_unless_told(given, used):
    code = (
        "import os, metasp.cli\n"
        "try: metasp.cli.main(['--version'])\n"
        "except SystemExit: print(os.environ['OMP_WAIT_POLICY'])"
    )
    clean = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=clean | given, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == used


def test_influence_is_added_and_taken_away_by_flags(tmp_path):
    """A stored spec is a start: what is left of its settings has an owner still."""
    settings = ("influence.gamma=0.5", "influence.shuffle_influence=true", "alpha=0.3")
    flags = [word for text in settings for word in ("--set", text)]
    done = metasp("run", *QUICK, "--method", "derpp", "--influence", "metasp", *flags,
                  "--runs", tmp_path, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    spec = result["spec"]
    own, added = spec["method"], spec["influence"]
    assert own == {"name": "derpp", "alpha": 0.3, "beta": 0.5}
    assert (added["name"], added["gamma"], added["shuffle_influence"]) == ("metasp", 0.5, True)
    file = Path(result["run"]) / "spec.toml"
    for flags, kept in (
        (("--influence", "none"), {"alpha": 0.3, "beta": 0.5}),
        (("--influence", "robust"), {"alpha": 0.3, "beta": 0.5}),
        (("--method", "er"), {"influence.gamma": 0.5, "influence.shuffle_influence": True}),
    ):
        values = dict(zip([flag[2:] for flag in flags[::2]], flags[1::2]))
        changed = spec_from(file, values)
        assert kept.items() <= changed.settings.items()
        assert (changed.influence == "metasp") == ("influence.gamma" in changed.settings)
        assert ("alpha" in changed.settings) == (changed.method == "derpp")


def test_best_is_shown_and_stored_resolved(tmp_path):
    done = metasp("run", *QUICK, "--method", "best", "--runs", tmp_path)
    assert done.returncode == 0, done.stderr
    method, selection = RECOMMENDED
    first = done.stdout.splitlines()[0]
    assert first == f"best is method {method} with selection {selection}"
    (stored,) = tmp_path.glob("*/spec.toml")
    spec = RunSpec.from_toml(stored)
    assert (spec.method, spec.selection) == (method, selection)
    named = metasp("run", *QUICK, "--method", method, "--selection", selection, "--runs", tmp_path)
    assert "already finished" in named.stdout


@pytest.mark.parametrize(("method", "other"), [("er", "metasp-robust"), ("finetune", "er")])
def test_a_finished_run_says_what_to_do_with_it(method, other, tmp_path):
    runs = tmp_path / "my runs"
    done = metasp("run", *QUICK, "--method", method, "--runs", runs)
    (run,) = runs.iterdir()
    wrong, look, compare, own = done.stdout.splitlines()[-4:]
    assert wrong == f"wrong labels:  metasp suspects '{run}'"
    assert look == f"look at it:    metasp explore '{run}' --serve"
    command = f"metasp run --spec '{run}/spec.toml' --method {other} --runs '{runs}'"
    assert compare == f"compare:       {command} && metasp report '{runs}'"
    assert own.endswith("--benchmark folder:PATH")

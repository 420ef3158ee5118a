"""Code of the user's own by `--import`, as the tutorial shows it."""

import json
import signal
import subprocess
import sys
import time

import pytest

from metasp.store import RunDir, runs_in
from tests.docs.pages import Page
from tests.helpers import ROOT, assert_same_run, metasp

PAGE = Page(ROOT / "docs/tutorials/own-method.md")
QUICK = ("--epochs", "6", "--limit-per-class", "40", "--memory", "40", "--threads", "1")
MINE = ("--import", "my_derpp.py", "--method", "my-derpp", *QUICK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files of the page and an undisturbed run in `whole`."""
    folder = tmp_path_factory.mktemp("own")
    for block in PAGE.blocks:
        if block.title:
            (folder / block.title).write_text(block.text)
    done = metasp("run", *MINE, "--runs", "whole", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_killed_run_names_the_file_to_import_and_resumes_to_the_same_bits(folder):
    command = [sys.executable, "-m", "metasp", "run", *MINE, "--checkpoint-seconds", "0"]
    with subprocess.Popen([*command, "--runs", "killed"], cwd=folder) as process:
        while not list(folder.glob("killed/*/checkpoint/*.safetensors")):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    (run,) = runs_in(folder / "killed")
    assert run.result() is None, "over before the kill: give it more to do"
    refused = metasp("resume", run.path)
    assert refused.returncode == 2
    assert f"add --import {folder / 'my_derpp.py'}" in refused.stderr
    done = metasp("resume", run.path, "--import", folder / "my_derpp.py")
    assert done.returncode == 0, done.stderr
    (whole,) = runs_in(folder / "whole")
    assert_same_run(run, whole)
    (digest,) = run.result()["environment"]["plugins"].values()
    assert len(digest) == 64


def test_a_sweep_imports_in_its_workers_and_a_report_needs_no_import(folder):
    done = metasp("sweep", "mine.toml", "--import", "my_derpp.py", "--runs", "swept", cwd=folder)
    assert done.returncode == 0, done.stdout
    report = metasp("report", "swept", "--against", "my-derpp", "--json", cwd=folder)
    rows = json.loads(report.stdout)["tables"][0]["rows"]
    assert {row["method"] for row in rows} == {"er", "derpp", "my-derpp"}
    own = metasp("report", "swept", "--import", "my_parts.py", "--table", "by-seed", "--json",
                 cwd=folder)  # fmt: skip
    (table,) = json.loads(own.stdout)["tables"]
    of = {row["label"]: row["mean"] for row in rows if row["metric"] == "A_inf"}
    for row in table["rows"]:
        assert (row["1"] + row["2"]) / 2 == pytest.approx(of[row["method"]], rel=1e-5)


def test_a_selection_a_benchmark_and_a_metric_are_one_function_each(folder):
    words = ("--import", "my_parts.py", "--benchmark", "blobs", "--selection", "newest")
    done = metasp("run", *words, "--method", "er", *QUICK, "--tasks", "4", "--runs", "blobs",
                  "--json", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    scores = result["class_il"]
    assert scores["forgetting"] == pytest.approx(-scores["BWT"])
    stored = RunDir(folder / result["run"])
    newest = max(stored.scores())
    held = set(stored.memory()["id"])
    assert held <= {*stored.scores()[newest]["id"]}
    listed = metasp("list", "benchmarks", "--import", "my_parts.py", "--json", cwd=folder)
    assert "blobs" in [row["name"] for row in json.loads(listed.stdout)["benchmarks"]]


def test_a_run_made_before_the_file_changed_says_so(folder):
    code = (folder / "my_derpp.py").read_text()
    (folder / "changed").mkdir()
    (folder / "changed" / "my_derpp.py").write_text(f"{code}# changed\n")
    (run,) = runs_in(folder / "whole")
    shown = metasp("resume", run.path, "--import", folder / "changed" / "my_derpp.py")
    assert f"{folder / 'my_derpp.py'} has changed since this run was made" in shown.stdout
    assert (
        "changed since" not in metasp("resume", run.path, "--import", folder / "my_derpp.py").stdout
    )


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (None, "cannot import bad.py: No such file"),
        ("x = 1\nx.y", "AttributeError in line 2: 'int' object has no attribute 'y'"),
        ("import metasp_no_such_package", "ModuleNotFoundError in line 1"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_sentence(code, sentence, tmp_path):
    if code is not None:
        (tmp_path / "bad.py").write_text(code)
    done = metasp("list", "methods", "--import", "bad.py", cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_installed_package_adds_its_methods_without_being_loaded(tmp_path):
    (tmp_path / "theirs.py").write_text("from metasp.methods.er import ER\nprint('loaded')\n")
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[metasp.methods]\ntheirs = theirs:ER\n")
    code = (
        "from metasp.methods import METHODS\nimport sys\nassert 'theirs' not in sys.modules\n"
        "print(METHODS['theirs'].kind.__name__)"
    )
    paths = [str(tmp_path), str(ROOT / "src")]
    code = f"import sys; sys.path[:0] = {paths!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["loaded", "ER"], done.stderr

"""What the command line is told is obeyed or refused, and what it tells works."""

import os
import shlex

import pytest

from metasp.cli import main
from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.reports.groups import Group
from metasp.spec import RunSpec
from tests.helpers import finish
from tests.reports.run_factories import make_run


def told(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(part) for part in arguments])
    heard = capsys.readouterr()
    return int(stop.value.code or 0), heard.out, heard.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "paper-table-1", "--dry-run", "--address", "auto"], "--on ray: add that"),
        (["run", "--workers", "2"], "--workers only applies with --on ray: add that"),
        (["resume", "here", "--gpus-per-worker", "1"], "--gpus-per-worker only applies with --on"),
        (
            ["sweep", "paper-table-1", "--on", "ray", "--jobs", "2"],
            "--jobs only applies to runs on this",
        ),
        (["sweep", "paper-time", "--on", "ray", "--cpus-per-worker", "nan"], "cannot be set aside"),
        (["sweep", "paper-time", "--on", "ray", "--gpus-per-worker", "1.5"], "give a whole number"),
        (["report", "RUNS", "--table", "matrix", "--against", "er"], "--against only applies"),
        (["report", "RUNS", "--json", "--format", "csv"], "two formats: give one"),
        (["explore", "RUNS", "--port", "8123"], "--port only applies with --serve"),
        (["list", "methods", "--runs", "RUNS"], "--runs only applies to `metasp list runs`"),
        (["list", "runs", "--data", "RUNS"], "--data only applies to `metasp list benchmarks`"),
        (["run", "--seed", "1", "--seeds", "1,2"], "give one of them"),
        (["run", "--split-by", "order", "--classes-per-task", "5,5"], "leave out the classes per"),
        (["run", "--split-by", "order", "--class-order", "shuffled"], "leave out the classes per"),
    ],
)
def test_options_of_another_way_are_refused(tmp_path, capsys, arguments, words):
    make_run(tmp_path, 0.5, method="er", seed=1)
    code, _, heard = told(capsys, *[tmp_path if a == "RUNS" else a for a in arguments])
    assert code == 2
    assert words in heard


def test_a_finished_run_tells_how_to_make_it_again_and_that_works(tiny, capsys):
    run = finish(tiny(folder="a folder")).path
    code, heard, _ = told(capsys, "resume", run)
    assert code == 0
    command = shlex.split(heard.split("(once more: ")[1].split(")")[0])
    before = (run / "result.json").stat().st_mtime_ns
    assert told(capsys, *command[1:])[0] == 0
    assert (run / "result.json").stat().st_mtime_ns > before


@pytest.mark.parametrize("changes", [{"method": "joint"}, {"benchmark": "arrays:a$_$b.npz"}])
def test_every_figure_can_be_drawn(tmp_path, capsys, changes):
    for lr in (0.1, 0.2):
        for seed in (1, 2):
            make_run(tmp_path / "runs", 0.5, seed=seed, lr=lr, **{"method": "er", **changes})
    only = ["--only", "front", "--only", "accuracy", "--only", "matrix"]
    code, heard, _ = told(capsys, "figures", tmp_path / "runs", "--out", tmp_path / "out", *only)
    assert code == 0
    assert "front: " in heard


def test_groups_have_files_of_their_own_with_names_that_fit():
    names = ["folder:/d/a b", "folder:/d/a-b", "folder:/d/日本", "folder:/d/中国"]
    groups = [Group(name, 200, "", ()) for name in names]
    groups.append(Group("split-cifar100", 200, "class order " + " ".join(map(str, range(100))), ()))
    stems = [each.slug for each in groups]
    assert len(set(stems)) == len(stems)
    assert max(map(len, stems)) < 120
    assert Group("split-digits", 200, "", ()).slug == "split-digits-m200"


def test_names_that_are_no_text_are_refused(tmp_path):
    with pytest.raises(UserError, match="control characters"):
        RunSpec(benchmark="folder:/d/\udcff")
    for name in ("a", os.fsdecode(b"\xff")):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="rename it"):
        load_benchmark(RunSpec(benchmark=f"folder:{tmp_path}"))

"""metasp memory list and forget: nothing of a forgotten example is left, and the run goes on."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from metasp.cli import main
from metasp.errors import UserError
from metasp.experiment import Interrupted
from metasp.reports.explorer import build_page
from metasp.store import RunDir
from metasp.store.files import locked
from metasp.store.forget import cleared
from metasp.store.manifest import read_manifest
from tests.helpers import finish, outcome

SHORT = {"gdumb": {"memory_epochs": 2, "train_batch": 8}, "hal": {"anchor_steps": 2}}


def stopped(tiny, steps: int, folder="runs", **changes):
    """A run that was asked to stop after some steps."""
    taken = iter(range(10**6))
    experiment = tiny(folder, {"checkpoint_seconds": 0.0}, **changes)
    experiment.stop = lambda: next(taken) >= steps
    with pytest.raises(Interrupted):
        finish(experiment)
    return experiment


def ids_everywhere(directory: RunDir) -> dict[str, set[int]]:
    """The ids that each table and checkpoint of a run names."""
    found = {
        str(path.relative_to(directory.path)): set(pq.read_table(path)["id"].to_pylist())
        for path in directory.path.rglob("*.parquet")
    }
    latest = directory.checkpoint()
    for name, array in latest.arrays.items():
        if name.endswith("ids"):
            found[name] = set(array.tolist())
    return found


def call(capsys, *arguments) -> dict:
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments), "--json"])
    assert stop.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_list_and_forget_in_a_finished_run(tiny, capsys):
    directory = finish(tiny(method="metasp-rehsel", label_noise=0.1))
    before = outcome(directory)
    listed = call(capsys, "memory", "list", directory.path)
    assert len(listed["memory"]) == 50
    held = {row["id"] for row in listed["memory"]}
    last = sorted(directory.path.glob("memory/*.parquet"))[-1]
    assert held == set(pq.read_table(last)["id"].to_pylist())
    label = listed["memory"][0]["label"]
    gone = {row["id"] for row in listed["memory"] if row["label"] == label}
    done = call(capsys, "memory", "forget", directory.path, "--label", label)
    assert set(done["forgotten"]) == gone
    assert done["from_memory"] == len(gone)
    for name, ids in ids_everywhere(directory).items():
        assert not ids & gone, name
    assert len(list((directory.path / "checkpoint").glob("*.safetensors"))) == 1
    listed = call(capsys, "memory", "list", directory.path)
    assert {row["id"] for row in listed["memory"]} == held - gone
    assert listed["forgotten"] == sorted(gone)
    assert outcome(directory) == before


def test_what_is_not_there_is_not_recorded(tiny, capsys):
    directory = finish(tiny(method="er"))
    assert call(capsys, "memory", "forget", directory.path, 11)["forgotten"] == [11]
    with pytest.raises(SystemExit) as stop:
        main(["memory", "forget", str(directory.path), "--label", "77"])
    assert stop.value.code == 2
    assert "holds no such example" in capsys.readouterr().err
    assert call(capsys, "memory", "list", directory.path)["forgotten"] == [11]


def test_a_run_that_is_not_finished_is_left_as_it_is(tiny, capsys):
    directory = stopped(tiny, 12, method="er").directory
    held = directory.memory()["id"]
    with pytest.raises(SystemExit) as stop:
        main(["memory", "forget", str(directory.path), str(held[0])])
    assert stop.value.code == 2
    assert "is not finished: let it finish" in capsys.readouterr().err
    assert directory.memory()["id"] == held
    assert directory.forgotten() == []


def test_an_erasure_cut_short_is_finished_before_anything_is_shown(tiny, monkeypatch, capsys):
    directory = finish(tiny(method="er"))
    held = directory.memory()["id"]
    with monkeypatch.context() as patch:
        patch.setattr("metasp.store.forget.cleared", cut_short)
        with pytest.raises(KeyboardInterrupt):
            directory.forget(held[:3])
    assert set(held[:3]) <= set(directory.memory()["id"])
    assert directory.forgotten() == sorted(held[:3])
    listed = call(capsys, "memory", "list", directory.path)
    assert {row["id"] for row in listed["memory"]} == set(held[3:])


def cut_short(*_):
    raise KeyboardInterrupt


def test_a_run_being_written_cannot_be_changed(tiny):
    directory = finish(tiny(method="er"))
    with locked(directory.path / "lock"), pytest.raises(UserError, match="another process"):
        directory.forget([1])
    assert directory.forgotten() == []


def test_forgetting_again_adds_to_the_ids_and_force_would_bring_them_back(tiny):
    directory = finish(tiny(method="er"))
    directory.forget([3])
    directory.forget([4, 3])
    assert directory.forgotten() == [3, 4]
    with pytest.raises(UserError, match=r"2 examples were forgotten from .* by --exclude FILE"):
        finish(tiny(options={"force": True}, method="er"))
    assert directory.finished


def test_a_damaged_run_forgets_nothing(tiny):
    directory = finish(tiny(method="metasp"))
    table = directory.path / "memory" / "task-001.parquet"
    table.write_bytes(table.read_bytes()[:-3])
    with pytest.raises(UserError, match=r"task-001.parquet is damaged"):
        directory.forget([3])
    assert read_manifest(directory.path).forgotten == []


def test_clearing_touches_nothing_else():
    arrays = {
        "memory/ids": np.array([5, 7, -1]),
        "memory/inputs": np.ones((3, 2), np.uint8),
        "influence_stats/ids": np.array([5, 9]),
        "influence_stats/sums": np.ones((2, 4)),
        "influence_stats/counts": np.array([1, 2]),
        "method/anchors": np.arange(6.0).reshape(3, 2),
        "method/anchors_ids": np.array([7, 5, 8]),
        "model/w": np.ones(3),
    }
    kept = cleared(arrays, np.array([5]))
    assert kept["memory/ids"].tolist() == [-1, 7, -1]
    assert kept["memory/inputs"].tolist() == [[0, 0], [1, 1], [1, 1]]
    assert kept["influence_stats/ids"].tolist() == [9]
    assert kept["influence_stats/counts"].tolist() == [2]
    assert kept["method/anchors"].tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert kept["model/w"] is arrays["model/w"]
    assert arrays["memory/ids"].tolist() == [5, 7, -1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "nowhere"], "is not a run"),
        (["forget", "nowhere", "3"], "is not a run"),
        (["forget", "RUN"], "name what to forget"),
        (["forget", "RUN", "3", "--label", "1"], "in one way"),
        (["forgett", "RUN"], "No such command"),
    ],
)
def test_mistakes(tiny, capsys, arguments, words):
    run = str(finish(tiny(method="er", limit_per_class=10, memory=10)).path)
    with pytest.raises(SystemExit) as stop:
        main(["memory", *(run if part == "RUN" else part for part in arguments)])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_a_page_made_while_examples_are_forgotten_does_not_stay(tiny, capsys, monkeypatch):
    directory = finish(tiny(method="metasp-rehsel"))
    gone = int(directory.memory()["id"][0])

    def forgetting_meanwhile(*arguments):
        built = build_page(*arguments)
        directory.forget([gone])
        return built

    monkeypatch.setattr("metasp.cli.explore.build_page", forgetting_meanwhile)
    with pytest.raises(SystemExit) as stop:
        main(["explore", str(directory.path)])
    assert stop.value.code == 2
    assert "examples were forgotten while the page was made" in capsys.readouterr().err
    assert not list(directory.path.glob("*.html"))

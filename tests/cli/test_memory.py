"""metasp memory list and forget: nothing of a forgotten example is left, and the run goes on."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from metasp.cli import main
from metasp.errors import UserError
from metasp.events import StepTaken, TaskFinished
from metasp.experiment import Interrupted
from metasp.reports.explorer import build_page
from metasp.store import RunDir
from metasp.store.checkpoints import load_latest
from metasp.store.files import locked
from metasp.store.forget import cleared, complete, forgotten, records
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
    latest, _ = load_latest(directory.path / "checkpoint")
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
    done = call(capsys, "memory", "forget", directory.path, "--label", label, "--reason", "asked")
    assert set(done["forgotten"]) == gone
    assert done["from_memory"] == len(gone)
    for name, ids in ids_everywhere(directory).items():
        assert not ids & gone, name
    assert len(list((directory.path / "checkpoint").glob("*.json"))) == 1
    listed = call(capsys, "memory", "list", directory.path)
    assert {row["id"] for row in listed["memory"]} == held - gone
    assert [(r["ids"], r["reason"]) for r in listed["removed"]] == [(sorted(gone), "asked")]
    assert outcome(directory) == before
    assert directory.result()["forgotten"] == {"examples": len(gone), "undisturbed": True}


def test_reasons_are_text_and_what_is_not_there_is_not_recorded(tiny, capsys):
    directory = finish(tiny(method="er"))
    done = call(capsys, "memory", "forget", directory.path, 11, "--reason", "[/done] [red]")
    assert done["forgotten"] == [11]
    with pytest.raises(SystemExit) as stop:
        main(["memory", "list", str(directory.path)])
    assert stop.value.code == 0
    assert "[/done] [red]" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["memory", "forget", str(directory.path), "--label", "77"])
    assert stop.value.code == 2
    assert "holds no such example" in capsys.readouterr().err
    assert len(call(capsys, "memory", "list", directory.path)["removed"]) == 1


def test_the_content_is_gone_from_the_checkpoint(tiny):
    """The bytes of the picture, looked for in all files of the run."""
    experiment = stopped(tiny, 12, method="er", benchmark="split-digits")
    directory = experiment.directory
    latest, _ = load_latest(directory.path / "checkpoint")
    slot = int(np.nonzero(latest.arrays["memory/ids"] >= 0)[0][0])
    example = int(latest.arrays["memory/ids"][slot])
    picture = latest.arrays["memory/inputs"][slot].tobytes()

    def holding():
        return [
            p.name for p in directory.path.rglob("*") if p.is_file() and picture in p.read_bytes()
        ]

    assert holding()
    directory.forget([example])
    assert holding() == []


@pytest.mark.parametrize("method", ["er", "metasp-rehsel", "hal", "gdumb"])
@pytest.mark.parametrize("steps", [1, 7, 13])
def test_a_resumed_run_does_without(tiny, method, steps):
    """Stopped anywhere, made to forget some examples it has met and some it has not, the run goes
    on: no step, no memory and no table sees them again."""
    experiment = stopped(tiny, steps, method=method, settings=SHORT.get(method, {}))
    directory, tasks = experiment.directory, experiment.benchmark.tasks
    order = np.random.default_rng(steps)
    gone = {int(i) for task in tasks for i in order.choice(task.train.ids, 5, replace=False)}
    directory.forget(sorted(gone))
    again = tiny(method=method, settings=SHORT.get(method, {}))
    steps_seen = []
    for event in again.events():
        seen = {*again.trainer.learner.memory.ids.tolist()}
        assert not seen & gone
        assert not {*again.trainer.learner.current.ids.tolist()} & gone
        steps_seen.append(isinstance(event, StepTaken))
        if isinstance(event, TaskFinished):
            assert not gone & {*event.memory["id"]}
            assert not gone & {*event.influence.get("id", [])}
    assert any(steps_seen)
    assert directory.result()["forgotten"] == {"examples": 25, "undisturbed": False}
    for name, ids in ids_everywhere(directory).items():
        assert not ids & gone, name


def test_a_resumed_run_that_forgot_still_resumes_exactly(tiny):
    """Forgotten in the middle of an epoch; then stopped at every step or at none: the same bits."""
    ends = []
    for folder, often in (("one", False), ("two", True)):
        experiment = stopped(tiny, 9, folder, method="metasp")
        ids = experiment.benchmark.tasks[1].train.ids
        experiment.directory.forget([int(i) for i in ids[::7]])
        for _ in range(40 if often else 1):
            try:
                again = tiny(folder, {"checkpoint_seconds": 0.0}, method="metasp")
                calls = iter(range(10**6))
                again.stop = lambda calls=calls, often=often: often and next(calls) >= 3
                finish(again)
                break
            except Interrupted:
                continue
        latest, _ = load_latest(again.directory.path / "checkpoint")
        ends.append({k: v.tobytes() for k, v in latest.arrays.items()})
        assert outcome(again.directory)
    assert ends[0] == ends[1]


@pytest.mark.parametrize("method", ["er", "joint"])
def test_the_epoch_goes_on_with_the_others(tiny, method):
    """After forgetting, the rest of the epoch has each remaining example at most once, and all but
    less than a batch of those still due."""
    experiment = stopped(tiny, 3, method=method, limit_per_class=None, batch_size=16)
    trainer = experiment.trainer
    ids = trainer.tasks[0].train.ids
    due = ids[trainer.order].tolist()
    taken, left = due[: 16 * trainer.position.step], due[16 * trainer.position.step :]
    gone = {*taken[:5], *left[:9]}
    trainer.forget(torch.tensor(sorted(gone)))
    now = trainer.tasks[0].train.ids[trainer.order].tolist()
    rest = now[16 * trainer.position.step :]
    assert not {*rest} & ({*taken} | gone)
    assert len(rest) == len({*rest}) > len(left) - 9 - 16


def test_an_erasure_cut_short_is_finished_when_the_run_is_opened(tiny, monkeypatch):
    experiment = stopped(tiny, 12, method="er")
    directory = experiment.directory
    gone = directory.memory()["id"][:3]

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("metasp.store.forget._erase_from_checkpoints", killed)
        with pytest.raises(KeyboardInterrupt):
            directory.forget(gone)
    assert set(directory.memory()["id"]) & {*gone}
    assert forgotten(directory.path) == sorted(gone)
    complete(directory.path)
    assert not set(directory.memory()["id"]) & {*gone}


def test_an_erasure_cut_short_is_finished_before_anything_is_shown(tiny, monkeypatch, capsys):
    directory = finish(tiny(method="er"))
    held = directory.memory()["id"]
    with monkeypatch.context() as patch:
        patch.setattr("metasp.store.forget._erase_from_checkpoints", cut_short)
        with pytest.raises(KeyboardInterrupt):
            directory.forget(held[:3])
    assert set(held[:3]) <= set(directory.memory()["id"])
    listed = call(capsys, "memory", "list", directory.path)
    assert {row["id"] for row in listed["memory"]} == set(held[3:])


def cut_short(*_):
    raise KeyboardInterrupt


def test_a_run_being_written_cannot_be_changed(tiny):
    directory = stopped(tiny, 2, method="er").directory
    with locked(directory.path / "lock"), pytest.raises(UserError, match="another process"):
        directory.forget([1])
    assert records(directory.path) == []


def test_forgetting_again_adds_to_the_record_and_force_keeps_it(tiny):
    directory = finish(tiny(method="er"))
    directory.forget([3], "first")
    directory.forget([4, 3], "second")
    assert [record["ids"] for record in records(directory.path)] == [[3], [3, 4]]
    again = finish(tiny(options={"force": True}, method="er"))
    assert forgotten(again.path) == [3, 4]
    assert again.result()["forgotten"] == {"examples": 2, "undisturbed": False}


def test_a_task_with_nothing_left_is_one_sentence(tiny):
    experiment = stopped(tiny, 2, method="er")
    experiment.directory.forget(experiment.benchmark.tasks[2].train.ids.tolist())
    with pytest.raises(UserError, match="all examples of task 3 were forgotten"):
        finish(tiny(method="er"))


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

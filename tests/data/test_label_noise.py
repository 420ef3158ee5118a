"""Wrong labels on purpose: how many, which, kept for the score, unseen by training."""

import inspect
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from metasp.data import load_benchmark
from metasp.experiment import prepare
from metasp.methods import METHODS
from metasp.spec import RunSpec
from metasp.train import build_trainer
from metasp.train.trainer import Trainer
from tests.helpers import finish

TRUE = {
    int(i): int(y)
    for task in load_benchmark(RunSpec()).tasks
    for i, y in zip(task.train.ids, task.train.labels)
}


@pytest.mark.parametrize("scope", ["task", "seen"])
@pytest.mark.parametrize("part", [0.3, 1.0])
def test_exactly_so_many_labels_are_wrong(scope: str, part: float) -> None:
    found = load_benchmark(RunSpec(label_noise=part, label_noise_scope=scope))
    clean = load_benchmark(RunSpec())
    table = found.flipped
    seen: set[int] = set()
    for task, honest in zip(found.tasks, clean.tasks):
        seen |= set(task.classes)
        wrong = {
            int(i): int(y)
            for i, y in zip(task.train.ids, task.train.labels)
            if int(y) != TRUE[int(i)]
        }
        assert len(wrong) == round(part * len(task.train))
        listed = {
            i: y for t, i, y in zip(table["task"], table["id"], table["label"]) if t == task.index
        }
        assert wrong == listed
        assert set(wrong.values()) <= (seen if scope == "seen" else set(task.classes))
        if scope == "seen" and task.index == 4:
            assert set(wrong.values()) == seen
        assert torch.equal(task.test.labels, honest.test.labels)
        assert torch.equal(task.train.ids, honest.train.ids)
    assert table["true_label"] == [TRUE[i] for i in table["id"]]


def test_the_wrong_classes_are_drawn_evenly() -> None:
    found = load_benchmark(RunSpec(tasks=1, label_noise=1.0))
    for true in range(10):
        given = [
            y for y, t in zip(found.flipped["label"], found.flipped["true_label"]) if t == true
        ]
        counts = torch.bincount(torch.tensor(given), minlength=10)
        assert counts[true] == 0
        # About 143 draws over 9 classes: 16 expected, and 5 standard deviations are 19.
        assert int(counts.max()) < 35
        assert int((counts > 0).sum()) == 9


def test_the_run_keeps_the_table_and_training_never_sees_it(tmp_path: Path) -> None:
    spec = RunSpec(label_noise=0.3, epochs=1, tasks=2, limit_per_class=10, threads=1, device="cpu")
    experiment = prepare(spec, tmp_path)
    for _ in experiment.events():
        pass
    stored = pq.read_table(experiment.directory.path / "noise.parquet").to_pydict()
    assert stored == experiment.benchmark.flipped
    assert experiment.directory.noise() == stored
    wrong = dict(zip(stored["id"], stored["label"]))
    memory = pq.read_table(experiment.directory.path / "memory" / "task-001.parquet").to_pydict()
    assert set(memory["id"]) & set(wrong)
    for number, label in zip(memory["id"], memory["label"]):
        assert label == wrong.get(number, TRUE[number])
    # The trainer is given tasks, and a task has no true labels; their share is for controls alone.
    given_to_it = list(inspect.signature(Trainer.__init__).parameters)[1:]
    assert given_to_it == ["learner", "method", "tasks", "lr", "score", "told"]
    assert [name for name, each in METHODS.items() if "told" in each.Settings.model_fields] == [
        "loss-filter"
    ]
    trainer = build_trainer(experiment.spec, experiment.benchmark)
    assert not trainer.told
    for task in trainer.tasks:
        given = {int(i): int(y) for i, y in zip(task.train.ids, task.train.labels)}
        assert all(given[i] == wrong[i] for i in given if i in wrong)
    clean = prepare(spec.with_(label_noise=0.0), tmp_path)
    for _ in clean.events():
        pass
    assert not (clean.directory.path / "noise.parquet").exists()
    assert clean.directory.noise() is None


@pytest.mark.parametrize("method", ["er", "agem"])  # agem does not update as the others do
def test_low_loss_keeps_wrong_labels_out_of_the_memory(tmp_path: Path, method: str) -> None:
    """A third of what a random memory holds is wrong, as in the stream."""
    share = {}
    for name in ("class-balanced", "low-loss"):
        spec = RunSpec(
            label_noise=0.3, epochs=3, tasks=2, memory=60, method=method, selection=name,
            limit_per_class=60, threads=1, device="cpu",
        )  # fmt: skip
        directory = finish(prepare(spec, tmp_path))
        wrong = set(directory.noise()["id"])
        held = pq.read_table(directory.path / "memory" / "task-001.parquet").to_pydict()
        assert len(held["id"]) == 60
        assert {held["label"].count(y) for y in range(10)} == {6}
        share[name] = sum(i in wrong for i in held["id"]) / 60
    assert share["low-loss"] < share["class-balanced"] / 2


def test_hal_has_one_anchor_per_class_though_old_labels_come_again(tmp_path: Path) -> None:
    spec = RunSpec(
        method="hal", label_noise=0.3, label_noise_scope="seen", tasks=2, epochs=1, memory=20,
        limit_per_class=10, settings={"anchor_steps": 2}, threads=1, device="cpu",
    )  # fmt: skip
    experiment = prepare(spec, tmp_path)
    trainer = build_trainer(experiment.spec, experiment.benchmark)
    assert {*trainer.tasks[1].train.labels.tolist()} > {*trainer.tasks[1].classes}
    for _ in trainer.run():
        pass
    assert len(trainer.method.state_dict()["anchors"]) == 10

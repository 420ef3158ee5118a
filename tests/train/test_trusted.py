"""Verified examples in a run: out of the stream, in the memory, and through a kill."""

import pytest
import torch

from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.events import Noted
from metasp.experiment import prepare
from metasp.methods import METHODS
from metasp.spec import RunSpec
from tests.helpers import finish
from tests.methods.factories import digits, small

NOISY = {"label_noise": 0.6, "label_noise_kind": "one-sided", "trusted": 2}


def test_they_have_their_true_label_and_are_not_in_the_stream():
    spec = small("er", **NOISY)
    benchmark = load_benchmark(spec)
    truth = dict(zip(benchmark.source.train.ids.tolist(), benchmark.source.labels.tolist()))
    flipped = set(benchmark.flipped["id"])
    for task in benchmark.tasks:
        ids, labels = task.trusted.ids.tolist(), task.trusted.labels.tolist()
        assert [truth[i] for i in ids] == labels
        assert torch.tensor(labels).bincount(minlength=10)[list(task.classes)].tolist() == [2, 2]
        assert not set(ids) & set(task.train.ids.tolist())
        assert not set(ids) & flipped  # nobody scores what was verified
        assert len(ids) + len(task.train) == 24
    clean = load_benchmark(small("er", **{**NOISY, "trusted": 0}))
    assert sorted(clean.flipped["id"]) != sorted(flipped) or not flipped
    assert set(flipped) <= set(clean.flipped["id"])


@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.selection])
def test_they_stay_in_memory_while_their_class_has_room(method):
    trainer = digits(method, **NOISY, memory=40)
    for event in trainer.run():
        if type(event).__name__ == "TaskFinished":
            memory = trainer.learner.memory
            wanted = torch.cat([task.trusted.ids for task in trainer.tasks[: event.task + 1]])
            held = memory.ids[memory.pinned]
            assert sorted(held.tolist()) == sorted(wanted.tolist())
            assert len(memory) <= 40


@pytest.mark.parametrize("method", ["finetune", "joint"])
def test_without_a_memory_they_are_learned_with_the_rest(method):
    trainer = digits(method, **NOISY)
    assert all(len(task.train) == 24 and task.trusted is None for task in trainer.tasks)


def test_more_of_them_than_a_share_are_left_out_and_that_is_said():
    trainer = digits("er", **{**NOISY, "trusted": 5}, memory=20)
    notes = [event for event in trainer.run() if isinstance(event, Noted)]
    assert notes
    assert "verified examples are more than their class's share" in notes[0].text
    memory = trainer.learner.memory
    assert memory.labels[memory.pinned].bincount(minlength=10).tolist() == [2] * 10


def test_a_task_of_which_nothing_would_be_left_is_refused():
    with pytest.raises(UserError, match="leave nothing of task 1 to learn from"):
        load_benchmark(small("er", trusted=12))


def test_every_example_of_every_task_has_its_scores(tmp_path):
    """Also in the first task, which has no past and so no influence."""
    spec = RunSpec(method="er", limit_per_class=12, epochs=2, memory=40, threads=1)
    run = finish(prepare(spec, tmp_path))
    tables = run.scores()
    assert sorted(tables) == [0, 1, 2, 3, 4]
    benchmark = load_benchmark(spec)
    for task in benchmark.tasks:
        found = tables[task.index]
        assert sorted(found["id"]) == sorted(task.train.ids.tolist())
        assert min(found["count"]) >= 2
        assert all(value is not None and value >= 0 for value in found["loss"])
        assert set(found["predicted"]) <= set(range(10))
        kept = {i for i, held in zip(found["id"], found["kept"]) if held}
        assert kept == set(run.memory_tables()[task.index]["id"]) & set(task.train.ids.tolist())
    run.forget([tables[2]["id"][0]])
    assert tables[2]["id"][0] not in run.scores()[2]["id"]


def test_their_influence_is_told_with_their_label(tmp_path):
    """They are replayed, so they are measured: without a label the table would be damaged."""
    spec = small("metasp", trusted=2, limit_per_class=6, tasks=2, memory=30)
    run = finish(prepare(spec, tmp_path))
    given, found = run.trusted(), run.influence()
    label = dict(zip(given["id"], given["label"]))
    rows = [i for i, name in enumerate(found["id"]) if name in label]
    assert rows
    for i in rows:
        assert found["label"][i] == label[found["id"][i]]
        assert found["source"][i] == "memory"
        assert found["predicted"][i] in range(10)

"""Streams that are dirty in several ways: counted by hand, beside the clean stream."""

from collections import Counter
from typing import Any

import pytest
import torch

from metasp.data import Benchmark, load_benchmark
from metasp.data.noise import with_label_noise
from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.types import Examples, Streams, Task

CLEAN = load_benchmark(RunSpec(limit_per_class=100))
TRUE = dict(zip(CLEAN.source.train.ids.tolist(), CLEAN.source.labels.tolist()))
ROW = dict(zip(CLEAN.source.train.ids.tolist(), range(len(TRUE))))


def dirty(**settings: Any) -> Benchmark:
    return load_benchmark(RunSpec(limit_per_class=100, **settings))


def confusion(found: Benchmark, task: int) -> Counter[tuple[int, int]]:
    """How often each true class carries each label in a task."""
    train = found.tasks[task].train
    return Counter((TRUE[i], y) for i, y in zip(train.ids.tolist(), train.labels.tolist()))


@pytest.mark.parametrize("kind", ["one-sided", "pairs", "junk"])
def test_what_holds_for_every_kind(kind: str) -> None:
    found = dirty(label_noise=0.6, label_noise_kind=kind, imbalance=0.3)
    table = found.flipped
    listed = {i: (t, y) for t, i, y in zip(table["task"], table["id"], table["label"])}
    assert len(listed) == len(table["id"])
    assert table["true_label"] == [TRUE[i] for i in table["id"]]
    wrong = {}
    everyone: list[int] = []
    for task, honest in zip(found.tasks, CLEAN.tasks):
        train = task.train.take(torch.arange(len(task.train)))
        for i, y in zip(train.ids.tolist(), train.labels.tolist()):
            if y != TRUE[i]:
                wrong[i] = (task.index, y)
        rows = [ROW[i] for i in train.ids.tolist()]
        assert torch.equal(train.inputs, CLEAN.source.inputs[rows])  # an id is its picture
        assert torch.equal(task.test.labels, honest.test.labels)
        assert torch.equal(task.test.rows, honest.test.rows)
        assert task.classes == honest.classes
        everyone += train.ids.tolist()
    assert wrong == listed
    assert len(set(everyone)) == len(everyone)
    again, other = (
        dirty(label_noise=0.6, label_noise_kind=kind, imbalance=0.3, seed=seed).flipped
        for seed in (1231, 7)
    )
    assert again == table
    assert other != table


def test_one_sided_gives_the_first_of_two_neighbours_the_label_of_the_second() -> None:
    found = dirty(label_noise=0.6, label_noise_kind="one-sided")
    for task in range(5):
        first, second = 2 * task, 2 * task + 1
        assert confusion(found, task) == {
            (first, first): 40, (first, second): 60, (second, second): 100,
        }  # fmt: skip


def test_one_sided_follows_the_order_of_the_task_and_spares_the_odd_one_out() -> None:
    found = dirty(
        label_noise=0.5, label_noise_kind="one-sided", classes_per_task=(5, 5),
        class_order="9,8,7,6,5,4,3,2,1,0",
    )  # fmt: skip
    assert confusion(found, 0) == {
        (9, 9): 50, (9, 8): 50, (8, 8): 100, (7, 7): 50, (7, 6): 50, (6, 6): 100, (5, 5): 100,
    }  # fmt: skip


def test_the_rare_class_is_the_one_whose_label_is_given() -> None:
    """Majority: of what is called the second class, 60 of 90 are wrong; of the pilot, 6 of 7."""
    for share, wrong in ((0.3, 60 / 90), (0.1, 6 / 7)):
        found = dirty(label_noise=0.6, label_noise_kind="one-sided", imbalance=share)
        for task in range(5):
            first, second = 2 * task, 2 * task + 1
            counts = confusion(found, task)
            assert counts == {
                (first, first): 40, (first, second): 60, (second, second): round(100 * share),
            }  # fmt: skip
            called = counts[first, second] + counts[second, second]
            assert counts[first, second] / called == pytest.approx(wrong)


def test_imbalance_alone_takes_away_and_changes_nothing_else() -> None:
    found = dirty(imbalance=0.3)
    assert found.flipped == {}
    for task, honest in zip(found.tasks, CLEAN.tasks):
        first, second = task.classes
        assert Counter(task.train.labels.tolist()) == {first: 100, second: 30}
        kept = torch.isin(honest.train.ids, task.train.ids)
        assert torch.equal(task.train.ids, honest.train.ids[kept])
        rare = honest.train.labels == second
        assert not kept[rare][:30].all()  # drawn, not the first ones
    assert Counter(dirty(imbalance=0.001).tasks[0].train.labels.tolist()) == {0: 100, 1: 1}


@pytest.mark.parametrize("scope", ["task", "seen"])
def test_pairs_have_one_wrong_label_per_class(scope: str) -> None:
    found = dirty(label_noise=0.4, label_noise_kind="pairs", label_noise_scope=scope, tasks=2)
    partner: dict[int, set[int]] = {}
    for task in range(2):
        for (true, label), count in confusion(found, task).items():
            assert count == (60 if true == label else 40)
            if true != label:
                partner.setdefault(true, set()).add(label)
                allowed = range(5 * (task + 1)) if scope == "seen" else found.tasks[task].classes
                assert label in allowed
    assert sorted(partner) == list(range(10))
    assert {len(labels) for labels in partner.values()} == {1}
    if scope == "seen":
        assert any(min(partner[label]) < 5 for label in range(5, 10))


def test_a_class_that_comes_again_is_mistaken_for_the_same_one() -> None:
    found = load_benchmark(
        RunSpec(benchmark="rotated-digits", label_noise=0.3, label_noise_kind="pairs")
    )
    pairs = set(zip(found.flipped["true_label"], found.flipped["label"]))
    assert len(pairs) == 10
    assert set(found.flipped["task"]) == set(range(5))


def test_junk_keeps_the_labels_and_brings_examples_of_any_other_class() -> None:
    found = dirty(label_noise=0.4, label_noise_kind="junk")
    strange: Counter[int] = Counter()
    for task, honest in zip(found.tasks, CLEAN.tasks):
        assert torch.equal(task.train.labels, honest.train.labels)
        counts = confusion(found, task.index)
        for label in task.classes:
            assert counts[label, label] == 60
            guests = {true: n for (true, y), n in counts.items() if y == label and true != label}
            assert sum(guests.values()) == 40
            assert len(guests) >= 7  # 40 draws over 9 classes: of all tasks, not of its own alone
            strange.update(guests)
    # Each example is in the stream once, so each class leaves its place as often as it is left.
    assert strange == dict.fromkeys(range(10), 40)


def tiny_stream(*counts: int) -> list[Task]:
    """One task whose class k has counts[k] examples."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    examples = Examples.of(torch.arange(len(labels))[:, None].float(), labels)
    return [Task(0, tuple(range(len(counts))), examples, examples)]


@pytest.mark.parametrize("counts", [(1, 1), (6, 6), (3, 2, 1), (5, 5, 5), (10, 4, 6)])
def test_junk_works_to_the_last_example(counts: tuple[int, ...]) -> None:
    """Even where all are exchanged and a class is half of them, none stays with its own."""
    for seed in range(20):
        (task,) = with_label_noise(tiny_stream(*counts), 1.0, "junk", "task", Streams(seed)["x"])
        true = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        assert sorted(task.train.ids.tolist()) == list(range(sum(counts)))
        assert torch.equal(task.train.labels, true)
        assert not (true[task.train.ids] == task.train.labels).any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"label_noise": 0.4, "label_noise_kind": "one-sided", "tasks": 10}, "task 1 has one cl"),
        ({"label_noise": 0.4, "label_noise_kind": "pairs", "tasks": 10}, "task 1 has one class"),
        ({"label_noise": 0.001, "label_noise_kind": "pairs", "tasks": 10}, "task 1 has one class"),
        ({"imbalance": 0.4, "tasks": 10}, "task 1 has one class.*leave out --imbalance"),
        ({"imbalance": 0.0}, "imbalance must be greater than 0"),
        ({"imbalance": 1.5}, "imbalance must be between 0 and 1"),
        ({"label_noise_kind": "one-side"}, "did you mean 'one-sided'"),
        (
            {"label_noise": 0.4, "label_noise_kind": "one-sided", "label_noise_scope": "seen"},
            "does not apply to one-sided noise: leave it out",
        ),
        (
            {"label_noise": 0.4, "label_noise_kind": "junk", "label_noise_scope": "seen"},
            "does not apply to junk noise: leave it out",
        ),
    ],
)
def test_what_a_stream_cannot_have_is_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_benchmark(RunSpec(**settings))


def test_junk_of_a_stream_that_is_mostly_one_class_is_refused() -> None:
    with pytest.raises(UserError, match=r"one class has more than half .*: use --label-noise-kind"):
        with_label_noise(tiny_stream(5, 2, 2), 1.0, "junk", "task", Streams(1)["x"])

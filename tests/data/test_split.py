import pytest
import torch

from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.spec import RunSpec


def test_digits_are_dealt_without_loss_or_overlap():
    bench = load_benchmark(RunSpec())
    assert [task.classes for task in bench.tasks] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    ids = torch.cat([task.train.ids for task in bench.tasks])
    assert len(ids) == len(set(ids.tolist())) == len(bench.source.inputs)
    assert sum(len(task.test) for task in bench.tasks) == len(bench.source.test_inputs)
    for task in bench.tasks:
        assert (
            set(task.train.labels.tolist()) == set(task.classes) == set(task.test.labels.tolist())
        )
    assert bench.source.inputs.dtype == torch.uint8


def test_ids_do_not_hang_on_limit_or_order():
    """The picture behind an id is the same whatever the split."""
    full = load_benchmark(RunSpec())
    picture = {int(i): full.source.inputs[r] for t in full.tasks
               for i, r in zip(t.train.ids, t.train.rows)}  # fmt: skip
    other = load_benchmark(RunSpec(limit_per_class=7, class_order="shuffled", tasks=2, seed=3))
    assert {len(task.train) for task in other.tasks} == {35}
    assert [t.classes for t in other.tasks] != [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]
    for task in other.tasks:
        rows = task.train.take(torch.arange(len(task.train)))
        for image, i in zip(rows.inputs, rows.ids):
            assert torch.equal(image, picture[int(i)])


def test_a_limit_is_of_train_examples_alone():
    full, limited = load_benchmark(RunSpec()), load_benchmark(RunSpec(limit_per_class=3))
    for whole, task in zip(full.tasks, limited.tasks):
        assert task.train.labels.bincount().tolist()[-2:] == [3, 3]
        assert torch.equal(task.test.rows, whole.test.rows)
        assert torch.equal(task.test.labels, whole.test.labels)
        assert len(task.test) > 60


def test_a_split_that_does_not_fit_is_refused():
    with pytest.raises(UserError, match="choose one of 1, 2, 5, 10"):
        load_benchmark(RunSpec(tasks=3))

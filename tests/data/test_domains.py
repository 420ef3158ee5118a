"""Domain-incremental streams: the same classes in every task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metasp.data import load_benchmark
from metasp.data.digits import ANGLES, digits
from metasp.errors import UserError
from metasp.experiment import prepare
from metasp.spec import RunSpec
from tests.data.factories import noise_picture, png, write_parquet


def test_rotated_digits() -> None:
    found = load_benchmark(RunSpec(benchmark="rotated-digits"))
    upright = digits()
    assert len(found.tasks) == len(ANGLES) == 5
    for task, angle in zip(found.tasks, ANGLES):
        assert task.classes == tuple(range(10))
        assert len(task.train) == len(upright.labels)
        assert torch.equal(task.train.labels, upright.labels)
        assert torch.equal(task.test.labels, upright.test_labels)
        shown = task.train.take(torch.arange(200)).inputs
        turned = upright.inputs[:200]
        if angle == 90:  # exact: a quarter turn moves pixels, it does not mix them
            assert torch.equal(shown, torch.rot90(turned, 1, (2, 3)))
        elif angle == 0:
            assert torch.equal(shown, turned)
        else:
            assert not torch.equal(shown, turned)
    ids = torch.cat([task.train.ids for task in found.tasks])
    assert len(ids.unique()) == len(ids)
    assert torch.equal(ids % 1797, upright.train.ids.repeat(5))
    assert found.shared_classes
    assert not load_benchmark(RunSpec(tasks=5)).shared_classes


def test_by_order_train_and_test_come_from_the_same_stretch(tmp_path: Path) -> None:
    inputs = np.tile(np.arange(200.0)[:, None], (1, 2))
    np.savez(tmp_path / "a.npz", inputs=inputs, labels=np.arange(200) % 2)
    spec = RunSpec(benchmark=f"arrays:{tmp_path / 'a.npz'}", split_by="order", tasks=4)
    found = load_benchmark(spec)
    for index, task in enumerate(found.tasks):
        stretch = range(50 * index, 50 * index + 50)
        values = torch.cat(
            [task.train.ids, task.test.take(torch.arange(len(task.test))).inputs[:, 0].long()]
        )
        assert sorted(values.tolist()) == list(stretch)
        assert task.classes == (0, 1)


def test_by_order_with_test_data_of_its_own(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"inputs": np.zeros((9, 2)), "labels": [0, 1, 0] * 3}
    np.savez(
        tmp_path / "a.npz", **arrays, test_inputs=np.ones((7, 2)), test_labels=[0, 1, 0, 1, 0, 1, 0]
    )
    found = load_benchmark(
        RunSpec(benchmark=f"arrays:{tmp_path / 'a.npz'}", split_by="order", tasks=3)
    )
    assert [task.train.ids.tolist() for task in found.tasks] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    rows = [task.test.rows.tolist() for task in found.tasks]
    assert rows == [[9, 10, 11], [12, 13], [14, 15]]  # after the nine of the train data


@pytest.fixture
def sites(tmp_path: Path) -> str:
    """Three sites of unequal size, in no order, two classes each."""
    site = [("oslo", "bonn", "kiel", "bonn")[row % 4] for row in range(80)]
    label = [row // 4 % 2 for row in range(80)]
    pictures = [png(noise_picture(row)) for row in range(80)]
    write_parquet(tmp_path / "set" / "all.parquet", pictures, label, ["ill", "well"], site=site)
    return f"folder:{tmp_path / 'set'}"


def test_by_column(sites: str) -> None:
    found = load_benchmark(RunSpec(benchmark=sites, split_by="column:site"))
    names = [("oslo", "bonn", "kiel", "bonn")[row % 4] for row in range(80)]
    assert found.source.domain_names == ("bonn", "kiel", "oslo")
    for task, name in zip(found.tasks, ("bonn", "kiel", "oslo")):
        assert {names[row] for row in task.train.ids.tolist()} == {name}
        assert {names[row] for row in task.test.rows.tolist()} == {name}
    limited = load_benchmark(RunSpec(benchmark=sites, split_by="column:site", limit_per_class=3))
    assert [torch.bincount(t.train.labels).tolist() for t in limited.tasks] == [[3, 3]] * 3
    grouped = load_benchmark(
        RunSpec(
            benchmark=sites, split_by="column:site", class_order="2,0,1", classes_per_task=(1, 2)
        )
    )
    assert {names[row] for row in grouped.tasks[0].train.ids.tolist()} == {"oslo"}
    assert {names[row] for row in grouped.tasks[1].train.ids.tolist()} == {"bonn", "kiel"}
    with pytest.raises(UserError, match="did you mean 'site'"):
        load_benchmark(RunSpec(benchmark=sites, split_by="column:sites"))
    with pytest.raises(UserError, match="3 values do not divide into 2 tasks"):
        load_benchmark(RunSpec(benchmark=sites, split_by="column:site", tasks=2))


@pytest.mark.parametrize("name", ["greedy", "class-balanced", "task-balanced", "ring", "reservoir"])
def test_the_memory_holds_every_domain(name: str, tmp_path: Path) -> None:
    spec = RunSpec(benchmark="rotated-digits", epochs=1, limit_per_class=20, memory=100,
                   selection=name, threads=1, device="cpu", backbone="mlp")  # fmt: skip
    experiment = prepare(spec, tmp_path)
    for _ in experiment.events():
        pass
    assert experiment.trainer is not None
    memory = experiment.trainer.learner.memory
    held = torch.bincount(memory.tasks[memory.occupied], minlength=5)
    if name == "reservoir":
        assert (held > 0).all()
    else:
        assert held.tolist() == [20] * 5
    if name in ("greedy", "class-balanced"):
        groups = memory.tasks * 10 + memory.labels
        assert torch.bincount(groups[memory.occupied], minlength=50).tolist() == [2] * 50
    result = experiment.directory.result()
    assert result is not None
    assert result["class_il"]["matrix"] == result["task_il"]["matrix"]
    assert experiment.directory.spec().split_by == "column:angle"

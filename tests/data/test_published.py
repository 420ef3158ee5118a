"""The published benchmarks against the pictures themselves, read here without metasp."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from metasp.cli import main
from metasp.data import Benchmark, load_benchmark
from metasp.spec import RunSpec


def raw(data: Path, name: str, split: str, image: str, label: str) -> tuple[list[Any], Any]:
    """Pictures and labels straight from the Parquet file."""
    table = pq.read_table(data / name / "data" / f"{split}-00000-of-00001.parquet")
    pictures = [Image.open(io.BytesIO(row["bytes"])) for row in table[image].to_pylist()]
    return pictures, np.asarray(table[label])


def load(data: Path, name: str, **settings: Any) -> Benchmark:
    return load_benchmark(RunSpec(benchmark=name, **settings), data)


def test_cifar10(data: Path) -> None:
    found = load(data, "split-cifar10")
    pictures, labels = raw(data, "cifar10", "train", "img", "label")
    tests, test_labels = raw(data, "cifar10", "test", "img", "label")
    assert (len(found.source.labels), len(found.source.test_labels)) == (10_000, 2_000)
    assert [task.classes for task in found.tasks] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert found.source.class_names[3] == "cat"
    everything = np.stack([np.asarray(picture) for picture in pictures])
    mean = everything.reshape(-1, 3).mean(0) / 255
    assert np.abs(mean - [0.4914, 0.4822, 0.4465]).max() < 0.005
    assert found.source.mean == (0.4914, 0.4822, 0.4465)
    assert found.source.std == (0.2470, 0.2435, 0.2615)
    assert (found.transform.crop_padding, found.transform.flip) == (4, True)
    for task in found.tasks:
        batch = task.train.take(torch.arange(len(task.train)))
        # An id is the row of the original, for life.
        assert np.array_equal(batch.inputs.permute(0, 2, 3, 1).numpy(), everything[batch.ids])
        assert np.array_equal(batch.labels.numpy(), labels[batch.ids])
    originals = np.stack([np.asarray(picture) for picture in tests]).transpose(0, 3, 1, 2)
    shown = torch.cat([t.test.take(torch.arange(len(t.test))).inputs for t in found.tasks])
    # Tasks come in order of class, the rows of each in order.
    order = np.concatenate([np.flatnonzero(test_labels // 2 == task) for task in range(5)])
    assert np.array_equal(shown.numpy(), originals[order])


def test_ids_do_not_move_with_limits_and_orders(data: Path) -> None:
    whole = load(data, "split-cifar10").source
    for settings in (
        {"limit_per_class": 20},
        {"class_order": "shuffled", "seed": 5},
        {"class_order": "9,8,7,6,5,4,3,2,1,0", "tasks": 2, "limit_per_class": 3},
        {"classes_per_task": (4, 3, 3)},
        {"split_by": "order", "tasks": 4},
    ):
        for task in load(data, "split-cifar10", **settings).tasks:
            batch = task.train.take(torch.arange(min(50, len(task.train))))
            assert torch.equal(batch.inputs, whole.inputs[batch.ids]), settings
            assert torch.equal(batch.labels, whole.labels[batch.ids]), settings


@pytest.mark.slow
def test_cifar100(data: Path) -> None:
    found = load(data, "split-cifar100")
    assert len(found.tasks) == 10
    assert all(len(task.classes) == 10 for task in found.tasks)
    assert found.source.mean == (0.5071, 0.4867, 0.4408)
    assert found.source.std == (0.2675, 0.2565, 0.2761)
    assert found.source.class_names[:2] == ("apple", "aquarium_fish")
    pictures, labels = raw(data, "cifar100", "test", "img", "fine_label")
    assert torch.equal(found.source.test_labels, torch.tensor(labels))
    last = found.source.test.take(torch.tensor([1999])).inputs[0]
    assert np.array_equal(last.permute(1, 2, 0).numpy(), np.asarray(pictures[1999]))


@pytest.mark.slow
def test_mini_imagenet_is_pooled_and_split_by_class(data: Path) -> None:
    found = load(data, "split-mini-imagenet")
    pictures, labels = raw(data, "mini_imagenet", "train", "image", "label")
    assert pictures[0].size == (84, 84)
    assert found.source.shape == (3, 32, 32)
    assert [len(task.classes) for task in found.tasks] == [20] * 5
    train, test = found.source.train, found.source.test
    assert set(torch.bincount(found.source.labels).tolist()) == {48}
    assert set(torch.bincount(found.source.test_labels).tolist()) == {12}
    assert set(train.ids.tolist()).isdisjoint(test.rows.tolist())
    assert sorted(train.ids.tolist() + test.rows.tolist()) == list(range(6000))
    assert np.array_equal(found.source.labels.numpy(), labels[train.ids])
    for row in (0, 1000, 4799):
        small = pictures[train.ids[row]].resize((32, 32), Image.Resampling.BILINEAR)
        shown = train.take(torch.tensor([row])).inputs[0].permute(1, 2, 0)
        assert np.array_equal(shown.numpy(), np.asarray(small.convert("RGB")))
    # The split is not one of the run's random choices.
    other = load(data, "split-mini-imagenet", seed=99)
    assert torch.equal(other.source.test.rows, test.rows)


@pytest.mark.slow
def test_fashion_mnist(data: Path) -> None:
    found = load(data, "split-fashion-mnist")
    assert (len(found.source.labels), len(found.source.test_labels)) == (60_000, 10_000)
    assert found.source.shape == (1, 28, 28)
    assert (found.transform.crop_padding, found.transform.flip) == (0, False)
    train = found.source.inputs[found.source.rows].double() / 255
    assert abs(float(train.mean()) - 0.2860) < 1e-4
    assert abs(float(train.std()) - 0.3530) < 1e-4
    assert (found.source.mean, found.source.std) == ((0.2860,), (0.3530,))
    assert found.source.class_names[0] == "T-shirt/top"


@pytest.mark.slow
def test_another_size_and_grey(data: Path) -> None:
    found = load(data, "split-cifar10", image_size=16, colour="grey", limit_per_class=5)
    pictures, _ = raw(data, "cifar10", "train", "img", "label")
    small = pictures[4].convert("L").resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(found.source.inputs[4, 0].numpy(), np.asarray(small))
    train = found.source.inputs[found.source.rows].double() / 255
    assert found.source.mean[0] == pytest.approx(float(train.mean()), abs=1e-4)
    assert found.source.std[0] == pytest.approx(float(train.std()), abs=1e-4)


def test_the_list_says_what_is_where(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("METASP_DATA", raising=False)
    monkeypatch.setenv("METASP_CACHE", str(tmp_path))
    rows = {}
    for place in ([], ["--data", str(data)]):
        with pytest.raises(SystemExit) as ended:
            main(["list", "benchmarks", "--json", *place])
        assert ended.value.code == 0
        listed = json.loads(capsys.readouterr().out)["benchmarks"]
        rows[len(place)] = {row["name"]: row for row in listed}
    assert rows[0]["split-digits"]["on this machine"].startswith("yes")
    assert rows[0]["split-cifar100"]["on this machine"].startswith("no")
    there = rows[2]["split-cifar100"]
    assert there["on this machine"] == f"yes ({data / 'cifar100'})"
    assert (there["classes"], there["image"]) == ("100", "32×32 rgb")
    assert there["tasks"] == "10 × 10 classes"
    assert "uoft-cs/cifar100" in there["where from"]

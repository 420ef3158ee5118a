"""Chances that a label is wrong are what they say, on data sets that nobody made for it."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from metasp import ContinualLearner

ROOT = Path(__file__).parents[2]


def digits():
    data = load_digits()
    inputs = torch.tensor(data.data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return inputs, torch.tensor(data.target)


def fashion():
    given = os.environ.get("METASP_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    if not (folder / "fashion_mnist").is_dir():
        pytest.skip("Fashion-MNIST is not on this machine: name its folder with METASP_DATA")
    (file,) = (folder / "fashion_mnist" / "data").glob("train-*.parquet")
    table = pq.ParquetFile(file).iter_batches(5000).__next__()
    pictures = [Image.open(io.BytesIO(row["bytes"])) for row in table["image"].to_pylist()]
    inputs = np.stack([np.array(picture.resize((14, 14))) for picture in pictures])
    return torch.tensor(inputs[:, None]).float() / 255, torch.tensor(table["label"].to_pylist())


def net(inputs, classes):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(inputs.shape[1], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes),
    )  # fmt: skip


def flipped(labels, pair, part, draw):
    """Labels of two classes, a part of which is the other one's."""
    wrong = torch.rand(len(labels), generator=draw) < part
    return torch.where(wrong, sum(pair) - labels, labels), wrong


def judged(inputs, labels, verified, seed):
    """Chances and truth of arrivals of five tasks of two classes, each judged before it came, after
    as many other examples were learned; three in ten labels are wrong in both."""
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=draw)
    learned, arriving = order.chunk(2)
    settings = {"memory": 200, "epochs": 6, "lr": 0.1, "seed": seed}
    learner = ContinualLearner(net(inputs, 10), "metasp-robust", **settings)
    chances, truth = [], []
    for pair in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)):
        mine = learned[torch.isin(labels[learned], torch.tensor(pair))]
        few = torch.cat([mine[labels[mine] == label][:verified] for label in pair])
        rest = mine[~torch.isin(mine, few)]
        given, _ = flipped(labels[rest], pair, 0.3, draw)
        trusted = (inputs[few], labels[few]) if verified else None
        learner.learn((inputs[rest], given), trusted=trusted, progress=False)
        new = arriving[torch.isin(labels[arriving], torch.tensor(pair))]
        given, wrong = flipped(labels[new], pair, 0.3, draw)
        table = learner.judge((inputs[new], given))
        chances += table["wrong"].to_pylist()
        truth += wrong.tolist()
    return np.array(chances), np.array(truth)


@pytest.mark.slow
@pytest.mark.parametrize("data", [digits, fashion])
def test_of_those_called_wrong_with_nine_in_ten_about_nine_in_ten_are(data):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [judged(*data(), verified=5, seed=seed) for seed in (301, 302)]
    finally:
        torch.set_num_threads(threads)
    chances, truth = (np.concatenate(part) for part in zip(*found))
    near = (chances > 0.85) & (chances < 0.95)
    assert near.sum() >= 30
    assert 0.8 <= truth[near].mean() <= 1.0
    low = chances < 0.15
    assert truth[low].mean() < 0.1
    assert chances.mean() == pytest.approx(truth.mean(), abs=0.05)

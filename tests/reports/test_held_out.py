"""Labels judged by networks that did not train on them: counts, folds and the cleaned list."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import metasp
from metasp.cli import main
from metasp.data import load_benchmark
from metasp.noise_rate import judge_out_of_sample, rate_of
from metasp.spec import RunSpec
from metasp.store import open_run
from metasp.train.cross_fit import out_of_sample

CLASSES, SIZE = 3, 240


def drawn(spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around the corners of a triangle, with their classes."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, CLASSES, SIZE)
    corners = np.array([[0, 0], [4, 0], [0, 4]])
    return corners[classes] + spread * random.normal(size=(SIZE, 2)), classes


def flipped(classes: np.ndarray, share: float, pairs: bool, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    steps = 1 if pairs else random.integers(1, CLASSES, len(classes))
    return np.where(random.random(len(classes)) < share, (classes + steps) % CLASSES, classes)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("pairs", [False, True])
def test_the_count_is_that_of_labels_flipped_on_purpose(share, pairs):
    """Outputs are the log-densities of the true classes, of a temperature that is not told."""
    points, classes = drawn(1.0)
    labels = flipped(classes, share, pairs)
    corners = np.array([[0, 0], [4, 0], [0, 4]])
    outputs = -0.3 * ((points[:, None] - corners) ** 2).sum(2)
    judged = judge_out_of_sample(outputs, labels)
    rate = rate_of(judged, labels, np.full(SIZE, np.nan), CLASSES)
    truth = (labels != classes).mean()
    assert rate.share == pytest.approx(truth, abs=0.04)
    assert rate.low <= truth <= rate.high
    assert rate.known
    wrong = judged.wrong > 0.5
    assert (judged.suggested[wrong] == classes[wrong]).mean() > 0.9 if wrong.any() else share == 0


def test_outputs_that_say_nothing_give_no_number():
    _, classes = drawn(1.0)
    outputs = np.random.default_rng(5).normal(size=(SIZE, CLASSES))
    judged = judge_out_of_sample(outputs, classes)
    assert not rate_of(judged, classes, np.full(SIZE, np.nan), CLASSES).known


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A CSV file without test data, 15% of whose labels are wrong."""
    folder = tmp_path_factory.mktemp("dirty")
    points, classes = drawn(0.7)
    labels = flipped(classes, 0.15, pairs=False)
    frame = pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "label": labels})
    frame["label"] = [f"=class {label}" for label in labels]
    frame.to_csv(folder / "points.csv", index=False)
    return folder


def run_of(folder: Path) -> Path:
    spec = {"method": "er", "tasks": 1, "epochs": 30, "threads": 1, "lr": 0.1, "memory": 20}
    made = metasp.run(f"csv:{folder / 'points.csv'}", runs=folder / "runs", **spec)
    return Path(made["run"])


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return int(ended.value.code or 0)


def test_no_network_judges_what_it_trained_on(folder):
    """What is said of an example does not change with its own label; of others it does."""
    spec = RunSpec(
        benchmark=f"csv:{folder / 'points.csv'}",
        method="er",
        tasks=1,
        epochs=2,
        lr=0.1,
        device="cpu",
    )
    stream = load_benchmark(spec, None)
    train = stream.tasks[0].train
    labels = train.labels.clone()
    labels[7] = (labels[7] + 1) % CLASSES
    other = replace(stream.tasks[0], train=replace(train, labels=labels))
    first, second = (
        out_of_sample(spec, made, 3, lambda fold: None)
        for made in (stream, replace(stream, tasks=[other]))
    )
    assert set(first.folds.tolist()) == {-1, 0, 1, 2}
    assert len(first.ids) == SIZE, "the held-out fifth is judged too"
    same_fold = first.folds == first.folds[7]
    assert torch.equal(first.outputs[same_fold], second.outputs[same_fold])
    assert not torch.equal(first.outputs[~same_fold], second.outputs[~same_fold])


def test_folds_are_kept_and_the_cleaned_list_has_every_example(folder, tmp_path, capsys):
    run = run_of(folder)
    assert call("suspects", run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["between"] is None
    assert call("suspects", run, "--folds", "3", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    low, high = told["interval"]
    _, classes = drawn(0.7)
    truth = (flipped(classes, 0.15, pairs=False) != classes).mean()
    assert low <= truth <= high
    assert told["expected"] / told["examples"] == pytest.approx(truth, abs=0.04)
    assert open_run(run).held_out() is not None
    identity = told["suspects"][0]["id"]
    (run / "verified.csv").write_text(f"id,label\n{identity},class 1\n".replace("class", "'=class"))
    for target in (tmp_path / "cleaned.csv", tmp_path / "cleaned.parquet"):
        assert call("suspects", run, "--cleaned", target) == 0
    frame = pd.read_parquet(tmp_path / "cleaned.parquet").set_index("id")
    assert len(frame) == SIZE == len((tmp_path / "cleaned.csv").read_text().splitlines()) - 1
    assert frame.loc[identity, ["verdict", "clean_label"]].tolist() == ["verified", "=class 1"]
    clean = frame["clean_label"] == [f"=class {label}" for label in classes]
    assert clean.drop(identity).mean() > 0.97, "the labels to go on with are nearly all right"
    assert "'=class" in (tmp_path / "cleaned.csv").read_text(), "no spreadsheet computes a name"
    text = capsys.readouterr()
    assert "networks that did not train on them" in text.out
    assert call("suspects", run, "--cleaned", tmp_path / "cleaned.txt") == 2
    assert call("suspects", run, "--folds", "1000") == 2

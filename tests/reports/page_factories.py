"""Runs to explore: real run directories with made-up influences, written by the store itself."""

from pathlib import Path

import numpy as np

from metasp.events import Evaluated, RunFinished, TaskFinished, TaskStarted
from metasp.reports.explorer import Examples
from metasp.spec import RunSpec
from metasp.store import RunDir

NAMES = ("<script>window.pwned=1</script>", "=1+1", 'a "quoted", one', "plain & simple")
COMPLETE = {
    "benchmark": "made",
    "method": "metasp-rehsel",
    "data_digest": "made-in-a-test",
    "tasks": 2,
    "selection": "rehsel",
    "rehearse_last": 5,
    "width": 16,
    "lr": 0.1,
    "device": "cpu",
    "threads": 1,
    "memory": 20,
}


def made_influence(size: int, seed: int, task: int = 1) -> dict:
    """Columns of one task: the new examples are ids size.., those from memory come before."""
    random = np.random.default_rng(seed)
    ids = np.concatenate([np.arange(10), np.arange(size, 2 * size - 10)])
    label = np.where(ids < size, ids % 2, 2 + ids % 2)
    wrong = random.random(size) < 0.3
    return {
        "task": [task] * size,
        "id": ids.tolist(),
        "label": label.tolist(),
        "source": ["memory" if i < size else "new" for i in ids],
        "stability": (random.standard_t(3, size) * 0.01).tolist(),
        "plasticity": (random.standard_t(3, size) * 0.01).tolist(),
        "fused": (random.standard_t(3, size) * 0.01).tolist(),
        "loss": random.exponential(1, size).tolist(),
        "count": random.integers(1, 5, size).tolist(),
        "kept": (random.random(size) < 0.1).tolist(),
        "predicted": np.where(wrong, (label + 1) % 4, label).tolist(),
    }


def made_scores(ids: list[int], labels: list[int], seed: int) -> dict:
    """How examples fared: the margin of about a quarter speaks against the label."""
    random = np.random.default_rng(seed)
    margin = random.normal(2, 3, len(ids))
    guess = np.where(margin < 0, (np.asarray(labels) + 1) % 4, labels)
    return {
        "id": ids,
        "label": labels,
        "count": random.integers(1, 5, len(ids)).tolist(),
        "loss": random.exponential(1, len(ids)).tolist(),
        "margin": margin.tolist(),
        "weight": [1.0] * len(ids),
        "odds": [None] * len(ids),
        "wrong": [None] * len(ids),
        "score": [None] * len(ids),
        "predicted": guess.tolist(),
        "kept": [False] * len(ids),
        "fate": ["learned"] * len(ids),
    }


def made_memory(ids: list[int], task: int) -> dict:
    random = np.random.default_rng(len(ids) + task)
    return {
        "slot": list(range(len(ids))),
        "id": ids,
        "label": [i % 4 for i in ids],
        "task": [task] * len(ids),
        "entered": list(range(len(ids))),
        "influence": [float("nan") if i % 5 == 0 else random.normal() for i in ids],
    }


def make_run(
    folder: Path,
    size: int = 60,
    seed: int = 1,
    influence: bool = True,
    finish: bool = True,
    scores: bool = False,
    **changes,
) -> RunDir:
    """Two tasks; the memory holds ids 0..19 after the first, and 10..29 after the second. The
    train examples are ids ..size (classes 0 and 1) and size.. (classes 2 and 3)."""
    spec = RunSpec(**{**COMPLETE, "seed": seed, **changes})
    run = RunDir(folder / spec.name)
    matrix = [[0.9, None], [0.7, 0.8]]
    with run.open(spec) as writer:
        writer.append(TaskStarted(0, (0, 1), size))
        writer.append(Evaluated(0, True, (0,), (0.1,), (0.5,)))
        writer.append(Evaluated(0, False, (0,), (0.9,), (0.95,)))
        told = [{}, {}]
        if scores:
            for task in (0, 1):
                ids = list(range(task * size, (task + 1) * size))
                labels = [2 * task + i % 2 for i in ids]
                told[task] = made_scores(ids, labels, seed + task)
        writer.append(TaskFinished(0, made_memory(list(range(20)), 0), {}, told[0]))
        writer.append(TaskStarted(1, (2, 3), size))
        if finish:
            columns = made_influence(size, seed) if influence else {}
            writer.append(Evaluated(1, True, (1,), (0.0,), (0.5,)))
            writer.append(Evaluated(1, False, (0, 1), (0.7, 0.8), (0.9, 0.9)))
            writer.append(TaskFinished(1, made_memory(list(range(10, 30)), 1), columns, told[1]))
            writer.append(RunFinished(2, 3.0))
            result = {name: {"matrix": matrix, "before": [0.1, 0.0]}
                      for name in ("class_il", "task_il")}  # fmt: skip
            about = {"class_names": list(NAMES), "seconds": {"total": 3.0}}
            writer.finish({"spec": spec.as_dict(), **about, **result})
        else:
            writer.checkpoint({}, {})
    return run


def made_pictures(size: int, side: int = 8, channels: int = 1, seed: int = 5) -> Examples:
    """Smooth pictures with grain, as photographs have, for the ids of `make_run`."""
    random = np.random.default_rng(seed)
    coarse = random.integers(20, 236, (2 * size, channels, 4, 4), dtype=np.uint8)
    smooth = coarse.repeat(side // 4, 2).repeat(side // 4, 3)
    images = smooth + random.integers(0, 20, smooth.shape, dtype=np.uint8)
    return Examples(np.arange(2 * size), np.arange(2 * size), images)

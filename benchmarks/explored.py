"""A made-up run of any size, and what the explorer's page of it costs."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from metasp.events import Evaluated, RunFinished, TaskFinished, TaskStarted
from metasp.metrics import SCENARIOS
from metasp.reports.explorer import Examples, build_page
from metasp.spec import RunSpec
from metasp.store import RunDir

CLASSES = 4  # half of them in each of two tasks
SIDE = 28  # of a picture
MEMORY = 200
USUAL = 10_000  # examples that a page shows unless told otherwise


def explorer(size: int) -> dict[str, float]:
    """Seconds to read a run of so many examples and make its page, and the page's megabytes: with
    as many examples as it shows by itself, and with all."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        run, pictures = make_run(Path(folder), size), make_pictures(size)
        for words, limit in (("usual", USUAL), ("all", size)):
            begun = time.process_time()
            built = build_page([run], pictures, limit=limit)
            found[f"page, {words}"] = time.process_time() - begun
            found[f"page, {words}, MB"] = len(built.content) / 2**20
    return found


def make_run(folder: Path, size: int) -> RunDir:
    """A finished run of two tasks, with scores of all examples and influences of the second."""
    spec = RunSpec(
        benchmark="made", method="metasp", data_digest="made", tasks=2, selection="reservoir",
        rehearse_last=5, width=16, device="cpu", threads=1, memory=MEMORY,
    )  # fmt: skip
    run, half, random = RunDir(folder / spec.name), size // 2, np.random.default_rng(0)
    with run.open(spec) as writer:
        for task in (0, 1):
            ids = np.arange(task * half, (task + 1) * half)
            kept = memory_of(random.choice((task + 1) * half, min(MEMORY, half), replace=False))
            writer.append(TaskStarted(task, (2 * task, 2 * task + 1), half))
            writer.append(Evaluated(task, True, (task,), (0.1,), (0.5,)))
            tested = tuple(range(task + 1))
            writer.append(
                Evaluated(task, False, tested, (0.8,) * len(tested), (0.9,) * len(tested))
            )
            told = influences(ids, random) if task else {}
            writer.append(TaskFinished(task, kept, told, scores(ids, random)))
        writer.append(RunFinished(2, 3.0))
        matrix = [[0.8, None], [0.8, 0.8]]
        outcome = {name: {"matrix": matrix, "before": [0.1, 0.1]} for name in SCENARIOS}
        writer.finish({"spec": spec.as_dict(), "seconds": {"total": 3.0}, **outcome})
    return run


def label_of(ids: np.ndarray[Any, Any]) -> list[int]:
    return [int(label) for label in ids % CLASSES]


def memory_of(ids: np.ndarray[Any, Any]) -> dict[str, Any]:
    count = len(ids)
    return {
        "slot": list(range(count)), "id": ids.tolist(), "label": label_of(ids),
        "task": [0] * count, "entered": list(range(count)), "influence": [0.1] * count,
    }  # fmt: skip


def influences(ids: np.ndarray[Any, Any], random: np.random.Generator) -> dict[str, Any]:
    count = len(ids)
    measures = ("stability", "plasticity", "fused", "loss")
    return {
        "task": [1] * count, "id": ids.tolist(), "label": label_of(ids),
        "source": ["new"] * count, "count": [1] * count, "kept": [False] * count,
        "predicted": label_of(ids), **{k: random.normal(size=count).tolist() for k in measures},
    }  # fmt: skip


def scores(ids: np.ndarray[Any, Any], random: np.random.Generator) -> dict[str, Any]:
    """About a quarter of the labels look wrong."""
    count, margin = len(ids), random.normal(2, 3, len(ids))
    guess = np.where(margin < 0, ids + 1, ids)
    return {
        "id": ids.tolist(), "label": label_of(ids), "count": [1] * count,
        "loss": random.exponential(1, count).tolist(), "margin": margin.tolist(),
        "weight": [1.0] * count, "odds": margin.tolist(), "score": [None] * count,
        "wrong": (margin < 0).astype(float).tolist(), "predicted": label_of(guess),
        "kept": [False] * count, "fate": ["learned"] * count,
    }  # fmt: skip


def make_pictures(size: int) -> Examples:
    """Smooth pictures with grain, as photographs have."""
    random = np.random.default_rng(5)
    coarse = random.integers(20, 236, (size, 1, 4, 4), dtype=np.uint8)
    smooth = coarse.repeat(SIDE // 4, 2).repeat(SIDE // 4, 3)
    images = smooth + random.integers(0, 20, smooth.shape, dtype=np.uint8)
    return Examples(np.arange(size), np.arange(size), images)

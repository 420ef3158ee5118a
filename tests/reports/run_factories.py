"""Run directories made in tests: real files with made-up numbers."""

from pathlib import Path

import numpy as np

from metasp.methods import METHODS, by_name, configured, usual
from metasp.metrics import scores
from metasp.spec import RunSpec
from metasp.store import RunDir

COMPLETE = {
    "data_digest": "made-in-a-test",
    "tasks": 3,
    "split_by": "class",
    "rehearse_last": 5,
    "width": 16,
    "lr": 0.1,
    "device": "cpu",
    "threads": 1,
}


def spec_of(**changes) -> RunSpec:
    """A spec as a run stores it, with every default filled in."""
    method = changes.get("method", RunSpec().method)
    recipe = METHODS[method]
    spec = RunSpec(**{"selection": recipe.selection, **COMPLETE, **changes})
    return spec.with_(settings=by_name(*configured(recipe, method, spec)))


def result_of(spec: RunSpec, level: float, version: str = "0.1.0", tasks: int = 3) -> dict:
    """A lower triangle of accuracies around a level, different for each seed."""
    random = np.random.default_rng([spec.seed, round(1000 * level)])
    result: dict = {"spec": spec.as_dict(), "defaults": usual(spec)}
    for scenario in ("class_il", "task_il"):
        matrix = [
            [float(np.clip(level + random.normal(0, 0.02), 0, 1)) if k <= t else None
             for k in range(tasks)]
            for t in range(tasks)
        ]  # fmt: skip
        result[scenario] = {
            "matrix": matrix,
            "before": [0.0] * tasks,
            **scores(matrix, [0.0] * tasks),
        }
    seconds = {"total": 10.0 * level, "per_step": {"finetune": 0.001, "rehearse": 0.01 * level}}
    result["seconds"] = {**seconds, "steps": {"finetune": 5, "rehearse": 5}}
    result["environment"] = {"metasp": version}
    return result


def make_run(runs: Path, level: float = 0.5, version: str = "0.1.0", **changes) -> Path:
    spec = spec_of(**changes)
    run = RunDir(runs / spec.name)
    with run.open(spec) as writer:
        writer.finish(result_of(spec, level, version))
    return run.path


def varied_settings(folder: Path) -> Path:
    """MetaSP with each of three settings in three sizes, beside methods without them."""
    for seed in (1, 2):
        make_run(folder, 0.4, method="er", seed=seed)
        make_run(folder, 0.3, method="finetune", selection=None, memory=0, seed=seed)
        for k in (1, 2, 3):
            steps = {"pseudo_steps": k, "influence_last": 2}
            make_run(folder, 0.4 + k / 20, method="metasp", seed=seed, settings=steps)
            size = {"validation_old": 10.0 * k, "validation_new": 10.0 * k, "pseudo_steps": 1}
            make_run(folder, 0.4 + k / 20, method="metasp", seed=seed, settings=size)
            last = {"influence_last": 2 + k, "pseudo_steps": 1, "rule": "as-written"}
            make_run(folder, 0.4 + k / 20, method="metasp", seed=seed, settings=last)
    return folder


def ablated_selections(folder: Path) -> Path:
    """MetaSP with three selections for its memory, beside two methods of three seeds."""
    for seed in (1, 2, 3):
        make_run(folder, 0.6, method="metasp-rehsel", seed=seed, rehearse_last=2)
        make_run(folder, 0.3, method="er", seed=seed)
    for number, selection in enumerate(("random", "rehsel", "rehsel-without-cluster")):
        make_run(folder, 0.4 + 0.1 * number, method="metasp", selection=selection)
    return folder

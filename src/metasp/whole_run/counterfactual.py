"""Make a run again without some of its examples: executed, not predicted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from metasp.corrections import Corrections, words
from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.experiment import Experiment, prepare
from metasp.methods import method_named
from metasp.stateful import below
from metasp.store import RunDir
from metasp.store.files import sha256
from metasp.store.manifest import read_manifest, stored_content
from metasp.store.run_tables import FOLDERS, INFLUENCE, packed, read_table, task_of
from metasp.train import build_trainer
from metasp.train.reweighting import as_start
from metasp.types import Task
from metasp.whole_run.answer import why
from metasp.whole_run.queries import losses_of, queries_of

REPORT = "what-if.json"
Way = Literal["weight", "never"]
"""Keep the run's schedule and give the examples weight 0; or let them never have come."""


@dataclass(frozen=True)
class WhatIf:
    """A run without some examples, ready to be made.

    ids: of the examples; start: how many tasks are taken over from the other run."""

    original: RunDir
    experiment: Experiment
    ids: list[int]
    way: Way
    start: int


def prepare_without(run: RunDir, ids: Sequence[int], way: Way, data: Path | None) -> WhatIf:
    """Begin a run without these examples of a finished one, beside it: at the end of the last task
    before the first that has any of them, where a checkpoint was kept, or else at the start."""
    if not run.finished:
        raise UserError(f"{run.path} is not finished: let it finish by `metasp resume`.")
    spec = run.spec()
    tasks = load_benchmark(spec, data).tasks
    first = first_use(tasks, ids)
    if way == "weight":
        if not method_named(spec.method).kind.weighted_sum:
            raise UserError(
                f"the schedule of method {spec.method!r} cannot be kept, as its updates are no "
                "weighted sum of losses: use --as never."
            )
        changed = spec.with_(weightless=tuple(sorted({*spec.weightless, *ids})))
    else:
        without = spec.corrections.updated(Corrections(exclude=tuple(ids)))
        changed = spec.with_(**vars(without))
    experiment = prepare(changed, run.path.parent, data)
    start = 0
    if not experiment.directory.path.exists():
        start = take_over(run, experiment, same_tasks(tasks, experiment.benchmark.tasks, first))
    return WhatIf(run, experiment, sorted(ids), way, start)


def first_use(tasks: Sequence[Task], ids: Sequence[int]) -> int:
    """Return the first task that trains on any of the examples; all must be in some task."""
    wanted = torch.tensor(ids)
    unknown, first = {*ids}, len(tasks)
    for task in reversed(tasks):
        inside = wanted[torch.isin(wanted, task.ids)].tolist()
        unknown -= {*inside}
        first = task.index if inside else first
    if unknown:
        raise UserError(f"the run has no training examples with {words(sorted(unknown))}.")
    return first


def same_tasks(one: Sequence[Task], two: Sequence[Task], upto: int) -> int:
    """Return how many of the tasks up to one are the same in two streams."""
    for before, now in zip(one[:upto], two):
        for name in ("train", "test", "trusted", "validation"):
            parts = getattr(before, name), getattr(now, name)
            pairs = [(p.ids.tolist(), p.labels.tolist()) if p else None for p in parts]
            if pairs[0] != pairs[1]:
                return before.index
    return upto


def take_over(run: RunDir, experiment: Experiment, upto: int) -> int:
    """Store the last kept checkpoint after at most so many tasks as the beginning of a new run,
    with the log and the tables by then. Return how many tasks that is."""
    kept = [c for c in run.kept_checkpoints() if c.numbers["task"] <= upto]
    if not kept:
        return 0
    checkpoint, manifest = kept[-1], read_manifest(run.path)
    assert manifest is not None
    done = int(checkpoint.numbers["task"])
    files = {}
    for name in manifest.files:
        task = task_of(name) if name.split("/")[0] in FOLDERS else None
        if task is not None and task < done:
            files[name] = stored_content(run.path, name) or b""
    influence = read_table(run.path, "influence.parquet", INFLUENCE)
    if influence is not None:
        earlier = influence.filter(influence["task"].to_numpy() < done)
        files |= {"influence.parquet": packed(earlier)} if len(earlier) else {}
    log = manifest.logged(run.path)[: checkpoint.numbers["log"]]
    arrays = as_start(checkpoint.arrays) if experiment.spec.weightless else checkpoint.arrays
    with experiment.directory.open(experiment.spec) as writer:
        writer.begin_with(files, log)
        writer.checkpoint(arrays, checkpoint.numbers)
    return done


def changes_of(tasks: Sequence[int], values: Tensor) -> dict[str, Any]:
    """Return how the final losses change: of each task, by its number from 1, and their mean."""
    by_task = {task + 1: value for task, value in zip(tasks, values.tolist())}
    return {"total": float(values.mean()), "tasks": by_task}


def compare(made: WhatIf, data: Path | None) -> dict[str, Any]:
    """Return what was predicted and what was measured, with the report of the deletion, which the
    new run stores."""
    run, spec = made.original, made.original.spec()
    queries = queries_of(made.experiment.benchmark.tasks, "test", False)
    tasks = [query.task for query in queries]
    before, after = (final_model(directory) for directory in (run, made.experiment.directory))
    trainer = build_trainer(spec, made.experiment.benchmark)
    losses = []
    for arrays in (before, after):
        state = trainer.learner.model.state_dict()
        tensors = {k: torch.from_numpy(arrays[k]).view(t.shape) for k, t in state.items()}
        trainer.learner.model.load_state_dict(tensors)
        losses.append(losses_of(trainer.learner, trainer.learner.model, queries))
    measured = changes_of(tasks, losses[1] - losses[0])
    predicted = None
    if method_named(spec.method).kind.weighted_sum and not spec.weightless:
        answer = why(run, data)
        chosen = torch.isin(torch.tensor(answer.rows["id"].to_pylist()), torch.tensor(made.ids))
        predicted = changes_of(tasks, -answer.on_tasks[:, chosen].sum(1))
    found = {
        "run": str(made.experiment.directory.path),
        "without": made.ids,
        "as": made.way,
        "tasks_taken_over": made.start,
        "moment": datetime.now(UTC).isoformat(timespec="seconds"),
        "model_before": digest_of(before),
        "model_after": digest_of(after),
        "predicted": predicted,
        "measured": measured,
    }
    with made.experiment.directory.open(made.experiment.spec) as writer:
        writer.keep_file(REPORT, json.dumps(found, indent=1).encode())
        writer.manifest.write(made.experiment.directory.path)
    return found


def final_model(run: RunDir) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the network of a finished run, by the names of its state."""
    checkpoint = run.checkpoint()
    if checkpoint is None:
        raise UserError(f"{run.path} has no checkpoint: run it again with --force.")
    return below("model", checkpoint.arrays)


def digest_of(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Return the SHA-256 of a network's numbers."""
    return sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays)))

"""Judge every example of a run by networks that did not train on it.

The examples of all tasks are dealt into folds. For each fold a network is trained on all others, in
one task and by plain replay, and gives its outputs for those of the fold. Examples that were held
out of the user's own list as test data carry given labels too: all networks together judge them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metasp.data import Benchmark
from metasp.errors import UserError
from metasp.methods.odds import judge_labels
from metasp.noise_rate import judge_out_of_sample
from metasp.spec import RunSpec
from metasp.train.evaluate import all_scores
from metasp.train.from_spec import build_trainer, complete
from metasp.types import Examples, Streams, Task

TEST_FOLD = -1
OF_THE_METHOD = ("lr", "momentum", "weight_decay", "selection", "rehearse_last", "split_by")


class OutOfSample(NamedTuple):
    """Of each example (n,): id, task, label and fold (−1: held out for testing); and the outputs
    (n, classes) of networks that did not train on it."""

    ids: Tensor
    tasks: Tensor
    labels: Tensor
    folds: Tensor
    outputs: Tensor


def cross_fit(
    spec: RunSpec, stream: Benchmark, folds: int, on_fold: Callable[[int], None]
) -> Mapping[str, Sequence[Any]]:
    """Return a row per example of a run's stream, as columns: id, task, label, fold, those of a
    `Judgement`, and `odds`, the logarithm of the odds that its label is right."""
    ids, tasks, labels, fold_of, outputs = out_of_sample(spec, stream, folds, on_fold)
    nobody = torch.zeros(0, outputs.shape[1]), torch.zeros(0, dtype=torch.long)
    odds = judge_labels(outputs, labels, *nobody).odds
    judgement = judge_out_of_sample(outputs.numpy(), labels.numpy())._asdict()
    return {
        "id": ids.tolist(),
        "task": tasks.tolist(),
        "label": labels.tolist(),
        "fold": fold_of.tolist(),
        "odds": odds.tolist(),
        **{name: column.tolist() for name, column in judgement.items()},
    }


def out_of_sample(
    spec: RunSpec, stream: Benchmark, folds: int, on_fold: Callable[[int], None]
) -> OutOfSample:
    """Train a network for each fold and return what each says of the examples that it did not see.

    `spec` is that of the run; `on_fold` is called with the number of each fold as it begins.
    Verified examples are trained on in every fold, and not judged."""
    train = Examples.join([task.train for task in stream.tasks])
    if not 2 <= folds <= len(train) // 2:
        raise UserError(f"--folds is {folds}: give 2 to {len(train) // 2} for this run.")
    source = stream.source
    test = source.test
    if not (source.pooled and torch.equal(source.train.ids, source.train.rows)):
        test = test.only(torch.zeros(0, dtype=torch.long))
    trusted = [task.trusted for task in stream.tasks if task.trusted is not None]
    joined = Examples.join(trusted) if trusted else None
    everything = Task(0, tuple(range(source.classes)), train, source.test, joined)
    plain = spec.with_(
        **dict.fromkeys(OF_THE_METHOD), method="er", influence="none", settings={}, tasks=1,
        classes_per_task=(), validation=0.0,
    )  # fmt: skip
    order = torch.randperm(len(train), generator=Streams(spec.seed)["folds"])
    outputs, of_test = (torch.zeros(len(part), source.classes) for part in (train, test))
    fold_of = torch.zeros(len(train), dtype=torch.long)
    for fold in range(folds):
        on_fold(fold)
        rows = order[fold::folds].sort().values
        rest = replace(stream, tasks=[everything.without(train.ids[rows])])
        trainer = build_trainer(complete(plain, rest), rest)
        for _ in trainer.run():
            pass
        outputs[rows], fold_of[rows] = all_scores(trainer.learner, train.only(rows)), fold
        if len(test):
            of_test += all_scores(trainer.learner, test) / folds
    tasks = [torch.full((len(task.train),), task.index) for task in stream.tasks]
    return OutOfSample(
        torch.cat([train.ids, test.ids]),
        torch.cat([*tasks, torch.zeros(len(test), dtype=torch.long)]),
        torch.cat([train.labels, test.labels]),
        torch.cat([fold_of, torch.full((len(test),), TEST_FOLD)]),
        torch.cat([outputs, of_test]),
    )

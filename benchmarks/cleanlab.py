"""Wrong labels found by our scores, beside the cleanlab library, with the same network.

cleanlab ranks by probabilities of examples that the network was not trained on: five trainings,
each without a fifth; `adjusted` with its own correction for classes that the network is less sure
of. Ours are what one training notes of its own examples: with `er` the margin and the loss, with
`metasp-robust` also its score, each without and with ten verified examples per class. All rank the
same examples, those that nobody verified. `area` is the chance that a wrong label is ranked before
a right one, `precision` the part that is wrong of the N first, N being the number of wrong labels.

cleanlab is an extra (`libraries`) that is imported here, when the comparison is asked for."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Told, machine, part, silent
from metasp.benchmarks import Benchmark, load_benchmark
from metasp.engine import build_trainer
from metasp.engine.evaluate import all_scores
from metasp.engine.from_spec import complete
from metasp.events import TaskFinished
from metasp.spec import RunSpec
from metasp.suspects import NO_CLASS, Scores, quality, score_examples
from metasp.types import Streams

Array = np.ndarray[Any, Any]

FOLDS = 5
VERIFIED = 10  # per class
SEEDS = (301, 302, 303)
SIZE = 300  # train examples per class
HUMAN = {"labels": "cifar10_human/labels.parquet", "label_column": "human_label"}
NOISE: Mapping[str, Mapping[str, object]] = {
    "symmetric .2": {"label_noise": 0.2},
    "symmetric .4": {"label_noise": 0.4},
    "one-sided .6": {"label_noise": 0.6, "label_noise_kind": "one-sided"},
}
CASES: tuple[tuple[str, str, Mapping[str, object]], ...] = (
    *(("split-fashion-mnist", name, changes) for name, changes in NOISE.items()),
    *(("split-cifar10", name, changes) for name, changes in NOISE.items()),
    ("split-cifar10", "human", HUMAN),
)
TRAINING = {"tasks": 1, "epochs": 10, "width": 16, "threads": 1, "device": "cpu"}


@dataclass(frozen=True)
class Found:
    """How well one way to rank finds the wrong labels of one stream, over the seeds."""

    benchmark: str
    noise: str
    ranked_by: str
    area: tuple[float, ...]
    precision: tuple[float, ...]


def measure(
    data: Path | None = None,
    size: int = SIZE,
    seeds: Sequence[int] = SEEDS,
    told: Told = silent,
    cases: Sequence[tuple[str, str, Mapping[str, object]]] = CASES,
) -> list[Found]:
    """All ways on all streams, of `size` train examples per class."""
    torch.set_num_threads(1)
    found: list[Found] = []
    for number, (benchmark, noise, changes) in enumerate(cases):
        here = part(told, number / len(cases), (number + 1) / len(cases))
        runs = []
        for turn, seed in enumerate(seeds):
            spec = spec_of(benchmark, size, seed, changes)
            runs.append(detected(spec, data))
            here((turn + 1) / len(seeds))
        for way in runs[0]:
            numbers = [run[way] for run in runs]
            areas, hits = (tuple(float(each[k]) for each in numbers) for k in ("area", "precision"))
            found.append(Found(benchmark, noise, way, areas, hits))
    return found


def spec_of(benchmark: str, size: int, seed: int, changes: Mapping[str, object]) -> RunSpec:
    shared = {"benchmark": benchmark, "limit_per_class": size, "seed": seed}
    return RunSpec.from_dict({**TRAINING, **shared, "method": "er", **changes})


def detected(spec: RunSpec, data: Path | None) -> dict[str, Mapping[str, Any]]:
    """The quality of each way on one stream."""
    stream = load_benchmark(spec, data)
    wrong = set(stream.flipped["id"])
    robust = spec.with_(method="metasp-robust")
    trained = {}
    for name, own in (("er", spec), ("metasp-robust", robust)):
        trained[name] = (own, stream)
        trained[f"{name}, {VERIFIED} verified"] = with_verified(own, data)
    ways: dict[str, Scores] = {}
    for name, (own, benchmark) in trained.items():
        for way, scores in noted(own, benchmark):
            ways[f"{name}: {way}"] = scores
    ways |= {f"cleanlab: {name}": scores for name, scores in cleanlab_scores(spec, stream).items()}
    shared = set.intersection(*({*scores.ids.tolist()} for scores in ways.values()))
    found: dict[str, Mapping[str, Any]] = {}
    for name, scores in ways.items():
        found[name] = quality(only(scores, shared), name.rpartition(": ")[2], wrong & shared)
    return found


def with_verified(spec: RunSpec, data: Path | None) -> tuple[RunSpec, Benchmark]:
    verified = spec.with_(trusted=VERIFIED)
    return verified, load_benchmark(verified, data)


def noted(spec: RunSpec, stream: Benchmark) -> Iterable[tuple[str, Scores]]:
    """What one training notes of its examples, by each way that it knows."""
    trainer = build_trainer(complete(spec, stream), stream)
    columns = next(event for event in trainer.run() if isinstance(event, TaskFinished)).scores
    scores = score_examples({0: columns})
    for way in ("score", "margin", "loss"):
        if np.isfinite(scores.ways[way]).any():
            yield way, scores


def cleanlab_scores(spec: RunSpec, stream: Benchmark) -> dict[str, Scores]:
    """The label quality that cleanlab gives to probabilities of examples left out of training."""
    from cleanlab.rank import get_label_quality_scores

    train = stream.tasks[0].train
    ids, labels = train.ids.numpy(), train.labels.numpy()
    chances = out_of_sample(spec, stream)
    made = {}
    for method in ("self_confidence", "normalized_margin"):
        for adjusted in (False, True):
            given = get_label_quality_scores(
                labels, chances, method=method, adjust_pred_probs=adjusted
            )
            name = f"{method}, adjusted" if adjusted else method
            made[name] = as_scores(ids, labels, np.asarray(given), name)
    return made


def out_of_sample(spec: RunSpec, stream: Benchmark) -> Array:
    """The probabilities (n, classes) of each train example, by a network trained without it."""
    train = stream.tasks[0].train
    order = torch.randperm(len(train), generator=Streams(spec.seed)["folds"])
    chances = torch.zeros(len(train), stream.source.classes, dtype=torch.float64)
    for fold in range(FOLDS):
        rows = order[fold::FOLDS].sort().values
        rest = stream.tasks[0].without(train.ids[rows])
        part_of = Benchmark(stream.source, [rest], stream.transform, stream.flipped)
        trainer = build_trainer(complete(spec, part_of), part_of)
        for _ in trainer.run():
            pass
        outputs = all_scores(trainer.learner, train.only(rows))
        chances[rows] = outputs[:, : stream.source.classes].double().softmax(1)
    return chances.numpy()


def as_scores(ids: Array, labels: Array, values: Array, name: str) -> Scores:
    """Numbers that speak for each label, as `quality` takes them."""
    order = np.argsort(ids)
    tasks, guesses = np.zeros(len(ids), np.int64), np.full(len(ids), NO_CLASS)
    return Scores(ids[order], labels[order], tasks, guesses, {name: values[order]})


def only(scores: Scores, ids: set[int]) -> Scores:
    rows = np.isin(scores.ids, list(ids))
    return Scores(
        scores.ids[rows],
        scores.labels[rows],
        scores.tasks[rows],
        scores.predicted[rows],
        {way: values[rows] for way, values in scores.ways.items()},
        None if scores.margins is None else scores.margins[rows],
    )


def render(rows: Sequence[Found]) -> list[str]:
    lines = [f"{'stream':<22}{'noise':<15}{'ranked by':<45}{'area':>8}{'precision':>11}"]
    for row in rows:
        area, precision = statistics.mean(row.area), statistics.mean(row.precision)
        lines.append(
            f"{row.benchmark:<22}{row.noise:<15}{row.ranked_by:<45}{area:>8.3f}{precision:>11.3f}"
        )
    seeds = len(rows[0].area) if rows else 0
    lines.append(f"means of {seeds} seeds; cleanlab {version('cleanlab')}; {machine()}.")
    return lines


def as_json(rows: Sequence[Found]) -> dict[str, Any]:
    return {"cleanlab": [asdict(row) for row in rows], "machine": machine()}

"""Wrong labels found by our scores, beside the cleanlab library, with the same network.

cleanlab ranks by probabilities of examples that the network was not trained on: five trainings,
each without a fifth; `adjusted` with its own correction for classes that the network is less sure
of. Ours are what one training notes of its own examples: with `er` the odds, the margin and the
loss, with `metasp-robust` also its score, each without and with ten verified examples per class.
What a user is shown goes by the first of them. All rank the same examples, those that nobody
verified. `area` is the chance that a wrong label is ranked before a right one, `precision` the part
that is wrong of the N first, N being the number of wrong labels. `expected` is the share of labels
that is said to be wrong; of cleanlab, what its `num_label_issues` counts.

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
from metasp.data import Benchmark, load_benchmark
from metasp.events import TaskFinished
from metasp.label_scores import FARED, NO_CLASS, Scores, quality, score_examples
from metasp.spec import RunSpec
from metasp.train import build_trainer
from metasp.train.evaluate import all_scores
from metasp.train.from_spec import complete
from metasp.types import Streams

Array = np.ndarray[Any, Any]

CLEANLAB = "cleanlab"
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
MEASURED = ("area", "precision", "expected", "wrong")
TRAINING = {"tasks": 1, "epochs": 10, "width": 16, "threads": 1, "device": "cpu"}


@dataclass(frozen=True)
class Found:
    """How well one way to rank finds the wrong labels of one stream, over the seeds."""

    benchmark: str
    noise: str
    ranked_by: str
    shown: bool  # whether a user who asks for suspects is shown this ranking
    area: tuple[float, ...]
    precision: tuple[float, ...]
    expected: tuple[float, ...]
    wrong: tuple[float, ...]  # the true share


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
            columns = [tuple(float(each[name]) for each in numbers) for name in MEASURED]
            found.append(Found(benchmark, noise, way, numbers[0]["shown"], *columns))
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
    theirs, issues = cleanlab_scores(spec, stream)
    ways |= {f"{CLEANLAB}: {name}": scores for name, scores in theirs.items()}
    shared = set.intersection(*({*scores.ids.tolist()} for scores in ways.values()))
    found: dict[str, Mapping[str, Any]] = {}
    for name, scores in ways.items():
        way, same = name.rpartition(": ")[2], only(scores, shared)
        numbers = quality(same, way, wrong & shared)
        ours = not name.startswith(CLEANLAB)
        expected = same.expected(way) / len(shared) if ours else issues
        more = {"expected": expected, "wrong": len(wrong & shared) / len(shared)}
        found[name] = {**numbers, **more, "shown": ours and way == same.best}
    return found


def with_verified(spec: RunSpec, data: Path | None) -> tuple[RunSpec, Benchmark]:
    verified = spec.with_(trusted=VERIFIED)
    return verified, load_benchmark(verified, data)


def noted(spec: RunSpec, stream: Benchmark) -> Iterable[tuple[str, Scores]]:
    """What one training notes of its examples, by each way that it knows."""
    trainer = build_trainer(complete(spec, stream), stream)
    columns = next(event for event in trainer.run() if isinstance(event, TaskFinished)).scores
    scores = score_examples({0: columns})
    for way in FARED:
        if np.isfinite(scores.ways[way]).any():
            yield way, scores


def cleanlab_scores(spec: RunSpec, stream: Benchmark) -> tuple[dict[str, Scores], float]:
    """The label quality that cleanlab gives to probabilities of examples left out of training, and
    the share of labels that it counts as wrong."""
    from cleanlab.count import num_label_issues
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
    return made, num_label_issues(labels, chances) / len(labels)


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
        None if scores.wrong is None else scores.wrong[rows],
    )


def render(rows: Sequence[Found]) -> list[str]:
    lines = [
        f"{'stream':<22}{'noise':<15}{'ranked by':<45}{'area':>8}{'precision':>11}{'expected':>10}"
    ]
    for row in rows:
        area, precision, expected = map(statistics.mean, (row.area, row.precision, row.expected))
        lines.append(
            f"{row.benchmark:<22}{row.noise:<15}{row.ranked_by:<45}{area:>8.3f}{precision:>11.3f}"
            f"{expected:>10.1%}"
        )
    lines += ["", *render_shown(rows)]
    seeds = len(rows[0].area) if rows else 0
    lines.append(f"means of {seeds} seeds; cleanlab {version('cleanlab')}; {machine()}.")
    return lines


def render_shown(rows: Sequence[Found]) -> list[str]:
    """What the product shows of each stream, area and precision, beside the highest of each that
    any ranking of cleanlab has; `behind` where one of ours is lower. Below, the shares of labels
    expected to be wrong."""
    names = [CLEANLAB, *dict.fromkeys(row.ranked_by for row in rows if row.shown)]
    lines = ["shown by the product, area and precision, and the share of labels expected wrong:"]
    for benchmark, noise in dict.fromkeys((row.benchmark, row.noise) for row in rows):
        here = [row for row in rows if (row.benchmark, row.noise) == (benchmark, noise)]
        wrong = statistics.mean(here[0].wrong)
        lines.append(f"{benchmark}, {noise}: {wrong:.1%} are wrong")
        bar = (0.0, 0.0)
        for name in names:
            mine = [row for row in here if row.ranked_by.startswith(name)]
            area, precision = (
                max(statistics.mean(getattr(row, column)) for row in mine)
                for column in MEASURED[:2]
            )
            behind = [w for w, ours, best in zip(MEASURED, (area, precision), bar) if ours < best]
            bar = (area, precision) if name == CLEANLAB else bar
            said = statistics.mean(mine[0].expected)
            told = f"  {name:<43}{area:>8.3f}{precision:>8.3f}{said:>9.1%}"
            lines.append(told + (f"   behind in {' and '.join(behind)}" if behind else ""))
    return lines


def as_json(rows: Sequence[Found]) -> dict[str, Any]:
    return {"cleanlab": [asdict(row) for row in rows], "machine": machine()}

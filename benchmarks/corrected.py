"""What helps most once suspects are listed: leave them out, relabel them, verify some, or a mix.

Pictures, sentences and numbers with 30% of wrong labels (symmetric), in one task and in several, on
the development seeds. A run of `er` lists the suspects. Then the same stream is trained again: by
`er` without them, with the suggested labels, with sixty verdicts (three likely right examples of
each class, then the most suspect, each with its true label), and with verdicts that count more than
the list; and by `metasp-robust`. Class-IL A_∞ in percent. From these rows the commands were chosen
that `metasp suspects` and the explorer propose: the highest mean over all streams without verdicts,
and with them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.counts import spec_of, write_tables
from benchmarks.timing import Told, machine, silent
from metasp.data import Benchmark, load_benchmark
from metasp.events import Evaluated, TaskFinished
from metasp.label_scores import Scores, score_examples
from metasp.spec import RunSpec
from metasp.train import build_trainer
from metasp.train.from_spec import complete

SEEDS = (301, 302, 303)
STREAMS = (("digits", 1), ("digits", 5), ("intents of 15", 1), ("intents of 15", 5),
           ("gaussians", 1), ("gaussians", 3))  # fmt: skip
NOISE = {"label_noise": 0.3}
SURE, VERDICTS = 3, 60


@dataclass(frozen=True)
class Corrected:
    """The accuracy of each way on one stream, by seed."""

    stream: str
    way: str
    accuracy: tuple[float, ...]


def measure(
    data: Path | None = None, told: Told = silent, seeds: Sequence[int] = SEEDS
) -> list[Corrected]:
    """Train each stream again in all ways."""
    torch.set_num_threads(1)
    folder = Path("build/counts")
    write_tables(folder, data or Path())
    rows = []
    for number, (source, tasks) in enumerate(STREAMS):
        specs = [spec_of(source, seed, {**NOISE, "tasks": tasks}, folder) for seed in seeds]
        runs = [retrained(spec, data) for spec in specs]
        name = f"{source}, {tasks} task{'s' if tasks > 1 else ''}"
        for way in runs[0]:
            rows.append(Corrected(name, way, tuple(run[way] for run in runs)))
        told((number + 1) / len(STREAMS))
    return rows


def retrained(spec: RunSpec, data: Path | None) -> dict[str, float]:
    """Return the accuracy of each way on one stream."""
    stream, scores, plain = trained(spec, data)
    return {
        "er": plain,
        **{way: trained(spec.with_(**changes), data)[2] for way, changes in ways(stream, scores)},
    }


def ways(stream: Benchmark, scores: Scores) -> Iterator[tuple[str, Mapping[str, Any]]]:
    ids, labels, predicted = (
        column.tolist() for column in (scores.ids, scores.labels, scores.predicted)
    )
    truth = dict(zip(ids, labels)) | dict(zip(stream.flipped["id"], stream.flipped["true_label"]))
    order = scores.order("odds")
    listed = scores.suspects("odds").tolist()
    suspects = tuple(ids[row] for row in listed)
    suggested = tuple((ids[r], predicted[r]) for r in listed if predicted[r] != labels[r])
    sure = [
        row
        for label in np.unique(scores.labels)
        for row in [r for r in order[::-1].tolist() if labels[r] == label][:SURE]
    ]
    asked = [*sure, *(row for row in order.tolist() if row not in sure)][:VERDICTS]
    verified = tuple((ids[row], truth[ids[row]]) for row in asked)
    decided = {identity for identity, _ in verified}
    rest = tuple(identity for identity in suspects if identity not in decided)
    others = tuple(pair for pair in suggested if pair[0] not in decided)
    yield "er, exclude", {"exclude": suspects}
    yield "er, relabel", {"relabel": suggested}
    yield "metasp-robust", {"method": "metasp-robust"}
    yield "er, verified", {"verified": verified}
    yield "er, exclude and verified", {"exclude": rest, "verified": verified}
    yield "er, relabel and verified", {"relabel": others, "verified": verified}
    yield "metasp-robust, verified", {"method": "metasp-robust", "verified": verified}


def trained(spec: RunSpec, data: Path | None) -> tuple[Benchmark, Scores, float]:
    stream = load_benchmark(spec, data)
    tables, accuracy = {}, 0.0
    for event in build_trainer(complete(spec, stream), stream).run():
        if isinstance(event, TaskFinished):
            tables[event.task] = event.scores
        elif isinstance(event, Evaluated) and not event.before:
            accuracy = statistics.mean(event.class_il)
    return stream, score_examples(tables), accuracy


def render(rows: Sequence[Corrected]) -> list[str]:
    names = list(dict.fromkeys(row.way for row in rows))
    lines = []
    for stream in dict.fromkeys(row.stream for row in rows):
        lines.append(stream)
        for row in (row for row in rows if row.stream == stream):
            values = [100 * value for value in row.accuracy]
            lines.append(
                f"  {row.way:<28}{statistics.mean(values):>6.1f} ± {statistics.stdev(values):.1f}"
            )
    lines.append("mean over the streams")
    for name in names:
        means = [statistics.mean(row.accuracy) for row in rows if row.way == name]
        lines.append(f"  {name:<28}{100 * statistics.mean(means):>6.1f}")
    lines.append(f"means and deviations of {len(rows[0].accuracy)} seeds; {machine()}.")
    return lines


def as_json(rows: Sequence[Corrected]) -> dict[str, Any]:
    return {"corrected": [asdict(row) for row in rows], "machine": machine()}

"""A source dealt into tasks as a spec asks for: order, domains, limits and dirt."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from metasp.benchmarks.corrected import with_corrections
from metasp.benchmarks.deal import split
from metasp.benchmarks.noise import Flipped, with_imbalance, with_label_noise, wrong_labels
from metasp.benchmarks.source import Source
from metasp.benchmarks.transform import Transform
from metasp.benchmarks.trusted import with_trusted
from metasp.benchmarks.validation import with_validation
from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.types import Streams, Task


@dataclass(frozen=True)
class Benchmark:
    """A source dealt into tasks, with the transform its inputs need. `flipped` says which train
    labels are known to be wrong: for scoring afterwards, training sees only the tasks. `chosen`
    are settings of a spec that were fixed when the stream was made by hand."""

    source: Source
    tasks: list[Task]
    transform: Transform
    flipped: Flipped = field(default_factory=dict)
    chosen: Mapping[str, object] = field(default_factory=dict)

    @property
    def wrong_shares(self) -> list[dict[int | None, float]]:
        """The true share of wrong labels of each task: by given label, and under None of all."""
        wrong = set(self.flipped.get("id", []))
        found = []
        for task in self.tasks:
            amiss = torch.tensor([example in wrong for example in task.train.ids.tolist()]).double()
            labels = task.train.labels
            shares: dict[int | None, float] = {None: float(amiss.mean())}
            for label in sorted(set(labels.tolist())):
                shares[label] = float(amiss[labels == label].mean())
            found.append(shares)
        return found

    @property
    def trusted(self) -> dict[str, list[int]]:
        """Columns task, id and label of the examples that are given as verified, if any."""
        columns: dict[str, list[int]] = {"task": [], "id": [], "label": []}
        for task in self.tasks:
            if task.trusted is not None:
                columns["task"] += [task.index] * len(task.trusted)
                columns["id"] += task.trusted.ids.tolist()
                columns["label"] += task.trusted.labels.tolist()
        return columns if columns["id"] else {}

    @property
    def shared_classes(self) -> bool:
        """Whether later tasks have the classes of earlier ones (domain-incremental)."""
        classes = [label for task in self.tasks for label in task.classes]
        return len(set(classes)) < len(classes)


def assemble(
    source: Source, spec: RunSpec, chosen: Mapping[str, object] | None = None
) -> Benchmark:
    """The stream of a source under the settings of a spec."""
    streams = Streams(spec.seed)
    if spec.classes_per_task and spec.tasks not in (None, len(spec.classes_per_task)):
        raise UserError(
            f"--classes-per-task gives {len(spec.classes_per_task)} tasks and --tasks "
            f"{spec.tasks}: leave one of them out."
        )
    tasks = split(
        source,
        spec.tasks,
        spec.limit_per_class,
        streams["classes"] if spec.class_order == "shuffled" else None,
        sizes=spec.classes_per_task,
        order=given_order(spec.class_order),
        by=spec.split_by,
    )
    if spec.imbalance < 1:
        tasks = with_imbalance(tasks, spec.imbalance, streams["imbalance"])
    if spec.label_noise:
        kind = spec.label_noise_kind
        name = "label-noise" if kind == "symmetric" else f"label-noise-{kind}"
        tasks = with_label_noise(
            tasks, spec.label_noise, kind, spec.label_noise_scope, streams[name]
        )
    said = spec.corrections
    if said.ids:
        tasks = with_corrections(tasks, said, source.classes)
    true = source.labels if source.true_labels is None else source.true_labels
    if spec.trusted:
        known = (source.train.ids, true)
        tasks = with_trusted(tasks, spec.trusted, known, streams["trusted-examples"])
    if spec.validation:
        tasks = with_validation(tasks, spec.validation, streams["held-out"])
    flipped: Flipped = {}
    if spec.label_noise or source.true_labels is not None:
        flipped = wrong_labels(tasks, source.train.ids, true)
    transform = Transform(source.mean, source.std, source.crop_padding, source.flip)
    return Benchmark(source, tasks, transform, flipped, chosen or {})


def given_order(words: str) -> list[int] | None:
    """The numbers of a class order such as "3,0,2,1"; None where it is not one."""
    if words in ("fixed", "shuffled"):
        return None
    try:
        return [int(part) for part in words.split(",")]
    except ValueError:
        raise UserError(
            f"class_order must be fixed, shuffled, or numbers such as 3,0,2,1, not {words!r}."
        ) from None

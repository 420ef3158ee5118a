"""A source dealt into tasks as a spec asks for: order, domains, limits and dirt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from metasp.data.noise import Flipped, with_imbalance, with_label_noise, wrong_labels
from metasp.data.source import COLUMN, Source
from metasp.data.transform import Transform
from metasp.data.verified import with_corrections, with_trusted, with_validation
from metasp.errors import UserError, unknown
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
        all_shares = []
        for task in self.tasks:
            is_wrong = torch.tensor([i in wrong for i in task.train.ids.tolist()]).double()
            labels = task.train.labels
            shares: dict[int | None, float] = {None: float(is_wrong.mean())}
            for label in sorted(set(labels.tolist())):
                shares[label] = float(is_wrong[labels == label].mean())
            all_shares.append(shares)
        return all_shares

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
        classes = [*chain.from_iterable(task.classes for task in self.tasks)]
        return len(set(classes)) < len(classes)


def assemble(
    source: Source, spec: RunSpec, chosen: Mapping[str, object] | None = None
) -> Benchmark:
    """Return the stream of a source under the settings of a spec."""
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
        order=order_of(spec.class_order),
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
    if spec.corrections.ids:
        tasks = with_corrections(tasks, spec.corrections, source.classes)
    true = source.labels if source.true_labels is None else source.true_labels
    if spec.trusted:
        truth = (source.train.ids, true)
        tasks = with_trusted(tasks, spec.trusted, truth, streams["trusted-examples"])
    if spec.validation:
        tasks = with_validation(tasks, spec.validation, streams["held-out"])
    flipped: Flipped = {}
    if spec.label_noise or source.true_labels is not None:
        flipped = wrong_labels(tasks, source.train.ids, true)
    transform = Transform(source.mean, source.std, source.crop_padding, source.flip)
    return Benchmark(source, tasks, transform, flipped, chosen or {})


def order_of(text: str) -> list[int] | None:
    """Return the numbers of a class order such as "3,0,2,1"; None where it is not one."""
    if text in ("fixed", "shuffled"):
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(
            f"class_order must be fixed, shuffled, or numbers such as 3,0,2,1, not {text!r}."
        ) from None


def split(
    source: Source,
    tasks: int | None = None,
    limit_per_class: int | None = None,
    generator: torch.Generator | None = None,
    *,
    sizes: Sequence[int] = (),
    order: Sequence[int] | None = None,
    by: str | None = None,
) -> list[Task]:
    """Deal a source into tasks. By class: tasks of equal numbers of classes, or of `sizes`, in the
    given order, a shuffled one, or as numbered. By order or by a column (see `domains_of`) every
    task has all classes."""
    by = by or source.split_by
    domains, test_domains, names = domains_of(source, by, tasks)
    if by == "order":
        if sizes or order or generator is not None:
            raise UserError(
                "a stream split by order is cut into equal parts as it comes: leave out the "
                "classes per task and the class order."
            )
        groups: list[tuple[int, ...]] = [(number,) for number in range(len(names))]
    else:
        count, kind = (source.tasks, "classes") if by == "class" else (len(names), "values")
        groups = deal(arrange(len(names), generator, order), tasks or count, sizes, kind)
    dealt = []
    for index, group in enumerate(groups):
        inside = torch.isin(domains, torch.tensor(group))
        classes = group if by == "class" else tuple(range(source.classes))
        rows = rows_of(torch.where(inside, source.labels, -1), classes, limit_per_class)
        test_rows = torch.nonzero(torch.isin(test_domains, torch.tensor(group))).flatten()
        task = Task(index, classes, source.train.only(rows), source.test.only(test_rows))
        for examples, kind in ((task.train, "train"), (task.test, "test")):
            if by != "class" and len(examples) < 2:
                called = ", ".join(names[number] for number in group)
                raise UserError(
                    f"task {index + 1} ({called}) has {len(examples)} {kind} examples and needs "
                    "two or more: choose fewer tasks or another --split-by."
                )
        dealt.append(task)
    return dealt


def domains_of(source: Source, by: str, tasks: int | None) -> tuple[Tensor, Tensor, Sequence[str]]:
    """Return the domain of each train and each test row, and the names of the domains."""
    if by == "class":
        return source.labels, source.test_labels, source.class_names
    if by == "order":
        count = tasks or source.tasks
        train, test = len(source.labels), len(source.test_labels)
        # Before anything is made for each of them: a slip of the hand may be millions.
        if count > min(train, test) // 2:
            raise UserError(
                f"each of {count} tasks needs two or more train and test examples, and there are "
                f"{train} and {test}: choose fewer tasks or another --split-by."
            )
        if source.pooled:
            rows = source.train.rows, source.test.rows
            cuts = [row * count // (train + test) for row in rows]
        else:
            cuts = [torch.arange(size) * count // size for size in (train, test)]
        return cuts[0], cuts[1], [f"stretch {number + 1}" for number in range(count)]
    if not by.startswith(COLUMN):
        raise unknown("split_by", by, ("class", "order", "column:NAME"))
    if source.domains is None or source.test_domains is None:
        raise UserError(
            f"{source.name} has no column {by.removeprefix(COLUMN)!r} to split by: use "
            "--split-by class or order."
        )
    return source.domains, source.test_domains, source.domain_names


def deal(
    order: Sequence[int], tasks: int, sizes: Sequence[int] = (), kind: str = "classes"
) -> list[tuple[int, ...]]:
    """Cut an order into equal parts, or into parts of given sizes, or say why it does not fit."""
    count = len(order)
    if sizes:
        if min(sizes) < 1 or sum(sizes) != count:
            raise UserError(
                f"the {kind} per task {', '.join(map(str, sizes))} sum up to {sum(sizes)} and "
                f"there are {count} {kind}: give whole numbers from 1 that sum up to {count}."
            )
    elif tasks < 1 or tasks > count or count % tasks:
        fits = [str(n) for n in range(1, count + 1) if count % n == 0]
        raise UserError(
            f"{count} {kind} do not divide into {tasks} tasks: choose one of "
            f"{', '.join(fits)}, or give --classes-per-task."
        )
    sizes = sizes or [count // tasks] * tasks
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [tuple(order[end - size : end]) for size, end in zip(sizes, ends)]


def arrange(
    count: int, generator: torch.Generator | None, order: Sequence[int] | None
) -> list[int]:
    """Return an order of `count` classes: the given one, a shuffled one, or as numbered."""
    if order is not None and sorted(order) != list(range(count)):
        raise UserError(
            f"a class order must name each of the numbers 0 to {count - 1} once, not "
            f"{','.join(map(str, order))}."
        )
    if generator is not None:
        order = torch.randperm(count, generator=generator).tolist()
    return list(range(count) if order is None else order)


def rows_of(labels: Tensor, classes: Sequence[int], limit: int | None = None) -> Tensor:
    """Return the rows whose label is one of the classes, the first `limit` of each, in
    source order."""
    rows = [torch.nonzero(labels == label).flatten()[:limit] for label in classes]
    return torch.cat(rows).sort().values

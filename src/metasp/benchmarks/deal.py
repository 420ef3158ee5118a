"""The pure split of a source into tasks: by class, or by domain with the same classes in each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from metasp.benchmarks.request import COLUMN
from metasp.benchmarks.source import Source
from metasp.errors import UserError, unknown
from metasp.types import Task


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
    """The stream of a source. By class: tasks of equal numbers of classes, or of `sizes`, in the
    given order, a shuffled one, or as numbered. By order or column: see `split_domains`."""
    by = by or source.split_by
    if by == "class":
        groups = deal(arrange(source.classes, generator, order), tasks or source.tasks, sizes)
        return [
            Task(
                index=index,
                classes=group,
                train=source.train.only(rows_of(source.labels, group, limit_per_class)),
                test=source.test.only(rows_of(source.test_labels, group)),
            )
            for index, group in enumerate(groups)
        ]
    domains, test_domains, names = domains_of(source, by, tasks)
    parts: list[tuple[int, ...]]
    if by == "order":
        if sizes or order or generator is not None:
            raise UserError(
                "a stream split by order is cut into equal parts as it comes: leave out the "
                "classes per task and the class order."
            )
        parts = [(number,) for number in range(len(names))]
    else:
        parts = deal(arrange(len(names), generator, order), tasks or len(names), sizes, "values")
    return [
        domain_task(source, index, part, (domains, test_domains), names, limit_per_class)
        for index, part in enumerate(parts)
    ]


def domain_task(
    source: Source,
    index: int,
    part: Sequence[int],
    domains: tuple[Tensor, Tensor],
    names: Sequence[str],
    limit_per_class: int | None,
) -> Task:
    """The examples of some domains; any class may be asked for."""
    wanted = torch.tensor(part)
    inside = [torch.isin(column, wanted) for column in domains]
    every = tuple(range(source.classes))
    labels = torch.where(inside[0], source.labels, -1)
    train = source.train.only(rows_of(labels, every, limit_per_class))
    test = source.test.only(torch.nonzero(inside[1]).flatten())
    for examples, kind in ((train, "train"), (test, "test")):
        if len(examples) < 2:
            words = ", ".join(names[number] for number in part)
            raise UserError(
                f"task {index + 1} ({words}) has {len(examples)} {kind} examples and needs two "
                "or more: choose fewer tasks or another --split-by."
            )
    return Task(index, every, train, test)


def domains_of(source: Source, by: str, tasks: int | None) -> tuple[Tensor, Tensor, Sequence[str]]:
    """The domain of each train and each test row, and what the domains are called."""
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
            places = source.train.ids, source.test.rows
            cuts = [place * count // (train + test) for place in places]
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
    order: Sequence[int], tasks: int, sizes: Sequence[int] = (), things: str = "classes"
) -> list[tuple[int, ...]]:
    """Cut an order into equal parts, or into parts of given sizes, or say why it does not fit."""
    count = len(order)
    if sizes:
        if min(sizes) < 1 or sum(sizes) != count:
            raise UserError(
                f"the {things} per task {', '.join(map(str, sizes))} sum up to {sum(sizes)} and "
                f"there are {count} {things}: give whole numbers from 1 that sum up to {count}."
            )
    elif tasks < 1 or tasks > count or count % tasks:
        fits = [str(n) for n in range(1, count + 1) if count % n == 0]
        raise UserError(
            f"{count} {things} do not divide into {tasks} tasks: choose one of "
            f"{', '.join(fits)}, or give --classes-per-task."
        )
    sizes = sizes or [count // tasks] * tasks
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [tuple(order[end - size : end]) for size, end in zip(sizes, ends)]


def arrange(
    count: int, generator: torch.Generator | None, order: Sequence[int] | None
) -> list[int]:
    """An order of `count` things: the given one, a shuffled one, or as numbered."""
    if order is None:
        return class_order(count, generator)
    if sorted(order) != list(range(count)):
        raise UserError(
            f"a class order must name each of the numbers 0 to {count - 1} once, not "
            f"{','.join(map(str, order))}."
        )
    return list(order)


def class_order(classes: int, generator: torch.Generator | None) -> list[int]:
    """The classes as numbered, or shuffled by a generator."""
    if generator is None:
        return list(range(classes))
    return [int(label) for label in torch.randperm(classes, generator=generator)]


def rows_of(labels: Tensor, classes: Sequence[int], limit: int | None = None) -> Tensor:
    """Rows whose label is one of the classes, the first `limit` of each, in source order."""
    rows = [torch.nonzero(labels == label).flatten()[:limit] for label in classes]
    return torch.cat(rows).sort().values

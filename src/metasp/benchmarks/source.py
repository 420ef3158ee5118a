"""Where examples come from, and the pure split of a source into tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.types import Examples, Task


@dataclass(frozen=True)
class Source:
    """A labelled data set as arrays. Train ids are the rows of the original, for life."""

    name: str
    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    tasks: int
    crop_padding: int = 0
    flip: bool = False
    ids: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    @property
    def classes(self) -> int:
        return len(self.class_names)


def deal_classes(order: Sequence[int], tasks: int) -> list[tuple[int, ...]]:
    """Cut an order of classes into equal tasks, or say why it does not fit."""
    classes = len(order)
    if tasks < 1 or tasks > classes or classes % tasks:
        fits = [str(n) for n in range(1, classes + 1) if classes % n == 0]
        raise UserError(
            f"{classes} classes do not divide into {tasks} tasks: choose one of {', '.join(fits)}."
        )
    size = classes // tasks
    return [tuple(order[start : start + size]) for start in range(0, classes, size)]


def class_order(classes: int, generator: torch.Generator | None) -> list[int]:
    """The classes as numbered, or shuffled by a generator."""
    if generator is None:
        return list(range(classes))
    return [int(label) for label in torch.randperm(classes, generator=generator)]


def split(
    source: Source,
    tasks: int | None = None,
    limit_per_class: int | None = None,
    generator: torch.Generator | None = None,
) -> list[Task]:
    """The class-incremental stream of a source: tasks of equal numbers of classes."""
    groups = deal_classes(class_order(source.classes, generator), tasks or source.tasks)
    train = Examples.of(source.inputs, source.labels, source.ids)
    test = Examples.of(source.test_inputs, source.test_labels)
    return [
        Task(
            index=index,
            classes=group,
            train=train.only(rows_of(source.labels, group, limit_per_class)),
            test=test.only(rows_of(source.test_labels, group)),
        )
        for index, group in enumerate(groups)
    ]


def rows_of(labels: Tensor, classes: Sequence[int], limit: int | None = None) -> Tensor:
    """Rows whose label is one of the classes, the first `limit` of each, in source order."""
    rows = [torch.nonzero(labels == label).flatten()[:limit] for label in classes]
    return torch.cat(rows).sort().values

"""Where examples come from, and the pure split of a source into tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.types import Examples, Streams, Task

HOLD_OUT_SEED = 20220  # its own: test data must not move with the seed of a run


@dataclass(frozen=True)
class Source:
    """A labelled data set as arrays. Train ids are the rows of the original, for life.

    `rows` and `test_rows` say which rows of the arrays the labels belong to, where train and
    test data share one array that is too large to copy."""

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
    rows: Tensor | None = None
    test_rows: Tensor | None = None

    @property
    def train(self) -> Examples:
        rows = torch.arange(len(self.labels)) if self.rows is None else self.rows
        return Examples(self.inputs, rows, self.labels, rows if self.ids is None else self.ids)

    @property
    def test(self) -> Examples:
        rows = self.test_rows
        rows = torch.arange(len(self.test_labels)) if rows is None else rows
        return Examples(self.test_inputs, rows, self.test_labels, rows)

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
    train, test = source.train, source.test
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


def held_out(labels: Tensor, class_names: Sequence[str], part: float = 0.2) -> Tensor:
    """Which rows (n,) are test data, where the source does not say: a fixed part of each class,
    at least one, the same in every run and whatever becomes of other classes."""
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    streams = Streams(HOLD_OUT_SEED)
    for label, name in enumerate(class_names):
        rows = torch.nonzero(labels == label).flatten()
        if len(rows) == 1:
            raise UserError(
                f"class {name!r} has a single example: it takes two, one to train and one to "
                "test; add some or remove the class."
            )
        count = max(1, round(part * len(rows))) if len(rows) else 0
        chosen[rows[torch.randperm(len(rows), generator=streams[name])[:count]]] = True
    return chosen

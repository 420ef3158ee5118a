"""Where examples come from: a labelled data set as arrays, with what belongs to it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metasp.encoded import LazyRows
from metasp.errors import UserError
from metasp.trees import Tree, named_leaves, one_tensor
from metasp.types import Examples, Streams

HOLD_OUT_SEED = 20220  # its own: test data must not move with the seed of a run
CHUNK = 1 << 22  # numbers that are summed up at once


@dataclass(frozen=True)
class Source:
    """A labelled data set as arrays. Train ids are the rows of the original, for life.

    `rows` and `test_rows` say which rows of the arrays the labels belong to, where train and
    test data share one array that is too large to copy. `domains` and `test_domains` number the
    values of a further column, named by `domain_names`. `pooled`: train and test data were one
    list and are told apart by a hold-out, so that ids and test rows count in the same list.
    `true_labels` (n,) are those of the train data where it is known that some `labels` are wrong:
    for scoring alone. Test labels are always the true ones."""

    name: str
    inputs: Tree
    labels: Tensor
    test_inputs: Tree
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
    domains: Tensor | None = None
    test_domains: Tensor | None = None
    domain_names: tuple[str, ...] = ()
    split_by: str = "class"
    pooled: bool = False
    true_labels: Tensor | None = None

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
        """Of one input, for a backbone; several inputs have none."""
        if not isinstance(self.inputs, Tensor | LazyRows):
            places = ", ".join(sorted(named_leaves(self.inputs)))
            raise UserError(
                f"{self.name} has several inputs ({places}), which no backbone takes: give a "
                "model of your own in Python, as model= of metasp.run."
            )
        return tuple(self.inputs.shape[1:])

    @property
    def classes(self) -> int:
        return len(self.class_names)


def held_out(labels: Tensor, class_names: Sequence[str], part: float = 0.2) -> Tensor:
    """Which rows (n,) are test data, where the source does not say: a fixed part of each class,
    at least one, the same in every run and whatever becomes of other classes."""
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    streams = Streams(HOLD_OUT_SEED)
    for label, name in enumerate(class_names):
        rows = torch.nonzero(labels == label).flatten()
        if len(rows) == 1:
            raise UserError(
                f"class {name!r} has a single example, and training and testing need one each: "
                "add some, or remove the class."
            )
        count = max(1, round(part * len(rows))) if len(rows) else 0
        chosen[rows[torch.randperm(len(rows), generator=streams[name])[:count]]] = True
    return chosen


def default_tasks(classes: int) -> int:
    """Five tasks where the classes allow it, else the nearest number that they do."""
    fits = [count for count in range(2, classes + 1) if classes % count == 0]
    return min(fits, key=lambda count: (abs(count - 5), count), default=1)


def check_classes(source: Source) -> Source:
    """A source whose every class can be learned and tested, or one sentence about which cannot."""
    if source.classes < 2:
        raise UserError(
            f"{source.name} has one class ({source.class_names[0]!r}): a stream takes at least two."
        )
    for labels, kind in ((source.labels, "train"), (source.test_labels, "test")):
        counts = torch.bincount(labels, minlength=source.classes)
        for label, name in enumerate(source.class_names):
            if counts[label] == 0:
                raise UserError(
                    f"class {name!r} of {source.name} has no {kind} example: add some, or remove "
                    "the class."
                )
    return source


def constants(
    train: Examples, advance: Callable[[int], object] = lambda rows: None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the train examples by channel (or by column of a table), on
    the scale from 0 to 1 for bytes. `advance` is told how many were looked at."""
    whole = train.source
    if not isinstance(whole, Tensor | LazyRows):  # several inputs are taken as they are
        return (), ()
    numbers = math.prod(whole.shape[1:])
    total = square = torch.zeros((), dtype=torch.float64)
    origin: Tensor | None = None  # near the mean: far from zero, squares would drown the spread
    portions = torch.split(torch.arange(len(train)), max(1, CHUNK // numbers))
    for batch in train.batches(portions):
        chunk = one_tensor(batch.inputs, "a mean by channel")
        values = (chunk.float() / 255 if chunk.dtype == torch.uint8 else chunk).double()
        if origin is None:
            first = values[0].flatten(1)[:, 0] if values.dim() > 2 else values[0]
            origin = first.reshape(1, -1, *(1,) * (values.dim() - 2))
        values = values - origin
        others = [axis for axis in range(values.dim()) if axis != 1]
        total = total + values.sum(others)
        square = square + values.square().sum(others)
        advance(batch.size)
    count = len(train) * numbers // whole.shape[1]
    shift = total / count
    std = (square / count - shift.square()).clamp(min=0).sqrt()
    std[std == 0] = 1.0  # a constant column carries nothing; it must not become infinite
    mean = shift if origin is None else shift + origin.flatten()
    spreads = std.tolist()
    means = tuple(rounded(value, spread / 1000) for value, spread in zip(mean.tolist(), spreads))
    return means, tuple(rounded(spread, spread / 1000) for spread in spreads)


def rounded(value: float, slack: float) -> float:
    """To four significant digits, so that the last bits of a sum do not matter, or to as many more
    as it takes to come within ``slack``."""
    tries = (float(f"{value:.{digits}g}") for digits in range(4, 18))
    return next((near for near in tries if abs(near - value) <= slack), value)

"""Where examples come from: a labelled data set as arrays, with what belongs to it."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from metasp.config import defaults, is_text
from metasp.encoded import LazyRows
from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.trees import Tree, named_leaves, one_tensor
from metasp.types import Examples, Streams

HOLD_OUT_SEED = 20220  # its own: test data must not move with the seed of a run
CHUNK = 1 << 22  # numbers that are summed up at once
COLUMN = "column:"  # begins a `split_by` that names a column
READING = ("image_size", "colour", "label_column", "true_label_column", "text_column",
           "id_column", "decode", "skip_corrupt")  # fmt: skip
"""The settings of a spec that not every kind of data has a use for."""

Origin = tuple[str, int | None]
"""A file and, where it holds many examples, the row in it, from 0."""


def no_origin(identity: int) -> Origin | None:
    """Return None: the examples are in no file of the user's."""
    return None


@dataclass(frozen=True)
class Source:
    """A labelled data set as arrays. Train ids are the rows of the original, for life, or the
    numbers of a column of ids.

    `rows` and `test_rows` say which rows of the arrays the labels belong to, where train and
    test data share one array that is too large to copy. `domains` and `test_domains` number the
    values of a further column, named by `domain_names`. `pooled`: train and test data were one
    list and are told apart by a hold-out, so that their rows count in the same list.
    `true_labels` (n,) are those of the train data where it is known that some `labels` are wrong:
    for scoring alone. Test labels are always the true ones. `texts` are the rows of the arrays in
    words, `origin` leads from a train id to its file, and `notes` are for the run to tell."""

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
    texts: Sequence[str] | None = None
    origin: Callable[[int], Origin | None] = no_origin
    notes: tuple[str, ...] = ()

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
            names = ", ".join(sorted(named_leaves(self.inputs)))
            raise UserError(
                f"{self.name} has several inputs ({names}), which no backbone takes: give a "
                "model of your own in Python, as model= of metasp.run."
            )
        return tuple(self.inputs.shape[1:])

    @property
    def classes(self) -> int:
        return len(self.class_names)


@dataclass(frozen=True)
class Columns:
    """The columns beside the inputs, one value per example, the splits one after another (`splits`
    gives the size of each, train data first). Without `class_names` the different labels are the
    classes. `true_labels` are needed of the train data only; `ids` are whole numbers."""

    labels: Sequence[Any]
    splits: Mapping[str, int]
    class_names: Sequence[str] | None = None
    true_labels: Sequence[Any] | None = None
    domains: Sequence[Any] | None = None
    ids: Sequence[Any] | None = None

    def rows(self, *names: str) -> Tensor:
        """Return the rows of the named splits, in order."""
        start, chosen = 0, [torch.zeros(0, dtype=torch.long)]
        for name, size in self.splits.items():
            if name in names:
                chosen.append(torch.arange(start, start + size))
            start += size
        return torch.cat(chosen)


def columns_of(
    values_of: Callable[[str], list[Any]],
    splits: Mapping[str, int],
    class_names: Sequence[str] | None,
    label: str,
    true_label: str | None,
    domain: str | None,
    ids: str | None = None,
) -> Columns:
    """Return the columns of these names; `values_of` gives the values of one, over all splits."""
    if label == true_label:
        raise UserError(
            f"{label!r} is both the label and the true label: name the other one with "
            "--label-column."
        )
    labels = values_of(label)
    true, domains, numbers = (
        None if name is None else values_of(name) for name in (true_label, domain, ids)
    )
    start = 0
    for split, size in splits.items():
        rows = slice(start, start + size)
        # Test data may have no other labels. Train data without them is a mistake.
        if true is not None and split != "train" and {*labels[rows]} <= {None}:
            labels[rows] = true[rows]
        start += size
    return Columns(labels, splits, class_names, true, domains, numbers)


def source_of(
    name: str, inputs: Tree, columns: Columns, content: bytes, pool: Sequence[str] = ()
) -> Source:
    """Return the source of inputs (n, …) with their columns; `content` stands for the inputs in its
    digest. Test data is the split of that name, or else the one for validation. Where there is
    neither, or there are splits to `pool`, a fixed part of each class of the pool is held out. The
    mean and deviation of the inputs are left to `with_constants`."""
    true = [] if columns.true_labels is None else list(columns.true_labels)
    codes, names = number_labels([*columns.labels, *true], columns.class_names)
    size = len(columns.labels)
    labels, truth = torch.tensor(codes[:size]), torch.tensor(codes[size:] or codes)
    splits = {split for split, count in columns.splits.items() if count}
    test = "test" if "test" in splits else "validation"
    pooled = bool(pool) or not {"train", test} <= splits
    if pooled:
        rows = columns.rows(*(pool or columns.splits))
        out = held_out(labels[rows], names)
        train_rows, test_rows = rows[~out], rows[out]
    else:
        train_rows, test_rows = columns.rows("train"), columns.rows(test)
    digest = hashlib.sha256(content)
    digest.update(repr((codes, names, dict(columns.splits), columns.ids)).encode())
    domains, domain_names = None, list[str]()
    if columns.domains is not None:
        numbers, domain_names = number_labels(columns.domains, None, "domain", "--split-by")
        digest.update(repr((numbers, domain_names)).encode())
        domains = torch.tensor(numbers)
    return Source(
        name=name,
        inputs=inputs,
        labels=labels[train_rows],
        test_inputs=inputs,
        test_labels=truth[test_rows],
        class_names=tuple(names),
        mean=(),
        std=(),
        digest=digest.hexdigest()[:16],
        tasks=default_tasks(len(names)),
        ids=train_rows if columns.ids is None else ids_of(columns.ids)[train_rows],
        rows=train_rows,
        test_rows=test_rows,
        pooled=pooled,
        true_labels=truth[train_rows] if true else None,
        domains=None if domains is None else domains[train_rows],
        test_domains=None if domains is None else domains[test_rows],
        domain_names=tuple(domain_names),
    )


def number_labels(
    values: Sequence[Any],
    names: Sequence[str] | None,
    what: str = "label",
    flag: str = "--label-column",
) -> tuple[list[int], list[str]]:
    """Number labels from 0. Returns the numbers and the name of each class; without `names` the
    different values are the classes, in their own order."""
    if None in values:
        raise UserError(f"row {values.index(None)} has no {what}: fill it, or remove the row.")
    kinds = {type(value) for value in values}
    if not (kinds <= {int, bool} or (kinds == {str} and names is None)):
        raise UserError(
            f"{what}s must be whole numbers or all text, not "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}: store them so, or "
            f"choose another {flag}."
        )
    classes = sorted(set(values)) if names is None else range(len(names))
    numbers = {value: number for number, value in enumerate(classes)}
    for row, value in enumerate(values):
        if value not in numbers or (kinds != {str} and value < 0):
            raise UserError(
                f"row {row} has {what} {value!r}, out of range: {what}s are numbered from 0"
                + (f" to {len(names) - 1}." if names else ".")
            )
    called = [str(value) for value in classes] if names is None else list(names)
    for name, count in Counter(called).items():
        if count > 1:
            raise UserError(f"two classes have the same name {name!r}: rename one of them.")
        if not is_text(name):
            raise UserError(
                f"the value {name!r} of a label or column contains control characters: rename it."
            )
    return [numbers[value] for value in values], called


def ids_of(values: Sequence[Any]) -> Tensor:
    """Return a column of ids (n,), which must be different whole numbers from 0."""
    for row, value in enumerate(values):
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise UserError(
                f"row {row} has the id {value!r}: ids are whole numbers from 0; choose another "
                "--id-column, or leave it out."
            )
    if len(set(values)) < len(values):
        raise UserError("two rows have the same id: make them different, or leave out --id-column.")
    return torch.tensor(values)


def with_constants(source: Source) -> Source:
    """Return the source with the mean and deviation of its train examples."""
    mean, std = constants(check_classes(source).train)
    return replace(source, mean=mean, std=std)


def held_out(labels: Tensor, class_names: Sequence[str], part: float = 0.2) -> Tensor:
    """Return which rows (n,) are test data, where the source does not say: a fixed part of each
    class, at least one, the same in every run and whatever becomes of other classes."""
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
    """Return five tasks where the classes allow it, else the nearest number that they do."""
    fits = [count for count in range(2, classes + 1) if classes % count == 0]
    return min(fits, key=lambda count: (abs(count - 5), count), default=1)


def check_classes(source: Source) -> Source:
    """Return a source whose every class can be learned and tested, or say which cannot."""
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


def constants(train: Examples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the train examples by channel (or by column of a
    table), on the scale from 0 to 1 for bytes."""
    inputs = train.source
    if not isinstance(inputs, Tensor | LazyRows):  # several inputs are taken as they are
        return (), ()
    numbers = math.prod(inputs.shape[1:])
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
    count = len(train) * numbers // inputs.shape[1]
    shift = total / count
    std = (square / count - shift.square()).clamp(min=0).sqrt()
    std[std == 0] = 1.0  # a constant column carries nothing; it must not become infinite
    mean = shift if origin is None else shift + origin.flatten()
    spreads = std.tolist()
    means = tuple(rounded(value, spread / 1000) for value, spread in zip(mean.tolist(), spreads))
    return means, tuple(rounded(spread, spread / 1000) for spread in spreads)


def rounded(value: float, slack: float) -> float:
    """Round to four significant digits, so that the last bits of a sum do not matter, or to as many
    more as it takes to come within ``slack``."""
    tries = (float(f"{value:.{digits}g}") for digits in range(4, 18))
    return next((near for near in tries if abs(near - value) <= slack), value)


def split_column(spec: RunSpec) -> str | None:
    """Return the name of the column whose values make the tasks, if a column does."""
    by = spec.split_by or ""
    return by.removeprefix(COLUMN) if by.startswith(COLUMN) else None


def refuse(spec: RunSpec, name: str, *allowed: str) -> None:
    """Raise one sentence if the spec asks for something that this kind of data has no use for."""
    usual = defaults(RunSpec)
    for setting in READING:
        if setting not in allowed and getattr(spec, setting) != usual[setting]:
            flag = f"--{setting.replace('_', '-')}"
            raise UserError(f"{flag} does not apply to {name}: leave it out.")

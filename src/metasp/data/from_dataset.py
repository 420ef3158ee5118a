"""Any torch Dataset as a stream of tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from metasp import trees
from metasp.config import defaults, fields_with
from metasp.data.arrays import array_source
from metasp.data.source import READING
from metasp.data.stream import Benchmark, assemble
from metasp.errors import UserError, told_in_python, unknown
from metasp.spec import RunSpec
from metasp.types import Rows

Pairs = Dataset[object] | Sequence[tuple[object, object]]
"""Inputs with a label each."""

PREFIX = "python:"
# Said otherwise, or not at all.
NOT_HERE = (
    "benchmark", "tasks", "data_digest", "label_column", "true_label_column", "text_column",
    "id_column", "test", "labels", "decode", "skip_corrupt",
)  # fmt: skip
SETTINGS = tuple(name for name in fields_with(RunSpec, role="data") if name not in NOT_HERE)


@told_in_python
def split(
    dataset: Pairs,
    *,
    tasks: int | None = None,
    test: Pairs | None = None,
    name: str = "dataset",
    class_names: Sequence[str] | None = None,
    domains: Rows | None = None,
    test_domains: Rows | None = None,
    **settings: Any,
) -> Benchmark:
    """Make a stream of tasks from a torch Dataset of (input, label) pairs.

    Inputs are pictures (tensors, arrays or PIL images) or rows of numbers, all of one shape, or a
    tuple or dictionary of tensors for a model of your own; the label may stand in the dictionary.
    Without a `test` Dataset a fixed fifth of each class is held out. With `domains`, one value
    per example (and `test_domains` for those of `test`), each value is a task and all tasks have
    the same classes. `settings` are the fields of a `RunSpec` that make tasks, such as
    classes_per_task, image_size or label_noise."""
    for key in settings:
        if key not in SETTINGS:
            raise unknown("setting of a split", key, SETTINGS)
    if domains is not None:
        settings["split_by"] = "column:domains"
    chosen: dict[str, Any] = {"benchmark": f"{PREFIX}{name}", "tasks": tasks, **settings}
    chosen = {key: tuple(v) if isinstance(v, list) else v for key, v in chosen.items()}
    spec = RunSpec(**chosen)
    splits = {"train": collected(dataset, domains)}
    if test is not None:
        splits["test"] = collected(test, test_domains)
    source = array_source(name, splits, spec, class_names)
    return assemble(source, spec, chosen)


def resplit(benchmark: Benchmark, spec: RunSpec) -> tuple[RunSpec, Benchmark]:
    """Return a stream made by hand under a spec's seed and noise, and the spec under what was
    chosen by hand, unless the spec says otherwise."""
    for name in (*READING[:5], "test", "labels"):
        asked = getattr(spec, name)
        if asked is not None and asked != benchmark.chosen.get(name):
            remedy = "give it to metasp.split" if name in SETTINGS else "leave it out"
            raise UserError(f"{name} cannot change a stream that is already split: {remedy}.")
    usual = defaults(RunSpec)
    chosen = {
        key: value
        for key, value in benchmark.chosen.items()
        if key == "benchmark" or getattr(spec, key) == usual[key]
    }
    done = spec.with_(**chosen)
    return done, assemble(benchmark.source, done, benchmark.chosen)


def collected(dataset: Any, domains: Any) -> dict[str, Any]:
    """Return all inputs (n, …), or a tree of them, and labels (n,) of a Dataset, by name."""
    if isinstance(dataset, tuple | list) and len(dataset) == 2 and not all(map(is_pair, dataset)):
        raise UserError("a pair of inputs and labels is not a Dataset: give TensorDataset(x, y).")
    inputs, labels = [], []
    for index in range(len(dataset)):
        value, label = pair_of(dataset[index], index)
        inputs.append(trees.named_leaves(as_arrays(value)))
        labels.append(label.item() if hasattr(label, "item") else label)
    if not inputs:
        raise UserError("the dataset has no examples: there is nothing to learn.")
    try:
        columns = {place: np.stack([x[place] for x in inputs]) for place in inputs[0]}
    except (KeyError, ValueError) as error:
        raise UserError(
            "the inputs of the dataset have different shapes: bring them to one shape first."
        ) from error
    arrays = {"inputs": trees.from_columns("", columns), "labels": np.asarray(labels)}
    return arrays if domains is None else {**arrays, "domains": domains}


def is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


def pair_of(item: Any, index: int) -> tuple[Any, Any]:
    """Return input and label of a pair, or of a dictionary of inputs with the label among them."""
    if isinstance(item, Mapping) and (key := trees.label_key(item)) is not None:
        return {name: value for name, value in item.items() if name != key}, item[key]
    if not is_pair(item):
        raise UserError(
            f"item {index} of the dataset is not a pair of input and label: wrap it so that it is."
        )
    return item[0], item[1]


def as_arrays(value: Any) -> Any:
    """Return one input as an array; several, in a dictionary or a tuple of tensors, as arrays."""
    if isinstance(value, Mapping):
        return {str(name): as_arrays(item) for name, item in value.items()}
    if isinstance(value, tuple) and isinstance(value[0], Tensor | np.ndarray | Mapping):
        return tuple(map(as_arrays, value))
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)

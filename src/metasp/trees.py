"""Inputs of a model as a tree: a tensor, a tuple, or a dictionary of tensors, nested as one likes,
with the example on the first axis of each."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten, tree_map, tree_map_with_path

Tree: TypeAlias = "Tensor | Sequence[Tree] | Mapping[str, Tree]"
"""A tensor, or tuples, lists and dictionaries of trees."""


def call(model: nn.Module, inputs: Tree) -> Any:
    """What the model makes of inputs: a tensor is its argument, a tuple its arguments in order, a
    dictionary its arguments by name. Of an answer with ``logits`` only these."""
    if isinstance(inputs, Mapping):
        outputs = model(**inputs)
    elif isinstance(inputs, tuple | list):
        outputs = model(*inputs)
    else:
        outputs = model(inputs)
    return getattr(outputs, "logits", outputs)


def rows(tree: Tree, index: Any) -> Tree:
    """Some of the examples."""
    chosen: Tree = tree_map(lambda t: t[index], tree)
    return chosen


def same(a: Tree, b: Tree) -> bool:
    """Whether both hold the same tensors at the same places."""
    (ours, shape), (theirs, other) = tree_flatten(a), tree_flatten(b)
    return shape == other and all(s is t or torch.equal(s, t) for s, t in zip(ours, theirs))


def named_leaves(tree: Tree) -> dict[str, Any]:
    """What the tree holds, by the place where it is: ``['input_ids']``, ``[0]``, or nothing."""
    found: dict[str, Any] = {}
    tree_map_with_path(lambda path, leaf: found.__setitem__(keystr(path), leaf), tree)
    return found


def with_plain_dicts(tree: Tree) -> Tree:
    """The same with dictionaries of any kind (as tokenizers give) as ordinary ones."""
    if isinstance(tree, Mapping):
        return {key: with_plain_dicts(value) for key, value in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(with_plain_dicts(value) for value in tree)  # type: ignore[call-arg]
    return tree

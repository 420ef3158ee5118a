"""Inputs of a model as a tree: a tensor, a tuple, or a dictionary of tensors, nested as one likes,
with the example on the first axis of each. Encoded pictures may stand for a tensor of them."""

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten, tree_leaves, tree_map, tree_map_with_path

from metasp.encoded import LazyRows
from metasp.errors import UserError

LABELS = ("labels", "label", "label_ids")
"""The keys under which a dictionary of columns holds the labels, the first that is there."""

# Of pictures up to 105 × 105 in colour as many as of small ones, of 224 × 224 about a hundred.
ROWS_AT_ONCE, NUMBERS_AT_ONCE = 500, 1 << 24

Tree: TypeAlias = Tensor | LazyRows | Sequence["Tree"] | Mapping[str, "Tree"]
"""A tensor, or pictures that become one when they are taken, or tuples, lists and dictionaries of
trees."""


def call(model: Callable[..., Any], inputs: Tree) -> Any:
    """Return what the model makes of inputs: a tensor is its argument, a tuple its arguments in
    order, a dictionary its arguments by name. Of an answer with ``logits`` only these."""
    if isinstance(inputs, Mapping):
        outputs = model(**inputs)
    elif isinstance(inputs, tuple | list):
        outputs = model(*inputs)
    else:
        outputs = model(inputs)
    return getattr(outputs, "logits", outputs)


def label_key(columns: Mapping[str, object]) -> str | None:
    """Return the key under which a dictionary of columns holds the labels; None if it has none."""
    return next((key for key in LABELS if key in columns), None)


def rows(tree: Tree, index: Any) -> Tree:
    """Return some of the examples."""
    chosen: Tree = tree_map(lambda t: t[index], tree)
    return chosen


def each(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return the tree with each tensor changed."""
    changed: Tree = tree_map(change, tree)
    return changed


def size(tree: Tree) -> int:
    """Return how many examples there are."""
    return len(tree_leaves(tree)[0])


def at_once(tree: Tree) -> int:
    """Return how many of the examples one pass without gradients takes: fewer of large ones."""
    numbers: int = sum(math.prod(leaf.shape[1:]) for leaf in tree_leaves(tree))
    return max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, numbers)))


def joined(trees: Sequence[Tree]) -> Tree:
    """Return the examples of several trees of one kind, end to end."""
    examples: Tree = tree_map(lambda *leaves: torch.cat(leaves), *trees)
    return examples


def put(stored: Tree, index: Any, examples: Tree) -> None:
    """Write examples into some rows of a tree of the same kind."""

    def write(rows: Tensor, new: Tensor) -> None:
        rows[index] = new.to(rows)

    tree_map(write, stored, examples)


def one_tensor(tree: Tree, method: str) -> Tensor:
    """Return the tensor that the inputs are, or raise one sentence: `method` takes nothing else."""
    if not isinstance(tree, Tensor):
        raise UserError(
            f"{method} needs inputs that are one tensor, and these are a "
            f"{'dictionary' if isinstance(tree, Mapping) else 'tuple'} of several: use another, "
            "such as er or metasp."
        )
    return tree


def same(a: Tree, b: Tree) -> bool:
    """Tell whether both hold the same tensors at the same places."""
    (ours, shape), (theirs, shape_of_b) = tree_flatten(a), tree_flatten(b)
    return shape == shape_of_b and all(s is t or torch.equal(s, t) for s, t in zip(ours, theirs))


def named_leaves(tree: Tree) -> dict[str, Any]:
    """Return the leaves of a tree by their path: ``['input_ids']``, ``[0]``, or nothing."""
    leaves: dict[str, Any] = {}
    tree_map_with_path(lambda path, leaf: leaves.__setitem__(keystr(path), leaf), tree)
    return leaves


def with_plain_dicts(tree: Tree) -> Tree:
    """Return the tree with dictionaries of any kind (as tokenizers give) as ordinary ones."""
    if isinstance(tree, Mapping):
        return {key: with_plain_dicts(value) for key, value in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(with_plain_dicts(value) for value in tree)  # type: ignore[arg-type,call-arg,union-attr]
    return tree


def in_one(tree: Tree) -> Tensor:
    """Return the tensor that the inputs are, or the numbers of several in a row, as rows."""
    if isinstance(tree, Tensor):
        return tree
    leaves = named_leaves(tree)
    rows = [leaves[path].reshape(len(leaves[path]), -1).double() for path in sorted(leaves)]
    return torch.cat(rows, 1)


def kind(tree: Tree) -> str:
    """Describe the rows: the type of each tensor and the shape of one row."""

    def describe(rows: Tensor) -> str:
        return f"{str(rows.dtype).removeprefix('torch.')} of shape {tuple(rows.shape[1:])}"

    leaves = named_leaves(tree)
    if isinstance(tree, Tensor):
        return describe(tree)
    return ", ".join(f"{path} {describe(leaves[path])}" for path in sorted(leaves))


def to_columns(name: str, tree: Tree) -> dict[str, Tensor]:
    """Return the tensors by name and path, for a file: ``inputs``, or ``inputs['input_ids']``."""
    return {f"{name}{path}": leaf for path, leaf in named_leaves(tree).items()}


def columns_of(name: str, columns: Mapping[str, Any]) -> list[str]:
    """Return those of the columns that `to_columns` has made of a tree of that name."""
    return [key for key in columns if key == name or key.startswith(f"{name}[")]


def from_columns(name: str, columns: Mapping[str, Any]) -> Tree | None:
    """Return the tree that `to_columns` was given; None where none of them is here."""
    names = columns_of(name, columns)
    if not names or names == [name]:
        return columns[name] if names else None
    root: dict[Any, Any] = {}
    for key in names:
        *path, last = places(key.removeprefix(name))
        node = root
        for step in path:
            node = node.setdefault(step, {})
        node[last] = columns[key]
    return tuples_again(root)


def places(path: str) -> list[str | int]:
    """Return the keys and positions of ``['a'][0]``."""
    steps: list[str | int] = []
    node = ast.parse(f"_{path}", mode="eval").body
    while isinstance(node, ast.Subscript):
        steps.append(ast.literal_eval(node.slice))
        node = node.value
    return steps[::-1]


def tuples_again(node: Any) -> Tree:
    """Return dictionaries by position as the tuples that they were."""
    if not isinstance(node, dict):
        return node  # type: ignore[no-any-return]
    inner = {key: tuples_again(value) for key, value in node.items()}
    if all(isinstance(key, int) for key in inner):
        return tuple(inner[key] for key in sorted(inner))
    return inner


def as_floats(values: Tensor) -> Tensor:
    """Return bytes as numbers from 0 to 1; all else as it is."""
    return values.float() / 255 if values.dtype == torch.uint8 else values

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
    """What the model makes of inputs: a tensor is its argument, a tuple its arguments in order, a
    dictionary its arguments by name. Of an answer with ``logits`` only these."""
    if isinstance(inputs, Mapping):
        outputs = model(**inputs)
    elif isinstance(inputs, tuple | list):
        outputs = model(*inputs)
    else:
        outputs = model(inputs)
    return getattr(outputs, "logits", outputs)


def label_key(columns: Mapping[str, object]) -> str | None:
    """Where a dictionary of columns holds the labels, if it does."""
    return next((key for key in LABELS if key in columns), None)


def rows(tree: Tree, index: Any) -> Tree:
    """Some of the examples."""
    chosen: Tree = tree_map(lambda t: t[index], tree)
    return chosen


def each(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same with each tensor changed."""
    changed: Tree = tree_map(change, tree)
    return changed


def size(tree: Tree) -> int:
    """How many examples there are."""
    return len(tree_leaves(tree)[0])


def at_once(tree: Tree) -> int:
    """How many of the examples one pass without gradients takes: fewer of large ones."""
    numbers: int = sum(math.prod(leaf.shape[1:]) for leaf in tree_leaves(tree))
    return max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, numbers)))


def joined(trees: Sequence[Tree]) -> Tree:
    """The examples of several trees of one kind, end to end."""
    whole: Tree = tree_map(lambda *parts: torch.cat(parts), *trees)
    return whole


def put(held: Tree, index: Any, given: Tree) -> None:
    """Write examples into some rows of a tree of the same kind."""

    def write(rows: Tensor, new: Tensor) -> None:
        rows[index] = new.to(rows)

    tree_map(write, held, given)


def one_tensor(tree: Tree, who: str) -> Tensor:
    """The tensor that the inputs are, or one sentence: `who` can take nothing else."""
    if not isinstance(tree, Tensor):
        raise UserError(
            f"{who} needs inputs that are one tensor, and these are a "
            f"{'dictionary' if isinstance(tree, Mapping) else 'tuple'} of several: use another, "
            "such as er or metasp."
        )
    return tree


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
        return type(tree)(with_plain_dicts(value) for value in tree)  # type: ignore[arg-type,call-arg,union-attr]
    return tree


def in_one(tree: Tree) -> Tensor:
    """The tensor that the inputs are, or the numbers of several, one after the other, as rows."""
    if isinstance(tree, Tensor):
        return tree
    leaves = named_leaves(tree)
    rows = [leaves[place].reshape(len(leaves[place]), -1).double() for place in sorted(leaves)]
    return torch.cat(rows, 1)


def kind(tree: Tree) -> str:
    """What the rows are, in words: the type of each tensor and the shape of one row."""

    def words(rows: Tensor) -> str:
        return f"{str(rows.dtype).removeprefix('torch.')} of shape {tuple(rows.shape[1:])}"

    found = named_leaves(tree)
    if isinstance(tree, Tensor):
        return words(tree)
    return ", ".join(f"{place} {words(found[place])}" for place in sorted(found))


def to_columns(name: str, tree: Tree) -> dict[str, Tensor]:
    """The tensors by name and place, for a file: ``inputs``, or ``inputs['input_ids']``."""
    return {f"{name}{place}": leaf for place, leaf in named_leaves(tree).items()}


def columns_of(name: str, columns: Mapping[str, Any]) -> list[str]:
    """Those of the columns that `to_columns` has made of a tree of that name."""
    return [key for key in columns if key == name or key.startswith(f"{name}[")]


def from_columns(name: str, columns: Mapping[str, Any]) -> Tree | None:
    """The tree that `to_columns` was given; None where none of them is here."""
    own = columns_of(name, columns)
    if not own or own == [name]:
        return columns[name] if own else None
    root: dict[Any, Any] = {}
    for key in own:
        *path, last = places(key.removeprefix(name))
        node = root
        for step in path:
            node = node.setdefault(step, {})
        node[last] = columns[key]
    return tuples_again(root)


def places(path: str) -> list[str | int]:
    """The keys and positions of ``['a'][0]``."""
    found: list[str | int] = []
    node = ast.parse(f"_{path}", mode="eval").body
    while isinstance(node, ast.Subscript):
        found.append(ast.literal_eval(node.slice))
        node = node.value
    return found[::-1]


def tuples_again(node: Any) -> Tree:
    """Dictionaries by position as the tuples that they were."""
    if not isinstance(node, dict):
        return node  # type: ignore[no-any-return]
    inner = {key: tuples_again(value) for key, value in node.items()}
    if all(isinstance(key, int) for key in inner):
        return tuple(inner[key] for key in sorted(inner))
    return inner


def as_floats(values: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1; all else as it is."""
    return values.float() / 255 if values.dtype == torch.uint8 else values

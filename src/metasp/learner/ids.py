"""Ids of a learner's examples: given, or running numbers."""

import numbers
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from metasp.errors import UserError
from metasp.learner.columns import tensor_of
from metasp.types import ArrayLike

Ids = int | ArrayLike | Iterable[int]
"""Ids of examples: one, or any collection of them."""

LARGEST = 2**62  # of ids: the next one must still be a number


def ids_of(given: Any, count: int, first: int) -> Tensor:
    """The ids (n,) that a user gave to n examples, or running numbers from `first`."""
    if given is None:
        return torch.arange(first, first + count)
    ids = tensor_of(given, "ids")
    whole = not ids.is_floating_point() and ids.dtype != torch.bool
    if not whole or ids.shape != (count,) or bool((ids < 0).any()):
        raise UserError(
            f"ids must be {count} whole numbers from 0, one per example; keep a table of your own "
            "for other names."
        )
    if int(ids.max()) >= LARGEST:
        raise UserError(f"id {int(ids.max())} is too large: keep ids below {LARGEST}.")
    if len({*ids.tolist()}) < count:
        twice = next(i for i in ids.tolist() if int((ids == i).sum()) > 1)
        raise UserError(f"id {twice} is given to two examples: give each its own.")
    return ids.long().cpu()


def whole_numbers(given: Any) -> set[int]:
    """Ids to be forgotten: one, or any collection of them."""
    rows = given.reshape(-1).tolist() if hasattr(given, "reshape") else given
    rows = [rows] if isinstance(rows, numbers.Number) else rows
    if isinstance(rows, str) or not isinstance(rows, Iterable):
        raise UserError(f"ids must be whole numbers, not {given!r}.")
    found = set()
    for row in rows:
        one = row.item() if hasattr(row, "item") else row
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < LARGEST:
            raise UserError(
                f"ids must be whole numbers from 0, not {one!r}: a mask must be turned into ids "
                "first, for instance ids[mask]."
            )
        found.add(one)
    return found


def check_order(dataset: Any) -> None:
    """Raise if a loader does not give its examples in their own order: ids would go astray."""
    if not isinstance(dataset, DataLoader) or isinstance(dataset.dataset, IterableDataset):
        return
    batches = dataset.batch_sampler
    sampler = dataset.sampler if batches is None else getattr(batches, "sampler", None)
    if type(batches) not in (BatchSampler, type(None)) or not isinstance(
        sampler, SequentialSampler
    ):
        raise UserError(
            "ids name the examples in the order of the dataset, and this DataLoader shuffles or "
            "picks them: give ids with the dataset itself, or a loader with shuffle=False."
        )

"""Loss terms as rows of one pass: each row has a term, and each term a weight in the sum."""

import torch
from torch import Tensor


def shares(*terms: tuple[float, int]) -> Tensor:
    """The share of each row where every term is `weight` times the mean of its `size` rows."""
    parts = [torch.full((size,), weight / size) for weight, size in terms if size]
    return torch.cat(parts)


def members(classes: list[int], width: int, like: Tensor) -> Tensor:
    """Which of so many outputs stand for one of the classes, shape (width,)."""
    found = torch.zeros(width, dtype=torch.bool)
    found[[label for label in classes if label < width]] = True
    return found.to(like.device)

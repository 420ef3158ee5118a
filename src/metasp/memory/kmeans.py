"""K-means over rows that are read in chunks, so that bytes never become a second, larger array."""

from collections.abc import Callable

import torch
from torch import Tensor

Rows = Callable[[Tensor], Tensor]
"""Row numbers (m,) to float rows (m, d)."""

CHUNK = 1024


def kmeans(
    rows: Rows, count: int, clusters: int, generator: torch.Generator, iterations: int = 15
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm: each row's cluster and squared distance to its centre, both (count,).
    A cluster that loses all its rows takes the farthest row."""
    centres = spread(rows, count, clusters, generator)
    nearest, distance = assign(rows, count, centres)
    for _ in range(iterations):
        centres = means(rows, nearest, distance, clusters)
        moved, distance = assign(rows, count, centres)
        if torch.equal(moved, nearest):
            break
        nearest = moved
    return nearest, distance


def spread(rows: Rows, count: int, clusters: int, generator: torch.Generator) -> Tensor:
    """First centres by the k-means++ rule, drawn from a sample ten times their number: each next
    one with a chance proportional to its squared distance from those chosen."""
    sample = rows(torch.randperm(count, generator=generator)[: 10 * clusters])
    chosen = [0]
    gap = (sample - sample[0]).square_().sum(1)
    for _ in range(1, clusters):
        weights = gap if gap.sum() > 0 else torch.ones_like(gap)
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
        gap = torch.minimum(gap, (sample - sample[chosen[-1]]).square_().sum(1))
    return sample[chosen]


def assign(rows: Rows, count: int, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of each row, and the squared distance to it."""
    nearest = torch.empty(count, dtype=torch.long)
    distance = torch.empty(count, dtype=centres.dtype)
    middle = centres.mean(0)  # far from zero, distances would drown in the rounding of norms
    around = centres - middle
    norms = around.square().sum(1)
    for part in torch.split(torch.arange(count), CHUNK):
        chunk = rows(part)
        gaps = torch.addmm(norms[None], chunk - middle, around.T, alpha=-2)
        nearest[part] = gaps.argmin(1)
        # Not from the gaps: there a small distance drowns in the rounding of large norms.
        distance[part] = (chunk - centres[nearest[part]]).square_().sum(1)
    return nearest, distance


def means(rows: Rows, nearest: Tensor, distance: Tensor, clusters: int) -> Tensor:
    """The mean row of each cluster; empty ones get the rows that are farthest from theirs."""
    sizes = nearest.bincount(minlength=clusters)
    sums: Tensor | None = None
    for part in torch.split(torch.arange(len(nearest)), CHUNK):
        chunk = rows(part)
        if sums is None:
            sums = chunk.new_zeros(clusters, chunk.shape[1])
        sums.index_add_(0, nearest[part], chunk)
    assert sums is not None
    centres = sums / sizes.clamp_min(1)[:, None]
    empty = torch.nonzero(sizes == 0).flatten()
    if len(empty):
        centres[empty] = rows(distance.argsort(descending=True, stable=True)[: len(empty)])
    return centres

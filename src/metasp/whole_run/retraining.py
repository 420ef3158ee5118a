"""Check derivatives by training again with other weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from metasp.train import Trainer
from metasp.train.reweighting import Factors, ReweightedModel
from metasp.types import Streams
from metasp.whole_run.backwards import Derivatives
from metasp.whole_run.queries import Query, losses_of
from metasp.whole_run.rerun import Progress, Rerun

LIMIT = 0.7  # of the agreement: a choice; recipes of benchmarks/truth.txt have .98 and .99
DIRECTIONS = 6
STEP = 0.1  # of each weight along a direction
SHARE = 0.05  # of the examples that a group holds
RESAMPLES = 1000
COVERAGE = (2.5, 97.5)


@dataclass(frozen=True)
class Check:
    """Predicted and measured changes of each loss where groups were left out.

    predicted, measured: (queries, groups).
    lds: mean over the queries of the rank correlation; interval: 95%, by resampling groups."""

    predicted: Tensor
    measured: Tensor
    lds: float
    interval: tuple[float, float]


def factors_of(ids: Tensor, values: Tensor) -> Factors:
    """Return what multiplies the weights of rows: the values (n,) of these ids, ascending (n,)."""

    def factors(rows: Tensor) -> Tensor:
        return values[torch.searchsorted(ids, rows)]

    return factors


def retrained(
    rerun: Rerun, queries: Sequence[Query], ids: Tensor, weights: Tensor, tell: Progress
) -> Tensor:
    """Return how each loss changes (queries, k) when the examples with these ids (n,) have other
    weights (k, n)."""
    models: list[ReweightedModel] = []

    def watchers(trainer: Trainer) -> list[ReweightedModel]:
        make = partial(ReweightedModel, trainer.learner)
        models.extend(make(factors_of(ids, values)) for values in weights)
        return models

    trainer, _ = rerun.forwards(watchers, tell)
    learner = trainer.learner
    before = losses_of(learner, learner.model, queries)
    after = [losses_of(learner, model.model, queries) for model in models]
    return torch.stack(after, dim=1) - before[:, None]


def agreement(rerun: Rerun, queries: Sequence[Query], found: Derivatives, tell: Progress) -> float:
    """Return the cosine between the changes of the losses along random directions of weights and
    what the derivatives say of them, as a mean over the queries."""
    generator = Streams(rerun.spec.seed)["directions"]
    signs = torch.randint(0, 2, (DIRECTIONS, len(found.ids)), generator=generator)
    steps = STEP * (2.0 * signs.double() - 1)
    measured = retrained(rerun, queries, found.ids, 1 + steps, tell)
    predicted = (found.direct + found.replayed) @ steps.T
    cosines = torch.nn.functional.cosine_similarity(predicted, measured, dim=1, eps=1e-30)
    return float(cosines.nan_to_num(nan=-1.0).mean())


def leave_out(
    rerun: Rerun,
    queries: Sequence[Query],
    ids: Tensor,
    derivatives: Tensor,
    groups: int,
    tell: Progress,
) -> Check:
    """Train again without each of some random groups of the examples with these ids (n,), whose
    derivatives (queries, n) predict what changes."""
    generator = Streams(rerun.spec.seed)["groups"]
    size = max(1, round(SHARE * len(ids)))
    weights = torch.ones(groups, len(ids), dtype=torch.float64)
    for row in weights:
        row[torch.randperm(len(ids), generator=generator)[:size]] = 0
    measured = retrained(rerun, queries, ids, weights, tell)
    predicted = derivatives @ (weights - 1).T
    lds, interval = lds_of(predicted.numpy(), measured.numpy())
    return Check(predicted, measured, lds, interval)


def lds_of(
    predicted: "np.ndarray[Any, Any]", measured: "np.ndarray[Any, Any]"
) -> tuple[float, tuple[float, float]]:
    """Return the linear datamodelling score of changes (queries, groups), with the 95% interval of
    a bootstrap over the groups."""
    groups = predicted.shape[1]
    draws = np.random.default_rng(0).integers(0, groups, (RESAMPLES, groups))
    resampled = [mean_rank_correlation(predicted[:, d], measured[:, d]) for d in draws]
    low, high = np.nanpercentile(resampled, COVERAGE)
    return mean_rank_correlation(predicted, measured), (float(low), float(high))


def mean_rank_correlation(one: "np.ndarray[Any, Any]", two: "np.ndarray[Any, Any]") -> float:
    """Return the mean of Spearman's correlations of the rows of two arrays."""
    a, b = (rankdata(values, axis=1) for values in (one, two))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    spread = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return float(np.mean(np.divide((a * b).sum(1), spread, where=spread > 0, out=spread * 0)))

"""How likely each label of a task is right, by what the network said of all its examples.

The mean outputs of the examples that truly are of one class lie around a centre of that class, and
all classes spread alike. An example of true class t carries the label y with a chance that is the
same for all of t, and unknown. Centres, spread and these chances are fitted in a few rounds of
expectation and maximisation, which begin with the labels as they are given. So an example is
compared with what its label is like once the wrong ones are taken out, also where wrong labels all
go one way and the network believes them.

The odds of this fit rank the examples. But where few classes have many wrong labels, it hardly
moves from its start and counts too few. So wrong labels are counted by a second fit, which begins
nearer to the classes whose centres are nearest; it would rank worse where the network can hardly
tell classes apart."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

ROUNDS = 4  # more spoil the ranking of classes that overlap: their clusters are no classes
BELIEVED = 0.9  # how likely a label is right before anything is known
NEAREST = 0.6  # to count: how much of an example begins at the class whose centre is nearest
ALIKE = 0.02  # part of the spread that is the same in all directions
RIGHT = 0.5  # right labels that count beside those of each class, in mean sizes of a class
ANY = 0.1  # examples with each label that count beside those of each class
TINY = 1e-9
MOST_WORK = 2**32  # (examples + classes) × classes²; a fit that takes more (seconds) is not made


class Judged(NamedTuple):
    """Of each label the logarithm of the odds that it is right, to rank by, and the chance that it
    is wrong, to count by; both (n,)."""

    odds: Tensor
    wrong: Tensor


def judge_labels(said: Tensor, labels: Tensor, sure: Tensor, sure_labels: Tensor) -> Judged:
    """How likely the labels of a task are right.

    said: mean outputs (n, classes) of examples that were learned, NaN for one never met.
    labels: their labels (n,), each the place of a column of `said`.
    sure: mean outputs (m, classes) of verified examples; sure_labels: their labels (m,).
    NaN: never met, no other class to compare with, or too many classes for a fit."""
    odds, wrong = torch.full((2, len(labels)), torch.nan, dtype=torch.float64)
    met = said.isfinite().all(1)
    present = torch.tensor(sorted(set(labels[met].tolist())), dtype=torch.long)
    columns = torch.searchsorted(present, labels[met])
    if len(present) < 2 or (len(columns) + len(present)) * len(present) ** 2 > MOST_WORK:
        return Judged(odds, wrong)
    verified = sure.isfinite().all(1) & torch.isin(sure_labels, present)
    rows = torch.cat([said[met], sure[verified]])[:, present].double()
    rows = rows - rows.mean(1, keepdim=True)  # only differences between outputs say anything
    verified_columns = torch.searchsorted(present, sure_labels[verified])
    ranked, counted = _fitted(rows, columns, verified_columns)
    odds[met], wrong[met] = _odds_of(ranked, columns), (-_odds_of(counted, columns)).sigmoid()
    return Judged(odds, wrong)


def _fitted(rows: Tensor, labels: Tensor, known_labels: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm (n, classes) of how likely each labelled example is of each class, up to a
    number of its own, to rank by and to count by; the first n `rows` are theirs, those that follow
    are of `known` classes."""
    classes = int(labels.max()) + 1
    right = one_hot(labels, classes).double()
    sure = one_hot(known_labels, classes).double()
    believed = BELIEVED * right + (1 - BELIEVED) / (classes - 1) * (1 - right)
    near = _nearness(rows, torch.cat([believed, sure]))[: len(labels)]
    nearest = one_hot(near.argmax(1), classes).double()
    moved = NEAREST * nearest + (1 - NEAREST) * believed
    return _rounds(rows, right, sure, believed), _rounds(rows, right, sure, moved)


def _rounds(rows: Tensor, right: Tensor, verified: Tensor, chances: Tensor) -> Tensor:
    """The same from where it begins: how likely each example is of each class (n, classes). The
    labels are `right` and the known classes `sure`, a column for each class."""
    size, classes = right.shape
    expected = ANY + RIGHT * size / classes * torch.eye(classes, dtype=torch.float64)
    log_chances = chances
    for _ in range(ROUNDS):
        near = _nearness(rows, torch.cat([chances, verified]))[:size]
        carried = expected + chances.T @ right  # how many of each class carry each label
        log_chances = near + right @ (carried / carried.sum()).log().T
        chances = log_chances.softmax(1)
    return log_chances


def _nearness(rows: Tensor, weights: Tensor) -> Tensor:
    """The logarithm of the normal density of each row (n, d) around the centre of each class, up to
    a number of its own; `weights` (n, classes) say how much of a row belongs to each."""
    totals = weights.sum(0).clamp_min(TINY)
    centres = weights.T @ rows / totals[:, None]
    spread = rows.T @ (weights.sum(1, keepdim=True) * rows) - centres.T @ (
        totals[:, None] * centres
    )
    spread = spread / totals.sum()
    alike = spread.diagonal().mean().clamp_min(TINY) * torch.eye(len(spread), dtype=torch.float64)
    directions = torch.linalg.solve((1 - ALIKE) * spread + ALIKE * alike, centres.T)
    density: Tensor = rows @ directions - (centres * directions.T).sum(1) / 2
    return density


def _odds_of(log_chances: Tensor, labels: Tensor) -> Tensor:
    """How likely a label is against all other classes together, as a logarithm, shape (n,)."""
    places = labels[:, None]
    rivals = log_chances.scatter(1, places, -torch.inf)
    return log_chances.gather(1, places)[:, 0] - rivals.logsumexp(1)

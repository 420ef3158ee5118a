"""How likely a label is wrong, by the influence of its example on examples that are right.

The goal V holds verified examples where there are any, and elsewhere those of each class that the
model finds easiest. The influence is that of the first step of a fresh head, one of zeros, on the
network's features: in a head that has learned, an example it has fitted has no gradient and so no
influence, also one whose wrong label it knows by heart. What an influence says about a label is
read off the goal's own examples, with their own labels and with labels that are swapped on
purpose."""

from collections.abc import Collection
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.methods.base import over_task
from metasp.methods.context import TrainingContext
from metasp.methods.networks import features_seen
from metasp.types import Batch, Examples

FEWEST = 12  # examples that stand for a class of which none is verified, if it has as many


class Seen(NamedTuple):
    """What the network as it stands makes of examples: features (n, d) and outputs (n, classes)."""

    features: Tensor
    outputs: Tensor


class Goal(NamedTuple):
    """Examples that stand for their classes: what the network makes of them, their labels and the
    task each came with, both (m,)."""

    seen: Seen
    labels: Tensor
    tasks: Tensor


def seen_by(learner: TrainingContext, examples: Examples) -> Seen:
    """Features and outputs of examples, without augmentation and in evaluation mode; on the CPU."""
    widths = []

    def look(batch: Batch) -> Tensor:
        with features_seen(learner.model) as seen:
            outputs = learner.outputs(batch.inputs)
        widths.append(seen[0].shape[1])
        return torch.cat([seen[0].float(), outputs.float()], dim=1)

    both = over_task(learner, examples, look)
    return Seen(both[:, : widths[0]], both[:, widths[0] :])


def goal_in_memory(learner: TrainingContext, without: Collection[int] = ()) -> Goal | None:
    """The verified examples of each class in memory, or else all that the memory holds of it; None
    where it holds nothing. Unverified ones of the classes `without` do not count."""
    memory = learner.memory
    held = memory.occupied
    labels = memory.labels[held].cpu()
    pinned = memory.pinned[held]
    has_verified = torch.isin(labels, labels[pinned])
    left_out = torch.isin(labels, torch.tensor(sorted(without), dtype=labels.dtype))
    slots = held[pinned | ~(has_verified | left_out)]
    if not len(slots):
        return None
    batch = memory.read(slots)
    stored = Examples.of(batch.inputs, batch.labels.cpu(), batch.ids)
    return Goal(seen_by(learner, stored), stored.labels, memory.tasks[slots])


def goal_of_task(learner: TrainingContext, seen: Seen, loss: Tensor, easiest: float) -> Goal:
    """The goal while a task is learned: verified examples stand for their class. Of another class
    of the task it is the part `easiest` of its examples that has the lowest `loss` (n,), and of
    another class of the past all that the memory holds."""
    current = learner.current
    assert current is not None
    labels = current.labels.cpu()
    now = set(labels.tolist())
    stored = goal_in_memory(learner, without=now)
    verified = set() if stored is None else set(stored.labels.tolist())
    parts = [] if stored is None else [stored]
    for label in sorted(now - verified):
        own = torch.nonzero(labels == label).flatten()
        count = max(FEWEST, round(easiest * len(own)))
        own = own[loss[own].argsort(stable=True)[:count]]
        easy = Seen(seen.features[own], seen.outputs[own])
        parts.append(Goal(easy, labels[own], torch.full_like(own, learner.task)))
    return Goal(
        Seen(
            torch.cat([part.seen.features for part in parts]),
            torch.cat([part.seen.outputs for part in parts]),
        ),
        torch.cat([part.labels for part in parts]),
        torch.cat([part.tasks for part in parts]),
    )


EXPECTED_SLOPE, SLOPE_SPREAD = 6.0, 3.0  # of the evidence over the influence, before any example
EXPECTED_SHARE, SHARE_WORTH = 0.1, 4.0  # of wrong labels in a class, worth so many examples
LARGEST_SHARE = 0.97
TINY = 1e-9
ROUNDS = 30
MOST_SWAPPED = 400  # examples of the goal whose labels are swapped
MANY = 256  # classes: of more, not every label is compared with every other
OF_TWO, OF_MORE, SURELY, MOST_WRONG = 0.75, 0.9, 0.95, 0.75  # for can_tell
FEW = 50  # examples of the goal: of fewer, what is missed is chance
HALF, OF_RIGHT, LEAST_PART = 0.5, 0.8, 0.15  # of a class that is learned where it is in doubt


class Means(NamedTuple):
    """The mean feature of each class (classes, d), and how many examples it is of (classes,)."""

    features: Tensor
    counts: Tensor

    @property
    def known(self) -> Tensor:
        return self.counts > 0


class Reading(NamedTuple):
    """How an influence is read: log(how likely it is of a right label / of a wrong one) is
    slope × influence + offset. `area` is the chance that a right label has the higher influence;
    NaN: too few are known to say."""

    slope: float
    offset: float
    area: float

    def evidence(self, influence: Tensor) -> Tensor:
        return self.slope * influence.double() + self.offset


def class_means(goal: Goal) -> Means:
    features, labels = goal.seen.features, goal.labels
    classes = int(labels.max()) + 1
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    counts = labels.bincount(minlength=classes)
    return Means(sums / counts.clamp_min(1)[:, None], counts)


def fresh_head_influence(features: Tensor, labels: Tensor, means: Means, among: Tensor) -> Tensor:
    """How much a first step on each example would help the goal, shape (n,), from −1 to 1.

    For an example with features f and label y, and a rival class r, the step of a head of zeros
    over the two lowers the loss of the goal by a multiple of ‖f − μ_r‖² − ‖f − μ_y‖², with the
    means μ of the goal's features. It is divided by the sum of the two, and the least over the
    rivals `among` (classes,) counts. NaN: nobody stands for the class, or for any rival."""
    inside = labels.clamp(max=len(among) - 1)
    found = least_gain(torch.cdist(features, means.features).square(), inside, among)
    fine = (labels < len(among)) & means.known[inside]
    return torch.where(fine, found, torch.nan)


def least_gain(distance: Tensor, labels: Tensor, among: Tensor) -> Tensor:
    """The same from the squared distances (n, classes) to the means."""
    own = distance.gather(1, labels[:, None])
    gains = (distance - own) / (distance + own).clamp_min(1e-9)
    rivals = among.expand(len(labels), -1).scatter(1, labels[:, None], False)
    least = gains.masked_fill(~rivals, torch.inf).amin(1)
    return torch.where(least.isfinite(), least, torch.nan)


def read_influence(goal: Goal, means: Means, among: Tensor) -> Reading:
    """Learn to read influences from the goal's examples of the classes `among`, each left out of
    the mean of its class: under their own labels, and under each other one of those classes."""
    mine = torch.nonzero(among[goal.labels] & (means.counts[goal.labels] > 1)).flatten()
    mine = mine[torch.linspace(0, len(mine) - 1, min(len(mine), MOST_SWAPPED)).long()]
    labels, counts = goal.labels[mine], means.counts[goal.labels[mine]]
    distance = torch.cdist(goal.seen.features[mine], means.features).square()
    # Without example f the mean of its n is μ − (f − μ)/(n − 1): farther from f by n/(n − 1).
    factor = (counts / (counts - 1).clamp_min(1)).square().to(distance)
    rows = torch.arange(len(mine))
    distance[rows, labels] *= factor
    right = least_gain(distance, labels, among)
    wrong = swapped_gains(distance, labels, among)
    return log_odds(right[~right.isnan()], wrong[~wrong.isnan()])


def swapped_gains(distance: Tensor, labels: Tensor, among: Tensor) -> Tensor:
    """The least gain of each example under each label `among` that is not its own."""
    others = torch.nonzero(among).flatten()
    if len(others) <= MANY:
        swapped = [
            least_gain(distance, torch.full_like(labels, other), among)[labels != other]
            for other in others.tolist()
        ]
        return torch.cat([distance.new_zeros(0), *swapped])
    # A gain grows with the rival's distance, so that the nearest rival has the least one: the
    # nearest class of all, or the second where that is the label itself.
    near = distance[:, others].topk(2, largest=False)
    own, nearest = distance[:, others], others[near.indices[:, :1]]
    rival = torch.where(others == nearest, near.values[:, 1:], near.values[:, :1])
    gains = (rival - own) / (rival + own).clamp_min(1e-9)
    return gains.T[(labels[:, None] != others).T]


def log_odds(right: Tensor, wrong: Tensor) -> Reading:
    """The reading by a logistic regression in which influences of right labels and of wrong ones
    weigh the same, and a slope and offset that are expected count beside them."""
    values = torch.cat([right, wrong]).double()
    target = torch.zeros_like(values)
    target[: len(right)] = 1
    weight = torch.ones_like(values)
    weight[len(right) :] = len(right) / max(len(wrong), 1)
    x = torch.stack([values, torch.ones_like(values)], dim=1)
    expected = torch.tensor([EXPECTED_SLOPE, 0.0], dtype=torch.float64)
    worth = torch.diag(torch.tensor([SLOPE_SPREAD**-2, 1.0], dtype=torch.float64))
    found = expected.clone()
    for _ in range(ROUNDS):  # Newton's steps
        chance = torch.sigmoid(x @ found)
        slope = x.T @ (weight * (target - chance)) - worth @ (found - expected)
        bend = (x * (weight * chance * (1 - chance))[:, None]).T @ x + worth
        found = found + torch.linalg.solve(bend, slope)
    return Reading(float(found[0]), float(found[1]), area_between(right, wrong))


def area_between(right: Tensor, wrong: Tensor) -> float:
    """The chance that a number of `right` (n,) is above one of `wrong` (m,), equals counting half;
    NaN: there are too few."""
    if len(right) < FEW or not len(wrong):
        return nan
    ordered = wrong.sort().values
    below, upto = (torch.searchsorted(ordered, right, right=side) for side in (False, True))
    return float((below + upto).double().mean()) / (2 * len(wrong))


def can_tell(reading: Reading, wrong: Tensor, classes: int) -> bool:
    """Whether influences tell right labels of a task from wrong ones at all: labels that are
    swapped on purpose must seldom be missed, unless too few are known to say.

    Of more than two `classes`, most swapped labels are far off and easily found, so fewer may be
    missed. And if nearly all labels look wrong, by the chances `wrong` (n,), that is more likely
    the fault of the network's features than of the labels."""
    enough = OF_TWO if classes <= 2 else OF_MORE
    if float(wrong.nanmean().nan_to_num()) > MOST_WRONG:
        enough = SURELY
    return not reading.area < enough


def chance_wrong(evidence: Tensor, labels: Tensor) -> Tensor:
    """The probability (n,) that each label is wrong, by the evidence (n,) for it and the share of
    wrong labels of its class, which is the one that these examples themselves speak for. NaN stays
    NaN."""
    wrong = torch.full_like(evidence, torch.nan)
    for label in sorted(set(labels.tolist())):
        own = torch.nonzero((labels == label) & ~evidence.isnan()).flatten()
        share = EXPECTED_SHARE
        for _ in range(ROUNDS):
            odds = torch.tensor(share / (1 - share), dtype=torch.float64).log()
            wrong[own] = torch.sigmoid(odds - evidence[own])
            amiss = float(wrong[own].sum()) + SHARE_WORTH * EXPECTED_SHARE
            share = min(amiss / (len(own) + SHARE_WORTH), LARGEST_SHARE)
    return wrong


def better_part(
    evidence: Tensor, margins: Tensor, labels: Tensor, wrong: Tensor, strict: float
) -> Tensor:
    """Which examples (n,) are in the better part of their class, by the sum of the evidence (n,)
    for their labels and of their mean margins (n,), each over its spread in the class.

    A wrong label that is learned costs more than a right one that is not. So where a class has a
    share of wrong labels, by the chances `wrong` (n,), it is learned by its better half alone, or
    by four fifths of what seems right if that is less. Below the share `strict` the part grows to
    all of the class. Equals are kept together, and all where the evidence is the same for all."""
    kept = torch.ones_like(labels, dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        own = torch.nonzero(labels == label).flatten()
        share = float(wrong[own].nanmean().nan_to_num())
        doubted = max(LEAST_PART, min(HALF, OF_RIGHT * (1 - share)))
        doubt = min(1.0, share / strict) if strict else 1.0
        count = max(1, round((1 - doubt + doubt * doubted) * len(own)))
        support = standardised(evidence[own])
        if support.any():
            support += standardised(margins[own])
            kept[own] = support >= support.sort(descending=True).values[count - 1]
    return kept


def standardised(values: Tensor) -> Tensor:
    """Values (n,) less their mean, over their deviation; zero where either is not known."""
    known = values.isfinite()
    if not known.any():
        return torch.zeros_like(values)
    centred = torch.where(known, values - values[known].mean(), 0.0)
    spread = centred[known].square().mean().sqrt()
    return centred / spread if spread > TINY else torch.zeros_like(values)


class Verdicts(NamedTuple):
    """What is thought of examples (n,). `stability` and `plasticity` are influences through the
    network's head, on what the memory holds of earlier tasks and of the last: below 0 helps.
    `wrong` is the probability that the label is wrong, NaN where nothing in memory stands for its
    class or for any other; `looks_like` is the class whose examples are nearest."""

    stability: Tensor
    plasticity: Tensor
    wrong: Tensor
    looks_like: Tensor


def judge(learner: TrainingContext, examples: Examples) -> Verdicts:
    """Judge raw examples. Nothing changes, and no random stream moves."""
    goal = goal_in_memory(learner)
    if goal is None:
        raise UserError(
            "the memory is empty, so nothing can be judged: learn or trust some examples first."
        )
    seen, labels = seen_by(learner, examples), examples.labels.cpu()
    means = class_means(goal)
    among = possible_classes(labels, means.known)
    influence = fresh_head_influence(seen.features, labels, means, among)
    evidence = read_influence(goal, means, among).evidence(influence)
    distance = torch.cdist(seen.features, means.features).masked_fill(~means.known, torch.inf)
    new = goal.tasks == goal.tasks.max()
    return Verdicts(
        head_influence(seen, labels, goal, ~new),
        head_influence(seen, labels, goal, new),
        chance_wrong(evidence, labels),
        distance.argmin(1),
    )


def possible_classes(labels: Tensor, known: Tensor) -> Tensor:
    """The classes (classes,) that an example may really be of: those that are given to the others
    it came with, or all that are known where these are fewer than two."""
    given = torch.zeros_like(known)
    given[labels[labels < len(known)]] = True
    among = known & given
    return among if int(among.sum()) > 1 else known


def head_influence(seen: Seen, labels: Tensor, goal: Goal, part: Tensor) -> Tensor:
    """The influence (n,) of each example, by a step of size one on it in a linear head alone, on
    the mean loss of the `part` (m,) of the goal. It is −⟨∇L, ∇ℓ⟩: with p − e_y as the gradient of a
    cross-entropy by the outputs, an example's gradients are (p − e_y)fᵀ and p − e_y."""
    if not part.any():
        return torch.zeros(len(labels))
    pull = output_gradients(goal.seen.outputs[part], goal.labels[part])
    weights = pull.T @ goal.seen.features[part] / int(part.sum())
    push = output_gradients(seen.outputs, labels)
    return -((seen.features @ weights.T + pull.mean(0)) * push).sum(1)


def output_gradients(outputs: Tensor, labels: Tensor) -> Tensor:
    """The gradient of each row's cross-entropy by its outputs (n, classes). A class that has no
    output yet would take its part from all that are there."""
    gradients = outputs.softmax(1)
    there = torch.nonzero(labels < outputs.shape[1]).flatten()
    gradients[there, labels[there]] -= 1
    return gradients

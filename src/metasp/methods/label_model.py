"""Estimate how likely labels are right, by one model of features and of mistaken labels.

The features of the examples that truly are of one class lie around its mean, and all classes have
one covariance. An example of true class t carries the label y with a chance that is the same for
all of t. Means, covariance and chances are fitted in a few rounds of expectation and maximisation,
which begin at the mean of the verified examples of each class; without any, of all examples that
carry its label. Features are what enters the network's head, or the scores of an analytic one."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from metasp.errors import UserError
from metasp.methods.base import over_task
from metasp.methods.context import TrainingContext
from metasp.methods.network_copies import features_seen
from metasp.types import Batch, Examples

ROUNDS = 4  # more spoil the ranking of classes that overlap: their clusters are no classes
DIMENSIONS, ITERATIONS = 64, 4  # principal axes of the features, and steps to find them
START = 0.8  # the same where the means are those of the given labels, which widen the covariance
ALIKE = 0.1  # part of the covariance that is the same in all directions
RIGHT = 0.5  # right labels that count beside those of each class, in mean sizes of a class
ANY = 0.1  # examples with each label that count beside those of each class
CALM = 0.1  # part of the log odds that comes true: features of a network are no normal clouds
LEAST, FEW = 0.1, 50  # agreement below which features cannot tell labels, unless of few rows
TINY = 1e-9


class Judged(NamedTuple):
    """Of each label the logarithm of the odds that it is right, by the model, and the chance that
    it is wrong, as it comes true; NaN: nothing to compare with. `looks_like` is the most likely
    class. All (n,)."""

    odds: Tensor
    wrong: Tensor
    looks_like: Tensor


class Reference(NamedTuple):
    """Examples whose labels are taken as they are: features (m, d), labels (m,), and whether a
    person has verified them (m,)."""

    features: Tensor
    labels: Tensor
    verified: Tensor


def judge_labels(features: Tensor, labels: Tensor, reference: Reference) -> Judged:
    """Compute how likely labels (n,) are right by features (n, d), beside those of a reference.

    Rows with NaN are left out, and so is everything where there are fewer than two classes, or
    where features hardly tell classes apart."""
    odds, looks_like = (
        labels.new_full((len(labels),), torch.nan, dtype=torch.float64),
        labels.clone(),
    )
    met = features.isfinite().all(1)
    classes = torch.tensor(sorted({*labels[met].tolist(), *reference.labels.tolist()}))
    if len(classes) > 1 and met.any():
        rows = principal_axes(torch.cat([features[met], reference.features]).double())
        columns = torch.searchsorted(classes, labels[met])
        true = one_hot(torch.searchsorted(classes, reference.labels), len(classes)).double()
        start = torch.cat([one_hot(columns, len(classes)) * ~true[reference.verified].any(0), true])
        likely = fit(rows, columns, start)
        looks_like[met] = classes[likely.argmax(1)]
        if agreement(rows, start) > LEAST:
            odds[met] = odds_of(likely, columns)
    return Judged(odds, (-CALM * odds).sigmoid(), looks_like)


def fit(rows: Tensor, labels: Tensor, start: Tensor) -> Tensor:
    """Return the logarithm (n, classes) of how likely each labelled example is of each class, up to
    a number of its own.

    rows: features of the n labelled examples, then of m whose classes are known.
    given: labels (n,); start: which rows the mean of each class begins with (n + m, classes)."""
    size, classes = len(labels), start.shape[1]
    carried, true = one_hot(labels, classes).double(), start[size:]
    mean_size = size / int(carried.any(0).sum())
    expected = ANY + RIGHT * mean_size * torch.eye(classes, dtype=torch.float64)
    likely = log_density(rows, start, START)[:size]
    for _ in range(ROUNDS):
        chances = likely.softmax(1)
        mistaken = expected + chances.T @ carried  # how many of each class carry each label
        prior = (mistaken / mistaken.sum()).log().T[labels]
        likely = prior + log_density(rows, torch.cat([chances, true]))[:size]
    return likely


def agreement(rows: Tensor, start: Tensor) -> float:
    """Return how much oftener than by chance a row that begins the mean of a class, left out of it,
    is nearest to that mean: from 0 (chance) to 1 (always), or of a few rows."""
    sizes = start.sum(0)
    means = start.T @ rows / sizes.clamp_min(1)[:, None]
    used = start @ (sizes > 1).double() > 0
    if int(used.sum()) < FEW:
        return 1.0
    rows, labels = rows[used], start[used].argmax(1)
    distance = torch.cdist(rows, means)
    distance[:, sizes == 0] = torch.inf
    # Without x the mean of its n is μ − (x − μ)/(n − 1): farther from x by n/(n − 1).
    to_own_mean = distance.gather(1, labels[:, None]) * (sizes / (sizes - 1))[labels, None]
    distance.scatter_(1, labels[:, None], to_own_mean)
    chance = float((sizes / sizes.sum()).square().sum())
    agrees = float((distance.argmin(1) == labels).double().mean())
    return (agrees - chance) / max(1 - chance, TINY)


def log_density(rows: Tensor, weights: Tensor, alike: float = ALIKE) -> Tensor:
    """Return the logarithm of the normal density of rows (n, d) around the mean of each class, up
    to a number for each row; `weights` (n, classes) say how much of a row belongs to each."""
    totals = weights.sum(0).clamp_min(TINY)
    means = weights.T @ rows / totals[:, None]
    scatter = rows.T @ (weights.sum(1, keepdim=True) * rows) - means.T @ (totals[:, None] * means)
    covariance = scatter / totals.sum()
    sphere = covariance.diagonal().mean().clamp_min(TINY) * torch.eye(rows.shape[1]).double()
    directions = torch.linalg.solve((1 - alike) * covariance + alike * sphere, means.T)
    density: Tensor = rows @ directions - (means * directions.T).sum(1) / 2
    return density


def principal_axes(rows: Tensor) -> Tensor:
    """Return rows (n, d) less their mean along their first principal axes, by subspace
    iteration."""
    rows = rows - rows.mean(0)
    if rows.shape[1] <= DIMENSIONS:
        return rows
    draw = torch.Generator().manual_seed(0)
    axes = torch.randn(rows.shape[1], DIMENSIONS, generator=draw, dtype=rows.dtype)
    for _ in range(ITERATIONS):
        axes = torch.linalg.qr(rows.T @ (rows @ axes)).Q
    return rows @ axes


def odds_of(likely: Tensor, labels: Tensor) -> Tensor:
    """Return how likely a label is against all other classes together, as a logarithm, (n,)."""
    rest = likely.scatter(1, labels[:, None], -torch.inf)
    return likely.gather(1, labels[:, None])[:, 0] - rest.logsumexp(1)


class Seen(NamedTuple):
    """What the network as it stands makes of examples: features (n, d) and outputs (n, classes)."""

    features: Tensor
    outputs: Tensor

    def at(self, rows: Tensor) -> "Seen":
        return Seen(self.features[rows], self.outputs[rows])


class Goal(NamedTuple):
    """Stored examples that stand for their classes: what the network makes of them, and their
    labels, tasks and whether they are verified, each (m,)."""

    seen: Seen
    labels: Tensor
    tasks: Tensor
    verified: Tensor

    @property
    def reference(self) -> Reference:
        return Reference(self.seen.features, self.labels, self.verified)


def seen_by(learner: TrainingContext, examples: Examples) -> Seen:
    """Return features and outputs of examples, without augmentation and in evaluation mode."""
    widths = [0]

    def look(batch: Batch) -> Tensor:
        with features_seen(learner.model) as seen:
            outputs = learner.outputs(batch.inputs)
        widths.append(seen[0].shape[1])
        return torch.cat([seen[0].float(), outputs.float()], dim=1)

    columns = over_task(learner, examples, look)
    return Seen(columns[:, : widths[-1]], columns[:, widths[-1] :])


def goal_in_memory(learner: TrainingContext, without: Tensor | None = None) -> Goal | None:
    """Return the verified examples of each class in memory, or else all that it holds of it; None
    where it holds nothing. Unverified examples of the classes `without` do not count."""
    memory, slots = learner.memory, learner.memory.occupied
    labels, pinned = memory.labels[slots].cpu(), memory.pinned[slots]
    doubted = torch.isin(labels, labels[pinned])
    if without is not None:
        doubted |= torch.isin(labels, without)
    slots = slots[pinned | ~doubted]
    if not len(slots):
        return None
    batch = memory.read(slots)
    stored = Examples.of(batch.inputs, batch.labels.cpu(), batch.ids)
    return Goal(seen_by(learner, stored), stored.labels, memory.tasks[slots], memory.pinned[slots])


class Verdicts(NamedTuple):
    """What is thought of examples (n,). `stability` and `plasticity` are influences through the
    network's head, on what the memory holds of earlier tasks and of the last: below 0 helps.
    `wrong` is the probability that the label is wrong, NaN where nothing in memory stands for its
    class or for any other; `looks_like` is the class that its features are most likely of."""

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
    # Of a class that nobody stands for, only the likeliest of the others can be named.
    stands = torch.isin(labels, goal.labels)
    compared = torch.where(stands, labels, goal.labels[0])
    reference = goal.reference._replace(verified=torch.ones_like(goal.verified))
    judged = full = judge_labels(seen.features, compared, reference)
    # An example may really be of the classes that are given to those it came with.
    among = torch.isin(goal.labels, labels)
    if len({*goal.labels[among].tolist()}) > 1:
        among_given = Reference(*(column[among] for column in reference))
        judged = judge_labels(
            seen.features, torch.where(stands, labels, goal.labels[among][0]), among_given
        )
    new = goal.tasks == goal.tasks.max()
    return Verdicts(
        head_influence(seen, labels, goal.seen.at(~new), goal.labels[~new]),
        head_influence(seen, labels, goal.seen.at(new), goal.labels[new]),
        judged.wrong.masked_fill(~stands, torch.nan),
        full.looks_like,
    )


def head_influence(seen: Seen, labels: Tensor, goal: Seen, goal_labels: Tensor) -> Tensor:
    """Return the influence (n,) of each example, by a step of size one on it in a linear head
    alone, on the mean loss of the goal (m examples). It is −⟨∇L, ∇ℓ⟩: with p − e_y as the gradient
    of a cross-entropy by the outputs, an example's gradients are (p − e_y)fᵀ and p − e_y."""
    if not len(goal_labels):
        return torch.zeros(len(labels))
    pull = output_gradients(goal.outputs, goal_labels)
    weights = pull.T @ goal.features / len(goal_labels)
    push = output_gradients(seen.outputs, labels)
    return -((seen.features @ weights.T + pull.mean(0)) * push).sum(1)


def output_gradients(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of each row's cross-entropy by its outputs (n, classes). A class that has
    no output yet would take its part from all that are there."""
    gradients = outputs.softmax(1)
    present = torch.nonzero(labels < outputs.shape[1]).flatten()
    gradients[present, labels[present]] -= 1
    return gradients

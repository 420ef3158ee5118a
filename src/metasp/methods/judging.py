"""Labels judged before they are learned, by the model and the memory as they stand."""

from typing import NamedTuple

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.methods.context import TrainingContext
from metasp.methods.doubt import chance_wrong, class_means, fresh_head_influence, read_influence
from metasp.methods.goal import Goal, Seen, goal_in_memory, seen_by
from metasp.types import Examples


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

"""The goal of `metasp-robust`: examples of each class that are known, or believed, to be right, and
the influence of others on them."""

from typing import NamedTuple

import torch
from torch import Tensor

from metasp.methods.features import features_seen
from metasp.methods.learner import Learner
from metasp.methods.method import over_task
from metasp.types import Batch, Examples

OLD_RIVAL = 0.2  # by how much less a class of the past counts as a rival


class Seen(NamedTuple):
    """What the network as it stands makes of examples: features (n, d) and outputs (n, classes)."""

    features: Tensor
    outputs: Tensor


def seen_by(learner: Learner, examples: Examples) -> Seen:
    """Features and outputs of examples, without augmentation and in evaluation mode; on the CPU."""
    widths = []

    def look(batch: Batch) -> Tensor:
        with features_seen(learner.model) as seen:
            outputs = learner.outputs(batch.inputs)
        widths.append(seen[0].shape[1])
        return torch.cat([seen[0].float(), outputs.float()], dim=1)

    both = over_task(learner, examples, look)
    return Seen(both[:, : widths[0]], both[:, widths[0] :])


def goal_means(learner: Learner, seen: Seen, loss: Tensor, easiest: int) -> tuple[Tensor, Tensor]:
    """The mean feature of those who stand for each class (classes, d), and which classes have one.

    Verified examples in memory stand for their class. Of another class of the task at hand it is
    the examples of lowest `loss` (n,), and of another class of the past all that the memory
    holds."""
    current, memory = learner.current, learner.memory
    assert current is not None
    labels = current.labels.cpu()
    now = set(labels.tolist())
    verified = set(memory.labels[memory.pinned].tolist())
    held = memory.occupied
    fine = [
        bool(memory.pinned[slot]) or (label not in verified and label not in now)
        for slot, label in zip(held.tolist(), memory.labels[held].tolist())
    ]
    slots = held[torch.tensor(fine, dtype=torch.bool)]
    features, names = [], []
    if len(slots):
        batch = memory.read(slots)
        stored = Examples.of(batch.inputs, batch.labels.cpu(), batch.ids)
        features.append(seen_by(learner, stored).features)
        names.append(stored.labels)
    for label in sorted(now - verified):
        own = torch.nonzero(labels == label).flatten()
        own = own[loss[own].argsort(stable=True)[:easiest]]
        features.append(seen.features[own])
        names.append(labels[own])
    if not features:
        return seen.features.new_zeros(1, seen.features.shape[1]), torch.zeros(1, dtype=torch.bool)
    return class_means(torch.cat(features), torch.cat(names))


def class_means(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean row of each label (classes, d), and whether it has any (classes,)."""
    classes = int(labels.max()) + 1
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    counts = labels.bincount(minlength=classes)
    return sums / counts.clamp_min(1)[:, None], counts > 0


def fresh_head_influence(
    features: Tensor, labels: Tensor, means: Tensor, known: Tensor, old: Tensor | None = None
) -> Tensor:
    """How much a first step on each example would help the goal, shape (n,), from −1 to 1.

    For an example with features f and label y, and a rival class r, the step of a head of zeros
    over the two lowers the loss of the goal by a multiple of ‖f − μ_r‖² − ‖f − μ_y‖², with the
    means μ of the goal's features. It is divided by the sum of the two, and the least over the
    rivals counts; classes in `old` (classes,) count less as rivals. NaN: nobody stands for the
    class, or for any rival."""
    size = len(known)
    inside = labels.clamp(max=size - 1)
    distance = torch.cdist(features, means).square()
    own = distance.gather(1, inside[:, None])
    gains = (distance - own) / (distance + own).clamp_min(1e-9)
    if old is not None:
        gains = gains + OLD_RIVAL * old.to(gains)
    rivals = known.expand(len(labels), size).clone()
    rivals[torch.arange(len(labels)), inside] = False
    least = gains.masked_fill(~rivals, torch.inf).amin(1)
    fine = (labels < size) & known[inside] & least.isfinite()
    return torch.where(fine, least, torch.nan)

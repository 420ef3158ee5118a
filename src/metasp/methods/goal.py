"""The goal of `metasp-robust`: examples of each class that are known, or believed, to be right."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from metasp.methods.context import TrainingContext
from metasp.methods.method import over_task
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

"""The goal of `metasp-robust`: examples of each class that are known, or believed, to be right."""

from collections.abc import Mapping

import torch
from torch import Tensor

from metasp.methods.features import features_seen
from metasp.methods.gradients import elsewhere
from metasp.methods.learner import Learner
from metasp.types import Batch, State

KEPT = 0.7  # share of what it was that a class's mean feature keeps at each look


class Goal:
    """The mean feature of the goal's examples of each class, followed while the network learns.

    Of a class with verified examples in memory these are the goal; of another class of the task at
    hand the examples of lowest mean loss so far; of another class of the past what the memory
    holds."""

    def __init__(self, size: int, easiest: int) -> None:
        self.size, self.easiest = size, easiest
        self.means = torch.zeros(0, 0)  # (classes, features)
        self.known = torch.zeros(0, dtype=torch.bool)  # (classes,) those that have a mean
        self.chosen = torch.zeros(0, dtype=torch.long)  # rows of the task that stand for a class

    def choose(self, learner: Learner) -> None:
        """At the start of an epoch: who stands for the task's classes that have none verified."""
        current, memory = learner.current, learner.memory
        assert current is not None
        labels = current.labels.cpu()
        verified = set(memory.labels[memory.pinned].tolist())
        loss = learner.tally.means(current.ids, "loss")
        rows = []
        for label in sorted(set(labels.tolist()) - verified):
            own = torch.nonzero((labels == label) & ~loss.isnan()).flatten()
            rows.append(own[loss[own].argsort(stable=True)[: self.easiest]])
        self.chosen = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)

    def ready(self, learner: Learner) -> bool:
        """Whether two classes have someone to stand for them."""
        current, memory = learner.current, learner.memory
        if current is None:
            return False
        chosen = current.labels.cpu()[self.chosen]
        held = memory.labels[memory.occupied].cpu()
        return len({*chosen.tolist(), *held.tolist()}) > 1

    def look(self, learner: Learner) -> None:
        """Draw up to half the goal from this task and half from the past, and follow the mean
        features of their classes. The pass leaves no trace."""
        batch = self._drawn(learner)
        with torch.no_grad(), features_seen(learner.model) as seen:
            with elsewhere(learner, {}, batch.size):
                learner.outputs(batch.inputs)
            features = seen[0]
        labels = batch.labels
        classes = max(int(labels.max()) + 1, len(self.known))
        sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
        counts = labels.bincount(minlength=classes)
        fresh = sums / counts.clamp_min(1)[:, None]
        means, known = features.new_zeros(classes, features.shape[1]), counts.new_zeros(classes) > 0
        if len(self.known):
            means[: len(self.known)] = self.means.to(features)
            known[: len(self.known)] = self.known.to(known.device)
        here = counts > 0
        moved = torch.where(known[:, None], KEPT * means + (1 - KEPT) * fresh, fresh)
        self.means, self.known = torch.where(here[:, None], moved, means), known | here

    def influence(self, features: Tensor, labels: Tensor) -> Tensor:
        """How much a step of a fresh head on each example would help the goal, (n,) on the CPU: the
        least over the rival classes, as a share of what the class's own mean would do. NaN for a
        class that nobody stands for."""
        found = fresh_head_influence(features, labels.to(features.device), self.means, self.known)
        return found.cpu()

    def _drawn(self, learner: Learner) -> Batch:
        current, memory, stream = learner.current, learner.memory, learner.streams["goal"]
        assert current is not None
        half = self.size // 2
        now = set(current.labels.cpu().tolist())
        verified = set(memory.labels[memory.pinned].tolist())
        occupied = memory.occupied
        held = memory.labels[occupied].tolist()
        own: list[int] = []
        past: list[int] = []
        for slot, label, pinned in zip(occupied.tolist(), held, memory.pinned[occupied].tolist()):
            if label not in now and (pinned or label not in verified):
                past.append(slot)
            elif label in now and pinned:  # others of this task's classes are not judged yet
                own.append(slot)
        slots = torch.tensor(own, dtype=torch.long)
        pool = torch.cat([memory.labels[slots].cpu(), current.labels.cpu()[self.chosen]])
        picked = in_turn(pool, half, stream)
        mine = slots[picked[picked < len(slots)]]
        rows = self.chosen[picked[picked >= len(slots)] - len(slots)]
        before = torch.tensor(past, dtype=torch.long)
        before = before[torch.randperm(len(before), generator=stream)[:half]]
        parts = [memory.read(torch.cat([mine, before]))] if len(mine) + len(before) else []
        if len(rows):
            parts.append(current.take(rows))
        return learner.plain(Batch.join(parts))

    def state(self) -> State:
        return {"means": self.means, "known": self.known, "chosen": self.chosen}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.means, self.known = state["means"].clone(), state["known"].clone()
        self.chosen = state["chosen"].clone()


def fresh_head_influence(features: Tensor, labels: Tensor, means: Tensor, known: Tensor) -> Tensor:
    """For features f (n, d) with labels y: the least over rivals r of
    (‖f − μ_r‖² − ‖f − μ_y‖²) / ‖μ_y − μ_r‖², with the classes' means μ; 1 at the own mean, −1 at
    the rival's. It is twice the drop of the goal's loss by the first step on the example of a head
    of zeros over the two classes, in units of what an example at the own mean gives."""
    size = len(known)
    inside = labels.clamp(max=size - 1)
    distance = torch.cdist(features, means).square()
    between = torch.cdist(means, means).square()
    own = distance.gather(1, inside[:, None])
    gains = (distance - own) / between[inside].clamp_min(1e-9)
    rivals = known.expand(len(labels), size).clone()
    rivals[torch.arange(len(labels)), inside] = False
    least = gains.masked_fill(~rivals, torch.inf).amin(1)
    fine = (labels < size) & known[inside] & least.isfinite()
    return torch.where(fine, least, torch.nan)


def in_turn(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Up to `count` of the rows with these labels (n,), at random, each class in turn."""
    order = torch.randperm(len(labels), generator=generator)
    turn = torch.zeros(len(labels))
    for label in set(labels.tolist()):
        own = labels[order] == label
        turn[own] = torch.arange(int(own.sum())).float()
    return order[turn.argsort(stable=True)[:count]]

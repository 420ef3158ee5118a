"""How each example of the task at hand has fared in the updates so far."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from metasp.types import State, Task

QUANTITIES = ("loss", "margin", "weight")
NUMBERS = 4  # that a weigher may keep of an example
FATES = ("kept", "learned", "weighted down", "dropped")
"""What may become of an example of a task: it is in memory at the task's end; it was learned like
the others; its mean weight was below half of an even one; it was hardly learned at all."""
HALF, HARDLY = 0.5, 0.05
UNKNOWN = -1  # the class that the model gives an example it has not met
MOST_WAITING, MOST_NUMBERS = 64, 2**18  # updates, and numbers of their outputs, that may wait
MOST_SAID = 2**23  # numbers that may be kept of what the model said; of more examples none are
NOBODY = torch.zeros(0, dtype=torch.long)


class Update(NamedTuple):
    """What an update tells of its rows: ids (n,), losses (n,) with NaN for what is no loss, weights
    (n,) and those that would be even ones, labels (n,), and outputs (n, classes) where labels are
    classes."""

    ids: Tensor
    losses: Tensor
    weights: Tensor
    even: Tensor
    labels: Tensor
    outputs: Tensor | None


class Said:
    """What the model said of examples: the sums of their outputs for some classes over the updates
    that they were in, and as a last column how many these were."""

    def __init__(self, ids: Tensor, classes: Tensor) -> None:
        self.ids = ids.sort().values
        self.classes = classes
        self.sums = torch.zeros(len(ids), len(classes) + 1)

    def add(self, ids: Tensor, outputs: Tensor) -> None:
        """Enter the outputs (n, all classes) of the examples of these ids; strangers do not
        count."""
        place, known = rows_of(self.ids, ids)
        mine = known.nonzero()[:, 0]
        chosen = outputs[:, self.classes.to(outputs.device)].cpu().float()[mine]
        self.sums.index_add_(0, place[mine], torch.nn.functional.pad(chosen, (0, 1), value=1.0))

    def means(self, ids: Tensor) -> Tensor:
        """The mean outputs (n, classes) of the examples of these ids; NaN: never met."""
        place, known = rows_of(self.ids, ids)
        if not len(self.ids):
            return torch.full((len(ids), len(self.classes)), torch.nan)
        found = self.sums[place, :-1] / self.sums[place, -1:]
        return torch.where(known[:, None], found, torch.nan)


class Tally:
    """One row per example of a task's training data: sums, over the updates that it was in, of its
    loss, its margin (the logit of its label less the largest other) and its weight relative to an
    even one; the class that the model gave it last; and running numbers that a weigher may keep.
    Of a task whose classes are given, also what the model said of its examples and of those that
    are verified, unless that were too many numbers.

    Updates wait where they were made until there are many of them or somebody asks: entered
    together they take a step of a small network no longer than without a tally."""

    def __init__(self, ids: Tensor, classes: Sequence[int] = (), verified: Tensor = NOBODY) -> None:
        size = len(ids)
        self.ids = ids.sort().values
        everybody = torch.cat([ids, verified])
        fits = bool(classes) and len(everybody) * len(classes) <= MOST_SAID
        asked = torch.tensor(sorted(classes) if fits else [], dtype=torch.long)
        self._said = Said(everybody if fits else NOBODY, asked)
        self.running = torch.full((size, NUMBERS), torch.nan)
        self._sums = torch.zeros(size, len(QUANTITIES), dtype=torch.float64)
        self._counts = torch.zeros(size, len(QUANTITIES), dtype=torch.long)
        self._predicted = torch.full((size,), UNKNOWN)
        self._waiting: list[Update] = []
        self._numbers = 0  # of the outputs that wait

    @classmethod
    def of_task(cls, task: Task) -> "Tally":
        """That of a task before its first step."""
        verified = NOBODY if task.trusted is None else task.trusted.ids
        return cls(task.train.ids, task.classes, verified)

    @property
    def sums(self) -> Tensor:
        """The sum of each quantity (rows, quantities)."""
        self._enter()
        return self._sums

    @property
    def counts(self) -> Tensor:
        """In how many updates each quantity was known (rows, quantities)."""
        self._enter()
        return self._counts

    @property
    def predicted(self) -> Tensor:
        """The class that the model gave each example last (rows,)."""
        self._enter()
        return self._predicted

    @property
    def said(self) -> Said:
        """What the model said of the examples; of nobody where that is not kept."""
        self._enter()
        return self._said

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each id (n,), and whether it has one (n,)."""
        return rows_of(self.ids, ids)

    def note(self, update: Update) -> None:
        """Take an update in, now or later."""
        waiting = self._waiting
        if waiting and kind_of(waiting[0]) != kind_of(update):
            self._enter()
        waiting.append(update)
        self._numbers += len(update.ids) if update.outputs is None else update.outputs.numel()
        if len(waiting) >= MOST_WAITING or self._numbers >= MOST_NUMBERS:
            self._enter()

    def _enter(self) -> None:
        """Enter the updates that wait, in their order."""
        if not self._waiting:
            return
        first_five = zip(*(update[:5] for update in self._waiting))
        ids, losses, weights, even, labels = (torch.cat(values) for values in first_five)
        margin, predicted = torch.full_like(losses, torch.nan), None
        if self._waiting[0].outputs is not None:
            outputs = torch.cat([u.outputs for u in self._waiting if u.outputs is not None])
            margin, predicted = margins(outputs, labels).to(losses), outputs.argmax(1).cpu()
            if len(self._said.ids):
                self._said.add(ids, outputs)
        self._waiting.clear()
        self._numbers = 0
        self.add(ids, torch.stack([losses, margin, weights / even], dim=1).cpu(), predicted)

    def add(self, ids: Tensor, values: Tensor, predicted: Tensor | None = None) -> None:
        """Enter (n, quantities) values of the examples of these ids, NaN where unknown, and the
        classes (n,) that the model gives them, of which the last counts; ids of other tasks do
        not."""
        place, known = self.rows(ids)
        mine = known.nonzero()[:, 0]  # once: a mask is searched anew at each use
        rows, entered = place[mine], values[mine]
        there = entered == entered  # what is not NaN
        self.sums.index_add_(0, rows, entered.double().nan_to_num_())
        self.counts.index_add_(0, rows, there.long())
        if predicted is not None:
            last = last_of_each(rows)
            self.predicted[rows[last]] = predicted[mine[last]]

    def means(self, ids: Tensor, quantity: str) -> Tensor:
        """The mean of one quantity of the examples of these ids (n,); NaN: never known."""
        column = QUANTITIES.index(quantity)
        place, known = self.rows(ids)
        if not len(self.ids):
            return torch.full((len(ids),), torch.nan, dtype=torch.float64)
        found = self.sums[place, column] / self.counts[place, column]
        return torch.where(known, found, torch.nan)

    def following(self, ids: Tensor) -> "Tally":
        """The same for these ids: what is known of them stays, all else goes, and also what the
        model said of them."""
        found = Tally(ids)
        place, known = self.rows(found.ids)
        for name in NAMES[1:]:
            getattr(found, name)[known] = getattr(self, name)[place[known]]
        return found

    def without(self, ids: Tensor) -> "Tally":
        """The same for all but these ids."""
        kept, heard = ~torch.isin(self.ids, ids), ~torch.isin(self.said.ids, ids)
        state = {name: getattr(self, name)[kept] for name in NAMES}
        said = {"said_ids": self.said.ids[heard], "said": self.said.sums[heard]}
        return self.from_state({**state, **said, "classes": self.said.classes})

    def state(self) -> State:
        said = {"said_ids": self.said.ids, "said": self.said.sums, "classes": self.said.classes}
        return {**{name: getattr(self, name) for name in NAMES}, **said}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Tally":
        made = cls(state["ids"])
        for name in NAMES:
            getattr(made, name).copy_(state[name])
        if "said" in state:  # older runs have none
            made._said = Said(state["said_ids"].clone(), state["classes"].clone())
            made._said.sums.copy_(state["said"])
        return made


NAMES = ("ids", "sums", "counts", "predicted", "running")


def rows_of(sorted_ids: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The row of each id (n,) among sorted ones, and whether it is one of them (n,)."""
    place = torch.searchsorted(sorted_ids, ids)
    if not len(sorted_ids):
        return place, torch.zeros(len(ids), dtype=torch.bool)
    place = place.clamp_(max=len(sorted_ids) - 1)
    return place, sorted_ids[place] == ids


def kind_of(update: Update) -> tuple[object, ...]:
    """What updates that are entered together have in common."""
    outputs = update.outputs
    return outputs if outputs is None else outputs.shape[1], update.labels.shape[1:]


def last_of_each(rows: Tensor) -> Tensor:
    """Where each number of ``rows`` (n,) occurs last."""
    ordered = rows.sort(stable=True)
    ends = torch.ones(len(rows), dtype=torch.bool)
    ends[:-1] = ordered.values[1:] != ordered.values[:-1]
    return ordered.indices[ends]


def fate(kept: bool, weight: float | None) -> str:
    """What became of an example, by whether the memory keeps it and its mean weight relative to an
    even one."""
    if kept:
        return "kept"
    if weight is None or weight >= HALF:
        return "learned"
    return "weighted down" if weight >= HARDLY else "dropped"


def are_classes(outputs: Tensor, labels: Tensor) -> bool:
    """Whether outputs (n, classes) and labels (n,) are those of a classification."""
    fits = outputs.dim() == 2 and outputs.shape[1] > 1 and labels.dim() == 1
    return fits and not labels.is_floating_point()


def margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """The logit of each row's label less the largest other, shape (n,)."""
    places = labels[:, None]
    others = outputs.scatter(1, places, -torch.inf)
    return outputs.gather(1, places)[:, 0] - others.amax(1)

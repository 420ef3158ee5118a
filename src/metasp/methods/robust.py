"""MetaSP against wrong labels: new examples weigh by their influence on examples that are right.

The goal V holds verified examples where there are any, and elsewhere those of each class that the
model finds easiest. Influence is taken through a fresh head, one of zeros, on the network's
features: in a head that has learned, an example it has fitted has no gradient and so no influence,
also one whose wrong label it knows by heart. See docs/methods/metasp-robust.md."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from metasp.methods.goal import fresh_head_influence, goal_means, seen_by
from metasp.methods.learner import Learner, Objective, Step, Weighed, Weigher, unweighed
from metasp.methods.method import Method, Phase, Settings
from metasp.methods.mixture import Mixture
from metasp.spec import setting
from metasp.types import Batch, State

INFLUENCE, ANSWER, RIGHT = range(3)  # the columns of the tally's running numbers


@dataclass(frozen=True, kw_only=True)
class RobustSettings(Settings):
    easiest: int = setting(12, "Examples that stand for a class of which none is verified.", min=2)
    weigh_from: int = setting(2, "First epoch of a task whose examples are weighed.", min=2)
    answer_from: int = setting(
        3, "First epoch of a task in which the model's own answers count too.", min=2
    )
    shuffle_influence: bool = setting(
        False, "Control: deal the weights at random within the batch."
    )


@final
class Robust(Method):
    """Experience replay that drops what is probably mislabelled."""

    judges = True
    classes = True
    Settings = RobustSettings
    selection: ClassVar[str | None] = "judged"

    def __init__(self, learner: Learner, settings: RobustSettings) -> None:
        super().__init__(learner, settings)
        if learner is not None:  # None: only to carry settings
            learner.weigh = self.weigher(settings)

    @classmethod
    def weigher(cls, settings: RobustSettings) -> Weigher:
        return RobustWeights(settings)

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


class RobustWeights(Weigher):
    """New examples weigh as much as their label is likely right; replayed ones keep their share,
    and so do the new ones together. At the start of each epoch all examples of the task are judged,
    in one pass."""

    judges = True

    def __init__(self, settings: RobustSettings) -> None:
        self.settings = settings
        self.epoch = 0  # the last one that was judged

    def begin_task(self, learner: Learner) -> None:
        self.epoch = 0

    def __call__(self, learner: Learner, batch: Batch, objective: Objective) -> Weighed:
        if learner.epoch != self.epoch:
            self.epoch = learner.epoch
            self._judge(learner)
        weighed = unweighed(learner, batch, objective)
        if learner.epoch + 1 < self.settings.weigh_from:
            return weighed
        rows, known = learner.tally.rows(batch.ids[: learner.arrived])
        right = torch.where(known, learner.tally.running[rows, RIGHT], 1.0)
        return self._weighted(learner, weighed, right.nan_to_num(nan=1.0))

    def _judge(self, learner: Learner) -> None:
        """Look at every example of the task, and say how likely its label is right."""
        tally, current = learner.tally, learner.current
        assert current is not None
        labels = current.labels.cpu()
        rows, _ = tally.rows(current.ids)
        seen = seen_by(learner, current)
        easy = tally.means(current.ids, "loss").nan_to_num(nan=torch.inf)
        means, known = goal_means(learner, seen, easy, self.settings.easiest)
        now = torch.zeros(len(known), dtype=torch.bool)
        now[[label for label in set(labels.tolist()) if label < len(known)]] = True
        found = fresh_head_influence(seen.features, labels, means, known, ~now)
        follow(tally.running, rows, INFLUENCE, found)
        if learner.epoch + 1 >= self.settings.answer_from:
            follow(tally.running, rows, ANSWER, answer_margins(seen.outputs, labels))
        self._note(learner, labels, rows)

    def _note(self, learner: Learner, labels: Tensor, rows: Tensor) -> None:
        """Fit the mixture to what is known of the examples, and note their chances."""
        running = learner.tally.running
        value = running[rows, INFLUENCE] + running[rows, ANSWER].nan_to_num()
        known = ~value.isnan()
        if known.any():
            mixture = Mixture.fit(value[known], labels[known], int(labels.max()) + 1)
            chance = mixture.probability(value[known], labels[known])
            running[rows[known], RIGHT] = chance.to(running)

    def _weighted(self, learner: Learner, weighed: Weighed, right: Tensor) -> Weighed:
        """The update with the new examples' share dealt by how likely each label is right."""
        right = right.to(weighed.weights)
        if self.settings.shuffle_influence:
            right = right[torch.randperm(len(right), generator=learner.streams["shuffle"])]
        weights = weighed.weights.clone()
        new = weights[: len(right)]
        if not bool((right == right[0]).all()) or right[0] == 0:  # equal ones change no bit
            dealt = new * right
            total = dealt.sum()
            weights[: len(right)] = dealt * (new.sum() / total) if total > 0 else 0.0
        numbers = {"doubted": float((right < 0.5).float().mean())}
        return replace(weighed, weights=weights, numbers=numbers)

    def judged(self, learner: Learner) -> Tensor | None:
        """How likely the label of each example of the tally is right; NaN: never met."""
        right = learner.tally.running[:, RIGHT]
        return None if bool(right.isnan().all()) else right.double()

    def state(self) -> State:
        return {"epoch": torch.tensor(self.epoch)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.epoch = int(state["epoch"])


def follow(running: Tensor, rows: Tensor, column: int, values: Tensor) -> None:
    """Move running means half the way to new values; the first is taken whole."""
    before, values = running[rows, column], values.to(running)
    moved = torch.where(before.isnan(), values, (before + values) / 2)
    running[rows, column] = torch.where(values.isnan(), before, moved)


def answer_margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """The probability of each row's label less the largest other, shape (n,)."""
    chances = outputs.softmax(1)
    own = chances.gather(1, labels[:, None])[:, 0]
    return own - chances.scatter(1, labels[:, None], -1.0).amax(1)

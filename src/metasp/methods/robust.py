"""MetaSP against wrong labels: new examples weigh by their influence on examples that are right.

The goal V holds verified examples where there are any, and elsewhere those of each class that the
model finds easiest. Influence is taken through a fresh head, one of zeros, on the features of the
pass: in a head that has learned, an example it has fitted has no gradient and so no influence, also
one whose wrong label it knows by heart. See docs/methods/metasp-robust.md."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from metasp.methods.features import features_seen
from metasp.methods.goal import Goal
from metasp.methods.learner import Learner, Objective, Step, Weighed, Weigher, unweighed
from metasp.methods.method import Method, Phase, Settings
from metasp.methods.mixture import Mixture
from metasp.spec import setting
from metasp.types import Batch, State

INFLUENCE, ANSWER = 0, 1  # the columns of the tally's running scores


@dataclass(frozen=True, kw_only=True)
class RobustSettings(Settings):
    goal_size: int = setting(64, "Examples of the goal at a time, half of them new.", min=4)
    goal_every: int = setting(2, "Look at the goal anew at every k-th step.", min=1)
    easiest: int = setting(12, "Examples that stand for a class of which none is verified.", min=2)
    weigh_from: int = setting(2, "First epoch of a task whose examples are weighed.", min=1)
    answer_from: int = setting(
        3, "First epoch of a task in which the model's own answers count too.", min=1
    )
    shuffle_influence: bool = setting(
        False, "Control: deal the weights at random within the batch."
    )


@final
class Robust(Method):
    """Experience replay that drops what is probably mislabelled."""

    measures = True
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
    and so do the new ones together."""

    judges = True

    def __init__(self, settings: RobustSettings) -> None:
        self.settings = settings
        self.goal = Goal(settings.goal_size, settings.easiest)
        self.mixture: Mixture | None = None
        self.epoch, self.steps = -1, 0

    def begin_task(self, learner: Learner) -> None:
        self.goal = Goal(self.settings.goal_size, self.settings.easiest)
        self.mixture, self.epoch, self.steps = None, -1, 0

    def __call__(self, learner: Learner, batch: Batch, objective: Objective) -> Weighed:
        with features_seen(learner.model) as seen:
            weighed = unweighed(learner, batch, objective)
        if learner.epoch != self.epoch:
            self._begin_epoch(learner)
        if not self.goal.ready(learner):
            return weighed
        if self.steps % self.settings.goal_every == 0:
            self.goal.look(learner)
        self.steps += 1
        new = slice(0, learner.arrived)
        fresh = Batch(batch.inputs[new], batch.labels[new].cpu(), batch.ids[new])
        influence = self.goal.influence(seen[0][new].detach(), fresh.labels)
        value = self._followed(learner, fresh, influence, weighed.outputs)
        if learner.epoch + 1 < self.settings.weigh_from:
            return weighed
        if self.mixture is None:
            right = (2 * influence).clamp(0, 1)
        else:
            right = self.mixture.probability(value, fresh.labels)
        return self._weighted(learner, weighed, right.nan_to_num(nan=1.0))

    def _begin_epoch(self, learner: Learner) -> None:
        """Judge by all that the epochs before have shown, and choose who stands for a class."""
        self.epoch = learner.epoch
        self.mixture = self._fitted(learner) or self.mixture
        self.goal.choose(learner)

    def _fitted(self, learner: Learner) -> Mixture | None:
        """A mixture of the running values of the task's examples, once there are some."""
        value, labels = totals(learner), labels_of(learner)
        known = ~value.isnan()
        if not known.any():
            return None
        return Mixture.fit(value[known], labels[known], int(labels.max()) + 1)

    def _followed(
        self, learner: Learner, new: Batch, influence: Tensor, outputs: Tensor | None
    ) -> Tensor:
        """The running value (n,) of new examples, with what this step says of them."""
        rows, known = learner.tally.rows(new.ids)
        running = learner.tally.running
        follow(running[:, INFLUENCE], rows[known], influence[known])
        if outputs is not None and learner.epoch + 1 >= self.settings.answer_from:
            answers = answer_margins(outputs[: new.size].detach(), new.labels.to(outputs.device))
            follow(running[:, ANSWER], rows[known], answers.cpu()[known])
        return totals(learner)[rows]

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
        mixture = self._fitted(learner)
        if mixture is None:
            return None
        value = totals(learner)
        right = mixture.probability(value.nan_to_num(), labels_of(learner))
        return torch.where(value.isnan(), torch.nan, right)

    def state(self) -> State:
        state = {f"goal/{name}": value for name, value in self.goal.state().items()}
        if self.mixture is not None:
            state |= {f"mixture/{name}": t for name, t in self.mixture.state().items()}
        return state | {"counters": torch.tensor([self.epoch, self.steps])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.goal.restore(part_of(state, "goal/"))
        mixture = part_of(state, "mixture/")
        self.mixture = Mixture.from_state(mixture) if mixture else None
        self.epoch, self.steps = state["counters"].tolist()


def part_of(state: Mapping[str, Tensor], prefix: str) -> State:
    return {k.removeprefix(prefix): t for k, t in state.items() if k.startswith(prefix)}


def follow(running: Tensor, rows: Tensor, values: Tensor) -> None:
    """Move the running means in these rows half the way to new values; the first is taken whole."""
    before, values = running[rows], values.to(running)
    moved = torch.where(before.isnan(), values, (before + values) / 2)
    running[rows] = torch.where(values.isnan(), before, moved)


def totals(learner: Learner) -> Tensor:
    """What is known of each example of the tally: its running influence, and the margin of the
    model's answers where it has one."""
    running = learner.tally.running
    return running[:, INFLUENCE] + running[:, ANSWER].nan_to_num()


def labels_of(learner: Learner) -> Tensor:
    """The given label of each example of the tally, in its order."""
    current = learner.current
    assert current is not None
    return current.labels.cpu()[current.ids.argsort()]


def answer_margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """The probability of each row's label less the largest other, shape (n,)."""
    chances = outputs.softmax(1)
    own = chances.gather(1, labels[:, None])[:, 0]
    return own - chances.scatter(1, labels[:, None], -1.0).amax(1)

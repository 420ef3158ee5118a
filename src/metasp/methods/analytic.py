"""Analytic heads on fixed features: streaming LDA, and a ridge on random ReLU features.

Both are closed forms of sums over examples: one pass learns them, in any order and without a
memory, and a rank-one update takes an example out again. The features are the network's inputs, as
a frozen encoder or a file of arrays gives them; the network itself learns nothing."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp import trees
from metasp.errors import UserError
from metasp.example_stats import Update
from metasp.methods.base import Method, Phase
from metasp.methods.context import Scoring, Step, TrainingContext
from metasp.methods.label_model import Reference, judge_labels
from metasp.methods.settings import AnalyticSettings, RidgeSettings
from metasp.stateful import below, under
from metasp.trees import Tree, one_tensor
from metasp.types import Batch, State, Task, as_rows

PENALTIES = 10.0 ** torch.arange(-6, 9, 0.5, dtype=torch.float64)
WEIGHINGS = 2  # times that a task's labels are judged by the head and weighed anew
TINY = 1e-12
AT_ONCE = 256  # examples that are kept in one piece
NEARLY_ONE = 1 - 1e-6  # a leverage above it leaves nothing that the inverse could be of


class Learned(NamedTuple):
    """Features (n, d), weights (n,), labels (n,) and ids (n,) of examples."""

    features: Tensor
    weights: Tensor
    labels: Tensor
    ids: Tensor

    def at(self, index: "Tensor | slice[int, int, None]") -> "Learned":
        return Learned(*(column[index] for column in self))

    @staticmethod
    def join(parts: Sequence["Learned"]) -> "Learned":
        return Learned(*(torch.cat(columns) for columns in zip(*parts)))


class AnalyticHead(Method):
    """Sums over examples x (m,) with weights w, in float64: `gram` Σ w x xᵀ (m, m), `moments` Σ w x
    of each class (m, classes), and `totals` Σ w of each class (classes,).

    inverse: of the matrix that the head solves, `penalty` added to its diagonal; None: to compute.
    learned: features and weights of all examples, a few in each batch, so that any of them can be
        forgotten."""

    needs = ("classes", "own loss", "own schedule")
    updates = False
    selection = None
    keeps_verified = True
    Settings = AnalyticSettings
    settings: AnalyticSettings
    stored: ClassVar[tuple[str, ...]] = ("gram", "moments", "totals", "inverse", "penalty")

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.gram, self.moments = torch.zeros(2, 0, 0, dtype=torch.float64)
        self.totals = torch.zeros(0, dtype=torch.float64)
        self.inverse: Tensor | None = None
        self.penalty = 0.0
        self.learned: list[Learned] = []

    @abstractmethod
    def solve(self) -> None:
        """Compute `inverse`, and `penalty` where it follows from the sums."""

    @abstractmethod
    def weights_and_bias(self) -> tuple[Tensor, Tensor | float]:
        """Return the head, which scores x·weights + bias, of the sums and the inverse."""

    @abstractmethod
    def lost(self, x: Tensor, label: int, weight: float) -> Tensor:
        """Return v (m,) where the solved matrix is less by v vᵀ without an example."""

    @abstractmethod
    def leave_one_out(self, x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the scores (n, classes) of learned examples by heads that each lack the one."""

    def entering(self, features: Tensor) -> Tensor:
        """Return what the head sees (n, m) of features (n, d), in float64."""
        return features.double()

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        size, examples = len(task.train), (lambda: task.train)
        return [Phase("fit", 1, self.learner.plan.batch_size, size, examples)]

    def begin_task(self, task: Task) -> None:
        self.widen(task.classes)
        if task.trusted is not None and len(task.trusted):
            verified = task.trusted.take(torch.arange(len(task.trusted)))
            self.learn(verified, self.settings.verified_weight)

    def step(self, new: Batch, phase: Phase) -> Step:
        self.widen(new.labels.tolist())
        self.learn(new, 1.0)
        return Step(0.0)

    def learn(self, new: Batch, weight: float) -> None:
        """Add raw examples with a weight to the sums."""
        features, labels = self.features(self.learner.unaugmented(new)), new.labels.cpu()
        weights = torch.full((len(labels),), weight, dtype=torch.float64)
        self.add(self.entering(features), labels, weights)
        self.learned.append(Learned(features, weights, labels, new.ids))

    def features(self, batch: Batch) -> Tensor:
        """Return the features (n, d) of prepared examples."""
        return as_rows(one_tensor(batch.inputs, "an analytic head")).float().cpu()

    def widen(self, classes: Sequence[int]) -> None:
        """Make room for classes up to the last of these."""
        more = max(classes, default=-1) + 1 - len(self.totals)
        if more > 0:
            self.totals, self.moments = (
                F.pad(self.totals, (0, more)),
                F.pad(self.moments, (0, more)),
            )

    def add(self, x: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Add examples x (n, m) to the sums; those of negative weights are taken out."""
        if not len(self.gram):
            self.gram = x.new_zeros(x.shape[1], x.shape[1])
            self.moments = x.new_zeros(x.shape[1], len(self.totals))
        weighted = x * weights[:, None]
        self.gram.addmm_(weighted.T, x)
        self.moments.index_add_(1, labels, weighted.T)
        self.totals.index_add_(0, labels, weights)
        self.inverse = None

    def solved(self) -> Tensor:
        """Return the inverse, computed if the sums have changed."""
        if self.inverse is None:
            self.solve()
        assert self.inverse is not None
        return self.inverse

    def end_task(self, task: Task) -> None:
        """Score the task's examples, each by a head without it: its labels are weighed by these
        scores if the settings say so, and suspects are listed by them."""
        batch = self.pop(task.ids)
        if batch is None:
            return
        x, weights = self.entering(batch.features), batch.weights
        verified = torch.zeros(len(weights), dtype=torch.bool)
        if task.trusted is not None:
            verified = torch.isin(batch.ids, task.trusted.ids)
        for _ in range(WEIGHINGS if self.settings.weigh_labels else 0):
            scores = self.leave_one_out(x, batch.labels, weights)
            new_weights = torch.where(verified, weights, right_by(scores, batch.labels, verified))
            self.add(x, batch.labels, new_weights - weights)
            weights = new_weights
        scores = self.leave_one_out(x, batch.labels, weights)
        losses = F.cross_entropy(scores, batch.labels, reduction="none")
        even = torch.ones_like(weights)
        update = Update(batch.ids, losses, weights, even, batch.labels, scores)
        self.learner.training_stats.note(update)
        if self.settings.keep_features:
            self.keep(batch._replace(weights=weights))

    def pop(self, ids: Tensor) -> Learned | None:
        """Return the examples of these ids, and keep them no longer; None: there are none."""
        popped, rest = [], []
        for batch in self.learned:
            wanted = torch.isin(batch.ids, ids)
            popped += [batch.at(wanted)] if wanted.any() else []
            rest += [] if wanted.all() else [batch.at(~wanted)] if wanted.any() else [batch]
        self.learned = rest
        return Learned.join(popped) if popped else None

    def keep(self, batch: Learned) -> None:
        """Keep examples, a few in each batch: forgetting copies the rest of one."""
        for start in range(0, len(batch.ids), AT_ONCE):
            self.learned.append(batch.at(slice(start, start + AT_ONCE)))

    def scoring(self) -> Scoring:
        """Return how the head scores the classes that it has learned; of others −∞."""
        if not bool(self.totals.any()):
            return self.learner.outputs
        weights, bias = self.weights_and_bias()
        unknown = self.totals <= 0

        def scores(inputs: Tree) -> Tensor:
            one = self.learner.outputs(trees.rows(inputs, slice(1)))
            x = self.entering(as_rows(one_tensor(inputs, "an analytic head")).float().cpu())
            by_head = (x @ weights + bias).masked_fill(unknown, -torch.inf)
            width = max(0, one.shape[1] - by_head.shape[1])
            return F.pad(by_head, (0, width), value=-torch.inf)[:, : one.shape[1]].to(one)

        return scores

    def forget(self, ids: Tensor) -> None:
        """Take examples out again, as if they had never been learned: by a rank-one update of the
        inverse each."""
        if len(ids) and not self.settings.keep_features:
            raise UserError("keep_features is off, so that nothing can be forgotten: leave it on.")
        if (batch := self.pop(ids)) is not None:
            for row in range(len(batch.ids)):
                self.take_out(batch.at(slice(row, row + 1)))

    def take_out(self, one: Learned) -> None:
        """Take one example out of the sums and of the inverse."""
        x, inverse = self.entering(one.features), self.inverse
        if inverse is not None:
            lost = self.lost(x[0], int(one.labels), float(one.weights))
            solution = inverse @ lost
            leverage = float(lost @ solution)
        self.add(x, one.labels, -one.weights)
        if inverse is not None and leverage < NEARLY_ONE:
            # (M − v vᵀ)⁻¹ = M⁻¹ + M⁻¹v vᵀM⁻¹ / (1 − vᵀM⁻¹v)
            self.inverse = inverse.addr_(solution, solution, alpha=1 / (1 - leverage))

    def state_dict(self) -> State:
        learned = Learned.join(self.learned)._asdict() if self.learned else {}
        return {**super().state_dict(), **under("learned", learned)}

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        super().load_state_dict(state)
        self.learned, learned = [], below("learned", state)
        if learned:
            self.keep(Learned(**learned))


def right_by(scores: Tensor, labels: Tensor, verified: Tensor) -> Tensor:
    """Return how likely the labels (n,) are right by scores (n, classes); 1 where unknown."""
    scores = scores - scores.mean(1, keepdim=True)  # only differences say anything
    reference = Reference(scores[verified], labels[verified], verified[verified])
    judged = judge_labels(scores, labels, reference)
    return judged.odds.sigmoid().nan_to_num(nan=1.0)


@final
class StreamingLDA(AnalyticHead):
    """A Gaussian for each class around its mean, all of one covariance."""

    def class_means(self) -> Tensor:
        """Return the mean (m, classes) of each class, zero where there is none."""
        means: Tensor = self.moments / self.totals.clamp_min(TINY)
        return means

    def solve(self) -> None:
        """Invert the scatter within classes, shrunk towards the identity."""
        shrinkage = self.settings.shrinkage
        self.penalty = float(self.totals.sum()) * shrinkage / (1 - shrinkage)
        within = self.gram - self.class_means() @ self.moments.T
        within.diagonal().add_(self.penalty)
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(within))

    def weights_and_bias(self) -> tuple[Tensor, Tensor | float]:
        means = self.class_means()
        weights = float(self.totals.sum()) * self.solved() @ means
        return weights, -(means * weights).sum(0) / 2

    def lost(self, x: Tensor, label: int, weight: float) -> Tensor:
        # The scatter of a class of total s is less by w s/(s − w) (x − μ)(x − μ)ᵀ without x.
        total = float(self.totals[label])
        factor = weight * total / (total - weight) if total - weight > TINY else 0.0
        lost: Tensor = (x - self.moments[:, label] / total) * factor**0.5
        return lost

    def leave_one_out(self, x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        inverse, means = self.solved(), self.class_means()
        rest = (self.totals[labels] - weights).clamp_min(TINY)
        factor = (weights * self.totals[labels] / rest).sqrt()[:, None]
        head, solved = inverse @ means, x @ inverse
        v, solution = factor * (x - means.T[labels]), factor * (solved - head.T[labels])
        room = (1 - (solution * v).sum(1)).clamp_min(TINY)[:, None]
        along, of_x = v @ head, (solution * x).sum(1, keepdim=True)
        # By M⁻¹ + M⁻¹v vᵀM⁻¹ / (1 − vᵀM⁻¹v), and for its own class by the mean μ + c (μ − x).
        cross = x @ head + of_x * along / room
        squares = (means * head).sum(0) + along.square() / room
        itself = (solved * x).sum(1, keepdim=True) + of_x.square() / room
        c = (weights / rest)[:, None]
        own_cross = (1 + c) * cross - c * itself
        own_squares = (1 + c) ** 2 * squares - 2 * c * (1 + c) * cross + c**2 * itself
        own_class = F.one_hot(labels, len(self.totals)).bool()
        scores = torch.where(own_class, own_cross - own_squares / 2, cross - squares / 2)
        scores *= (self.totals.sum() - weights)[:, None]
        return scores


@final
class Ridge(AnalyticHead):
    """Ridge regression on one-hot labels, of features after a random layer."""

    Settings = RidgeSettings
    settings: RidgeSettings
    stored = (*AnalyticHead.stored, "projection")

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.projection = torch.zeros(0, 0)

    def entering(self, features: Tensor) -> Tensor:
        if not len(self.projection):
            size = features.shape[1], self.settings.random_features
            self.projection = torch.randn(size, generator=self.learner.streams["projection"])
        return (features @ self.projection).relu().double()

    def solve(self) -> None:
        """Choose the penalty by generalised cross-validation, and invert."""
        values, vectors = torch.linalg.eigh(self.gram)
        values = values.clamp_min(0)
        explained = (vectors.T @ self.moments).square().sum(1)
        shrunk = values + PENALTIES[:, None]
        total = self.totals.sum()
        residual = total - (explained * (values + 2 * PENALTIES[:, None]) / shrunk**2).sum(1)
        freedom = total - (values / shrunk).sum(1)
        self.penalty = float(PENALTIES[(residual / freedom.square()).argmin()])
        self.inverse = (vectors / (values + self.penalty)) @ vectors.T

    def weights_and_bias(self) -> tuple[Tensor, Tensor | float]:
        return self.solved() @ self.moments, 0.0

    def lost(self, x: Tensor, label: int, weight: float) -> Tensor:
        lost: Tensor = x * weight**0.5
        return lost

    def leave_one_out(self, x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        solution = x @ self.solved()
        leverage = (weights * (solution * x).sum(1))[:, None].clamp_max(NEARLY_ONE)
        target = F.one_hot(labels, len(self.totals))
        # y − ŷ₋ᵢ = (y − ŷ) / (1 − h)
        scores: Tensor = target - (target - solution @ self.moments) / (1 - leverage)
        return scores

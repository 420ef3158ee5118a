"""iCaRL (Rebuffi et al. 2017): old classes are held to what the network said before the task, and
an example is of the class whose exemplars have the nearest mean feature."""

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import normalize

from metasp import trees
from metasp.methods.base import Method, Phase, over_task
from metasp.methods.context import Scoring, Step, TrainingContext
from metasp.methods.losses import Term, members
from metasp.methods.network_copies import NetworkCopy
from metasp.trees import Tree
from metasp.types import Batch, Task


@final
class ICaRL(Method):
    needs = ("boundaries", "classes", "own loss")
    weight_decay = 1e-5
    selection = "herding"
    stored = ("seen", "distilled", "old")

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.seen: list[int] = []  # the classes up to the task at hand
        self.distilled: list[int] = []  # of these, the ones that it does not have
        self.old = NetworkCopy(learner)  # the network as it was before the task

    def begin_task(self, task: Task) -> None:
        self.distilled = sorted({*self.seen} - {*task.classes})
        self.seen = sorted({*self.seen, *task.classes})
        self.old.drop()
        if self.distilled:
            self.old.take()

    def step(self, new: Batch, phase: Phase) -> Step:
        """Alg. 3: sigmoids of new classes by their labels, of old ones by the network before."""
        batch = self.learner.with_replay(new)
        targets = self.one_hot(batch.labels)
        if self.distilled:
            said = self.old.outputs(batch.inputs)
            targets[:, self.distilled] = said[:, self.distilled].sigmoid()
        terms = [Term(batch, lambda outputs, labels: self.losses(outputs, targets))]
        return self.learner.update(terms, goal=self.goal)

    def goal(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.losses(outputs, self.one_hot(labels))

    def one_hot(self, labels: Tensor) -> Tensor:
        """Return 1 for the label's class among those up to the last that was seen, 0 elsewhere."""
        classes = torch.arange(max(self.seen) + 1, device=labels.device)
        return (classes == labels[:, None]).float()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy (n,) of a row's sigmoids for the classes seen."""
        width = targets.shape[1]
        seen = members(self.seen, width, outputs)
        each = F.binary_cross_entropy_with_logits(outputs[:, :width], targets, reduction="none")
        return (each * seen).sum(1) / seen.sum()

    @torch.no_grad()
    def scoring(self) -> Scoring:
        """How near each class's mean of exemplars is; classes without exemplars are never
        chosen. Without any, the outputs decide."""
        learner = self.learner
        held = learner.memory.examples()
        if not len(held):
            return learner.outputs
        features = over_task(learner, held, lambda batch: learner.features(batch.inputs))
        labels, rows = held.labels.cpu(), normalize(features)
        classes = sorted(set(labels.tolist()))
        means = torch.stack([rows[labels == label].mean(0) for label in classes])
        return nearest(learner, classes, normalize(means).to(learner.device))


def nearest(learner: TrainingContext, classes: list[int], means: Tensor) -> Scoring:
    """Scores by the distance of features, brought to length 1, to the mean of each class."""

    def scores(inputs: Tree) -> Tensor:
        gaps = torch.cdist(normalize(learner.features(inputs)), means)
        one = learner.outputs(trees.rows(inputs, slice(1)))
        found = torch.full_like(one, -torch.inf).repeat(len(gaps), 1)
        found[:, classes] = -gaps.to(found)
        return found

    return scores

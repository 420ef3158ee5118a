"""iCaRL (Rebuffi et al. 2017): old classes are held to what the network said before the task, and
an example is of the class whose exemplars have the nearest mean feature."""

from collections.abc import Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp import trees
from metasp.memory.representative import unit_rows
from metasp.methods.context import Objective, Scoring, Step, TrainingContext
from metasp.methods.copies import Copy, as_state, copy_of, from_state, outputs_by
from metasp.methods.method import Method, Phase, over_task
from metasp.methods.terms import members
from metasp.trees import Tree
from metasp.types import Batch, State, Task


@final
class ICaRL(Method):
    classes = True
    boundaries = True
    own_loss = True
    weight_decay = 1e-5
    selection = "herding"

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.seen: list[int] = []  # the classes up to the task at hand
        self.distilled: list[int] = []  # of these, the ones that it does not have
        self.old: Copy = {}  # the network as it was before the task

    def begin_task(self, task: Task) -> None:
        self.distilled = sorted({*self.seen} - {*task.classes})
        self.seen = sorted({*self.seen, *task.classes})
        self.old = {}
        if self.distilled:
            self.old = copy_of(self.learner.model)

    def step(self, new: Batch, phase: Phase) -> Step:
        batch = self.learner.with_replay(new)
        targets = self.wanted(batch.labels)
        if self.distilled:
            said = outputs_by(self.learner, self.old, batch.inputs)
            targets[:, self.distilled] = said[:, self.distilled].sigmoid()
        objective = Objective(losses, targets, goal=self.wanted)
        return self.learner.update(batch, objective=objective)

    def wanted(self, labels: Tensor) -> Tensor:
        """Targets (n, outputs) of the sigmoids: 1 for the label's class, 0 for all others that were
        seen, NaN for those that were not."""
        width = max(self.seen) + 1
        own = torch.arange(width, device=labels.device) == labels[:, None]
        seen = members(self.seen, width, labels)
        return own.float().masked_fill(~seen, torch.nan)

    @torch.no_grad()
    def scoring(self) -> Scoring:
        """How near each class's mean of exemplars is; classes without exemplars are never
        chosen. Without any, the outputs decide."""
        learner = self.learner
        held = learner.memory.examples()
        if not len(held):
            return learner.outputs
        features = over_task(learner, held, lambda batch: learner.features(batch.inputs))
        labels, rows = held.labels.cpu(), unit_rows(features)
        classes = sorted(set(labels.tolist()))
        means = torch.stack([rows[labels == label].mean(0) for label in classes])
        return nearest(learner, classes, unit_rows(means).to(learner.device))

    def state(self) -> State:
        known = {"seen": torch.tensor(self.seen), "distilled": torch.tensor(self.distilled)}
        return {**known, **as_state("old", self.old)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.seen, self.distilled = state["seen"].tolist(), state["distilled"].tolist()
        self.old = from_state("old", state, self.learner.model)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy (n,) of a row's sigmoids with those of its targets that are known."""
    known = ~targets.isnan()
    each = F.binary_cross_entropy_with_logits(
        outputs[:, : targets.shape[1]], targets.nan_to_num(), reduction="none"
    )
    return (each * known).sum(1) / known.sum(1)


def nearest(learner: TrainingContext, classes: list[int], means: Tensor) -> Scoring:
    """Scores by the distance of features, brought to length 1, to the mean of each class."""

    def scores(inputs: Tree) -> Tensor:
        gaps = torch.cdist(unit_rows(learner.features(inputs)), means)
        one = learner.outputs(trees.rows(inputs, slice(1)))
        found = torch.full_like(one, -torch.inf).repeat(len(gaps), 1)
        found[:, classes] = -gaps.to(found)
        return found

    return scores

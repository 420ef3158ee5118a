"""MetaSP: rehearsal whose update weighs each example by its influence on Stability and Plasticity.

The variants differ by settings alone: with selection by influence (RehSel), or with the influence
on Stability or on Plasticity only."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from metasp.errors import UserError, unknown
from metasp.memory import Selection
from metasp.memory.rehsel import CLUSTERING, rehsel, rehsel_as_written
from metasp.methods.base import Method, Phase, finetune_phase
from metasp.methods.context import Step, TrainingContext, Weigher
from metasp.methods.settings import MetaSPSettings, influence_epochs
from metasp.methods.weighting import InfluenceWeights, ScheduledWeights, checked_head
from metasp.types import Batch, Task

INFLUENCE_COST = 9.0  # of a step, in plain ones: 4.6 times a rehearsal step of twice the batch


@final
class MetaSP(Method):
    """Plain epochs first, then rehearsal weighted by influence."""

    weighted_sum = True
    needs = ("elementwise",)
    measures = True
    Settings = MetaSPSettings
    selection = "task-balanced"

    @classmethod
    def check(cls, settings: Any, memory_batch: int, selection: Selection) -> None:
        wanted, named = settings.cluster, selection.points
        if wanted is not None and selection.decide not in CLUSTERING:
            raise UserError(
                f"cluster is {wanted} but the selection does not cluster the task: leave it out, "
                "or use rehsel."
            )
        if wanted == "pixels" and named == "features":
            raise UserError("rehsel-features clusters features: use rehsel for pixels.")
        if settings.drop == "as-written" and selection.decide is not rehsel:
            raise UserError(
                "drop as-written is Algorithm 2 of RehSel: use selection rehsel or "
                "rehsel-features, or leave it out."
            )

    @classmethod
    def weigher(cls, learner: TrainingContext, settings: MetaSPSettings) -> Weigher:
        look_where_told(learner, settings)
        return ScheduledWeights(weights(settings), settings.every, settings.influence_last)

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        plan = self.learner.plan
        size, examples = len(task.train), (lambda: task.train)
        last = influence_epochs(self.settings.influence_last, plan.epochs) if task.index else 0
        phases = [
            finetune_phase(self.learner, task.train, plan.epochs - last),
            Phase("influence", last, plan.batch_size, size, examples, INFLUENCE_COST),
        ]
        return [phase for phase in phases if phase.epochs]

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))


def weights(settings: MetaSPSettings) -> InfluenceWeights:
    """How the settings weigh a batch."""
    return InfluenceWeights(
        rule=settings.rule,
        gamma=settings.gamma,
        strength=settings.strength,
        running=settings.running,
        steps=settings.pseudo_steps,
        scope=settings.scope,
        validation_old=settings.validation_old,
        validation_new=settings.validation_new,
        shuffle=settings.shuffle_influence,
        reuse=settings.reuse,
    )


def look_where_told(learner: TrainingContext, settings: MetaSPSettings) -> None:
    """Let the selection cluster what the settings say, and check what the influence looks at."""
    if settings.cluster is not None:
        learner.selection = replace(learner.selection, points=settings.cluster)
    if settings.drop == "as-written":
        learner.selection = replace(learner.selection, of=rehsel_as_written)
    if settings.scope is not None:
        check_scope(learner, settings.scope)
    if settings.reuse is not None:
        checked_head(learner, settings.scope)


def check_scope(learner: TrainingContext, scope: str) -> None:
    """Refuse a prefix that no trainable parameter has before the first task is trained, which needs
    no influence."""
    names = [name for name, p in learner.model.named_parameters() if p.requires_grad]
    if not any(name.startswith(scope) for name in names):
        raise unknown("scope", scope, {name.split(".")[0] for name in names})

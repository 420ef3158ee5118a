"""HAL (Chaudhry et al. 2021): predictions on one learned anchor per past class are held."""

from typing import Any, final

import torch
from torch import Tensor, nn

from metasp.influence.functional import Origin, Problem, gradient, kept_random_state, kept_values
from metasp.influence.pseudo_step import make_plan
from metasp.methods.base import Method, Phase, batch_bounds
from metasp.methods.context import Step, TrainingContext
from metasp.methods.gradients import (
    Named,
    loss_of,
    statistics_for,
    stepped,
    trainable,
    with_parameters_of,
)
from metasp.methods.network_copies import features_seen
from metasp.methods.settings import HALSettings
from metasp.trees import one_tensor
from metasp.types import Batch, Task, as_rows


@final
class HAL(Method):
    needs = ("boundaries", "classes", "elementwise", "real inputs")
    updates = False
    Settings = HALSettings
    lr = 0.03
    selection = "ring"
    settings: HALSettings
    stored = ("anchors", "anchors_ids", "mean_feature")

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.anchors: Tensor | None = None  # network inputs, one per class of the past tasks
        self.anchors_ids: Tensor | None = None  # the example each was learned from
        self.mean_feature: Tensor | None = None

    def begin_task(self, task: Task) -> None:
        self.mean_feature = None

    def step(self, new: Batch, phase: Phase) -> Step:
        learner = self.learner
        with features_seen(learner.model) as seen:
            losses = learner.losses(learner.with_replay(new))
        self.note_features(seen[0][: new.size].detach())
        learner.optimizer.zero_grad()
        torch.autograd.backward(losses.mean())
        if self.anchors is not None and len(self.anchors) > 1:  # a lone one has no statistics
            add_at_most_as_long(self.drift_gradient(self.anchors.to(learner.device)))
        learner.step()
        return Step(float(losses.detach().mean()))

    def drift_gradient(self, anchors: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Each parameter with the gradient of λ·mean‖trial − now‖² over the anchors, where trial
        are the predictions after the step along the gradients that have just been computed. One
        side is differentiated, at its own parameters, and the other is constant."""
        learner, named = self.learner, trainable(self.learner.model)
        now = {name: p.detach() for name, p in named.items()}
        trial = stepped(learner, {k: p.grad for k, p in named.items() if p.grad is not None})
        moving, fixed = (trial, now) if self.settings.drift_at == "trial" else (now, trial)
        leaves = {name: tensor.requires_grad_() for name, tensor in moving.items()}
        size = len(anchors)
        with with_parameters_of(learner, fixed, size):
            target = learner.outputs(anchors).detach()
        with with_parameters_of(learner, leaves, size):  # with the same dropout: it is no drift
            moved = learner.outputs(anchors) - target
            drift = as_rows(moved.float()).square().sum(1).mean()
            loss = self.settings.anchor_weight * drift
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return [(named[name], part) for name, part in zip(leaves, found) if part is not None]

    def note_features(self, features: Tensor) -> None:
        """Follow the mean feature (d,) of the task's batches."""
        kept, mean = self.settings.feature_memory, features.float().mean(0)
        if self.mean_feature is not None:
            mean = kept * self.mean_feature.to(mean) + (1 - kept) * mean
        self.mean_feature = mean

    def end_task(self, task: Task) -> None:
        super().end_task(task)
        if not len(self.learner.memory):
            return
        starts = self.starts(task)
        if starts is None:
            return
        learned = self.learn_anchors(starts, self.forgetful())
        if self.anchors is None or self.anchors_ids is None:
            self.anchors, self.anchors_ids = learned, starts.ids
        else:
            self.anchors = torch.cat([self.anchors.to(learned), learned])
            self.anchors_ids = torch.cat([self.anchors_ids, starts.ids])

    def starts(self, task: Task) -> Batch | None:
        """A random example of each of the task's classes, as network inputs; None where every
        label is wrong and of a class that is not the task's."""
        learner, labels = self.learner, task.train.labels.cpu()
        own = sorted({*labels.tolist()} & {*task.classes})
        rows = [torch.nonzero(labels == label).flatten() for label in own]
        if not own:
            return None
        draw = learner.streams["anchors"]
        chosen = [each[torch.randint(len(each), (1,), generator=draw)] for each in rows]
        return learner.unaugmented(task.train.take(torch.cat(chosen)))

    def forgetful(self) -> Named:
        """The parameters after one more epoch on the memory alone; the model stays as it is."""
        learner, model = self.learner, self.learner.model
        plan = make_plan(model, learner.optimizer, clip=learner.clip_norm).cold()
        theta, state = dict(plan.params), plan.update.state
        order = learner.memory.draw(len(learner.memory), learner.streams["anchors"])
        with statistics_for(model, min(len(order), learner.plan.memory_batch)):
            origin = Origin.of(model, learner.device)  # with the modes of the passes
        with kept_random_state(learner.device), kept_values(model):
            for start, stop in batch_bounds(len(order), learner.plan.memory_batch):
                batch = learner.prepare_replay(learner.memory.read(order[start:stop]))
                pair = (batch.inputs, batch.labels)
                problem = Problem(model, loss_of(learner), pair, origin, "memory")
                with statistics_for(model, batch.size), learner.autocast():
                    _, grads = gradient(problem, theta)
                plan = plan.restrict(grads)
                moved, state, _ = plan.step(theta, grads, state)
                theta = {**theta, **moved}
        return theta

    def learn_anchors(self, starts: Batch, forgetful: Named) -> Tensor:
        """Climb from the starts to inputs that would be forgotten, shape kept."""
        anchors, lr = one_tensor(starts.inputs, "hal"), self.learner.optimizer.param_groups[0]["lr"]
        for _ in range(self.settings.anchor_steps):
            anchors = anchors + lr * self.slope(starts._replace(inputs=anchors), forgetful)
        return anchors

    def slope(self, anchors: Batch, forgetful: Named) -> Tensor:
        """∇x of the rise of each anchor's loss when forgetting, less γ‖feature − mean feature‖²,
        in the shape of the inputs."""
        learner, model = self.learner, self.learner.model
        present = {name: p.detach() for name, p in trainable(model).items()}
        at = one_tensor(anchors.inputs, "hal").detach().requires_grad_()
        anchors = anchors._replace(inputs=at)
        with with_parameters_of(learner, forgetful, anchors.size):
            rising = torch.autograd.grad(learner.losses(anchors).sum(), at)[0]
        with features_seen(model) as seen, with_parameters_of(learner, present, anchors.size):
            known = learner.losses(anchors)
            mean = (
                seen[0].detach() if self.mean_feature is None else self.mean_feature.to(at.device)
            )
            away = (seen[0].float() - mean).square().sum(1)
            worth = -known - self.settings.feature_weight * away
            return rising + torch.autograd.grad(worth.sum(), at)[0]


def add_at_most_as_long(parts: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Add to the parameters' gradients, shortened to the length of these where it is longer: a
    pull that overshoots would drive the predictions that it is to hold."""
    own = torch.stack([p.grad.norm() for p, _ in parts if p.grad is not None]).norm()
    added = torch.stack([part.norm() for _, part in parts]).norm()
    scale = (own / added).clamp(max=1) if added > 0 else 1.0
    for parameter, part in parts:
        parameter.grad = scale * part + (0 if parameter.grad is None else parameter.grad)

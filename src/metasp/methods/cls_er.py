"""CLS-ER (Arani et al. 2022): replay held to the better of two running averages of the network.

The plastic average follows the network more often than the stable one, which predicts."""

from typing import Any, final

import torch
from torch import Tensor

from metasp.methods.base import Method, Phase
from metasp.methods.context import Scoring, Step, TrainingContext
from metasp.methods.losses import Term, distance_to
from metasp.methods.network_copies import NetworkCopy
from metasp.methods.settings import CLSERSettings
from metasp.types import Batch, Task, as_rows


@final
class CLSER(Method):
    Settings = CLSERSettings
    settings: CLSERSettings

    stored = ("taken", "reach", "plastic", "stable")

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.plastic, self.stable = NetworkCopy(learner), NetworkCopy(learner)
        self.taken = 0  # steps
        self.reach = 1.0  # steps of the task at hand that an average may span

    def begin_task(self, task: Task) -> None:
        self.averages()  # which begin as the network before its first step
        phases = [phase for phase in self.phases(task, [task]) if phase.step is None]
        self.reach = max(1.0, self.settings.span * sum(phase.steps for phase in phases))

    def step(self, new: Batch, phase: Phase) -> Step:
        """One pass over new and replayed examples by their labels; the replayed ones are also held
        to what an average says of them. Then the averages follow."""
        loss_fn = self.learner.loss_fn
        batch = self.learner.with_replay(new)
        old = batch.at(slice(new.size, None))
        consistency = distance_to(self.outputs_of(old)) if old.size else None
        # Alg. 1: CE of all, and of the replayed λ times the distance, as a mean over all rows.
        weight = torch.tensor(self.settings.consistency * batch.size / max(1, old.size))

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            losses = loss_fn(outputs, labels)
            if consistency is None:
                return losses
            pulled = weight.to(losses) * consistency(outputs[new.size :], old.labels)
            return torch.cat([losses[: new.size], losses[new.size :] + pulled])

        report = self.learner.update([Term(batch, loss)])
        self.update_averages()
        return report

    @torch.no_grad()
    def outputs_of(self, old: Batch) -> Tensor:
        """Return what the averages say (m, …) of replayed examples: of each, the one with lower
        loss."""
        loss_fn = self.learner.loss_fn
        plastic, stable = (average.outputs(old.inputs) for average in self.averages())
        better = loss_fn(stable, old.labels) < loss_fn(plastic, old.labels)
        return torch.where(better[:, None], as_rows(stable), as_rows(plastic))

    @torch.no_grad()
    def update_averages(self) -> None:
        """Move each average towards the network, with its chance; its first moves are longer."""
        self.taken += 1
        settings = self.settings
        limit = min(1 - 1 / (self.taken + 1), 1 - 1 / self.reach)
        rates = settings.plastic_rate, settings.stable_rate
        decays = settings.plastic_decay, settings.stable_decay
        for average, rate, decay in zip(self.averages(), rates, decays):
            draw = float(torch.rand(1, generator=self.learner.streams["averages"]))
            if draw < rate:
                average.move(min(limit, decay))

    def averages(self) -> tuple[NetworkCopy, NetworkCopy]:
        """Return the plastic and the stable average in the shape of the network, which they begin
        as."""
        for average in (self.plastic, self.stable):
            if not average.tensors:
                average.take()
            average.grow()
        return self.plastic, self.stable

    def scoring(self) -> Scoring:
        """The stable average answers."""
        return self.averages()[1].outputs

"""CLS-ER (Arani et al. 2022): replay held to the better of two running averages of the network.

The plastic average follows the network more often than the stable one, which predicts."""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from metasp.methods.context import Objective, Scoring, Step, TrainingContext
from metasp.methods.copies import Copy, as_state, copy_of, from_state, named, outputs_by
from metasp.methods.der import distance, parts_of, targets
from metasp.methods.method import Method, Phase
from metasp.methods.settings import CLSERSettings
from metasp.types import Batch, LossFn, State, Task, as_rows


@final
class CLSER(Method):
    Settings = CLSERSettings
    settings: CLSERSettings

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.averages: dict[str, Copy] = {"plastic": {}, "stable": {}}
        self.taken = 0  # steps
        self.reach = 1.0  # steps of the task at hand that an average may span

    def begin_task(self, task: Task) -> None:
        for name in self.averages:
            self.average(name)  # which begin as the network before its first step
        phases = [phase for phase in self.phases(task, [task]) if phase.step is None]
        self.reach = max(1.0, self.settings.span * sum(phase.steps for phase in phases))

    def step(self, new: Batch, phase: Phase) -> Step:
        """One pass over new and replayed examples by their labels; the replayed ones are also held
        to what an average says of them. Then the averages follow."""
        learner = self.learner
        batch = learner.with_replay(new)
        old = batch.at(slice(new.size, None))
        said = self.said(old) if old.size else torch.zeros(0, 1, device=learner.device)
        stored = torch.full((batch.size, said.shape[1]), torch.nan, device=learner.device)
        stored[new.size :] = said
        # Of `held` times a row's distance, the mean over all rows is λ times that of the replayed.
        held = torch.zeros(batch.size, device=learner.device)
        held[new.size :] = self.settings.consistency * batch.size / max(1, old.size)
        objective = Objective(
            by_label_and_distance(learner.loss_fn, batch.labels),
            targets=targets(held, batch.labels, stored),
            goal=lambda labels: targets(
                torch.zeros(len(labels)).to(held), labels, stored[:1].expand(len(labels), -1)
            ),
        )
        report = learner.update(batch, objective=objective)
        self.update_averages()
        return report

    @torch.no_grad()
    def said(self, old: Batch) -> Tensor:
        """What the averages say (m, …) of replayed examples: of each, the one with lower loss."""
        loss_fn = self.learner.loss_fn
        plastic, stable = (
            outputs_by(self.learner, self.average(name), old.inputs)
            for name in ("plastic", "stable")
        )
        better = loss_fn(stable, old.labels) < loss_fn(plastic, old.labels)
        return torch.where(better[:, None], as_rows(stable), as_rows(plastic))

    @torch.no_grad()
    def update_averages(self) -> None:
        """Move each average towards the network, with its chance; its first moves are longer."""
        self.taken += 1
        settings, network = self.settings, named(self.learner.model)
        limit = min(1 - 1 / (self.taken + 1), 1 - 1 / self.reach)
        for name, rate, decay in (
            ("plastic", settings.plastic_rate, settings.plastic_decay),
            ("stable", settings.stable_rate, settings.stable_decay),
        ):
            average = self.average(name)
            draw = float(torch.rand(1, generator=self.learner.streams["averages"]))
            if draw < rate:
                move(average, network, min(limit, decay))

    def average(self, name: str) -> Copy:
        """An average in the shape of the network, which it begins as; of a head that has grown it
        begins with the new places as they are."""
        now, copy = self.learner.model, self.averages[name]
        if not copy:
            copy = self.averages[name] = copy_of(now)
        for key, tensor in named(now).items():
            if copy[key].shape != tensor.shape:
                grown = tensor.detach().clone()
                grown[tuple(slice(size) for size in copy[key].shape)] = copy[key]
                copy[key] = grown
        return copy

    def scoring(self) -> Scoring:
        """The stable average answers."""
        stable = self.average("stable")
        return lambda inputs: outputs_by(self.learner, stable, inputs)

    def state(self) -> State:
        parts = [as_state(name, copy) for name, copy in self.averages.items()]
        numbers = {
            "taken": torch.tensor(self.taken),
            "reach": torch.tensor(self.reach, dtype=torch.float64),
        }
        return {**numbers, **parts[0], **parts[1]}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.taken, self.reach = int(state["taken"]), float(state["reach"])
        for name in self.averages:
            self.averages[name] = from_state(name, state, self.learner.model)


def move(average: Copy, network: Copy, decay: float) -> None:
    """Part of the way to the network, in place; what is counted in whole numbers is taken over."""
    for key, tensor in network.items():
        if tensor.is_floating_point():
            average[key].mul_(decay).add_(tensor.detach(), alpha=1 - decay)
        else:
            average[key].copy_(tensor)


def by_label_and_distance(loss_fn: LossFn, like: Tensor) -> LossFn:
    """One loss per row of targets: `loss_fn` of its label (which has the shape and type of those
    in `like`), and so much of its distance to stored outputs as the row's first number says."""

    def losses(outputs: Tensor, rows: Tensor) -> Tensor:
        held, labels, stored = parts_of(rows, like)
        return loss_fn(outputs, labels) + held * distance(outputs, stored)

    return losses

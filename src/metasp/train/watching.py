"""Watch the updates of a run, and train beside it with other weights of its examples."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.events import Event, StepTaken, TaskFinished, Validated
from metasp.methods.context import TrainingContext, WeightedRows
from metasp.stateful import below, under
from metasp.train.optimizers import OptimizerState
from metasp.train.trainer import Trainer
from metasp.trees import call
from metasp.types import State

Factors = Callable[[Tensor], Tensor]
"""Ids (r,) to what multiplies the weights of their rows (r,)."""


class Watcher(Protocol):
    """Is shown what happens to the weights of a run's network, in order."""

    def update(self, rows: WeightedRows) -> None:
        """See the rows of an update just before the step."""
        ...

    def mark(self) -> None:
        """Note that the network as it is may come back."""
        ...

    def set_weights(self, marked: bool) -> None:
        """See the network set back to what was marked last, or else drawn anew."""
        ...


class WatchedRun:
    """A trainer with watchers. Raises where its network changes in another way than by updates."""

    def __init__(self, trainer: Trainer, watchers: Sequence[Watcher]) -> None:
        self.trainer, self.watchers = trainer, watchers
        self.model = trainer.learner.model
        self._after = weights_of(self.model)
        self._marked: list[Tensor] = []
        self._updating = False
        trainer.learner.watch = self._update

    def events(self) -> Iterator[Event]:
        """Train to the end from wherever the trainer stands."""
        for event in self.trainer.run():
            if isinstance(event, StepTaken) and self._updating:
                self._after, self._updating = weights_of(self.model), False
            if isinstance(event, Validated) and event.lowest:
                self._marked = self._after
                for watcher in self.watchers:
                    watcher.mark()
            if isinstance(event, TaskFinished):
                self._look_for_changes()
            yield event

    def _update(self, rows: WeightedRows) -> None:
        self._look_for_changes()
        for watcher in self.watchers:
            watcher.update(rows)
        self._updating = True

    def _look_for_changes(self) -> None:
        """Tell the watchers where the network has changed since the last update."""
        now = weights_of(self.model)
        if same(now, self._after):
            return
        marked = same(now, self._marked)
        if not marked and self.trainer.learner.optimizer.state:
            raise UserError(
                "the network of this run changes in other ways than by its updates, so that its "
                "final losses cannot be differentiated: use a method such as er."
            )
        for watcher in self.watchers:
            watcher.set_weights(marked)
        self._after = now


def weights_of(model: nn.Module) -> list[Tensor]:
    """Return copies of the parameters."""
    return [p.detach().clone() for p in model.parameters()]


def same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    """Return whether two lists of tensors have the same values."""
    return len(one) == len(two) and all(map(torch.equal, one, two))


class ReweightedModel:
    """A network that takes the updates of a run with other weights of its examples; all that the
    run decides (rows, order, stored outputs, weights by influence) stays."""

    def __init__(self, learner: TrainingContext, factors: Factors) -> None:
        self.learner, self.factors = learner, factors
        self.model = copy.deepcopy(learner.model)
        make: Any = type(learner.optimizer)
        self.optimizer: torch.optim.Optimizer = make(self.model.parameters())
        stored = OptimizerState(learner.optimizer).state_dict()
        OptimizerState(self.optimizer).load_state_dict(stored)
        self.marked: State = {}

    def update(self, rows: WeightedRows) -> None:
        """Take the step with the rows' weights times their factors."""
        groups = self.learner.optimizer.param_groups
        for group, original in zip(self.optimizer.param_groups, groups):
            group.update({key: value for key, value in original.items() if key != "params"})
        weights = rows.weights * self.factors(rows.ids).to(rows.weights)
        with self.learner.autocast():
            outputs = call(self.model, rows.inputs)
        outputs = outputs.float() if self.learner.bf16 else outputs
        self.optimizer.zero_grad()
        torch.autograd.backward((weights * rows.losses(outputs)).sum())
        if rows.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), rows.clip_norm)
        self.optimizer.step()

    def mark(self) -> None:
        """Keep the network as it is."""
        self.marked = {key: t.detach().clone() for key, t in self.model.state_dict().items()}

    def set_weights(self, marked: bool) -> None:
        """Go back to what was marked, or take over the run's weights and an empty optimizer."""
        self.model.load_state_dict(self.marked if marked else self.learner.model.state_dict())
        if not marked:
            self.optimizer.state.clear()

    def state_dict(self) -> State:
        """Return network, optimizer and the marked network, as tensors by name."""
        parts = under("model", self.model.state_dict()) | under("marked", self.marked)
        return parts | under("optimizer", OptimizerState(self.optimizer).state_dict())

    def load_state_dict(self, state: State, /) -> Any:
        """Stand where `state` was taken."""
        self.model.load_state_dict(below("model", state))
        OptimizerState(self.optimizer).load_state_dict(below("optimizer", state))
        self.marked = {key: t.clone() for key, t in below("marked", state).items()}

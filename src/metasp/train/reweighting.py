"""Train beside a run with other weights of its examples."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from metasp.methods.context import TrainingContext, WeightedRows
from metasp.stateful import HasState, Stateful, Value
from metasp.train.evaluate import evaluate
from metasp.train.optimizers import OptimizerState
from metasp.train.trainer import Trainer
from metasp.trees import call
from metasp.types import State, Task

Factors = Callable[[Tensor], Tensor]
"""Ids (r,) to what multiplies the weights of their rows (r,)."""


class ReweightedModel(Stateful):
    """A network that takes the updates of a run with other weights of its examples; all that the
    run decides (rows, order, stored outputs, weights by influence) stays."""

    stored = ("marked",)

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


class ReweightedTrainer(Trainer):
    """Trains a network in which some examples have other weights, beside one that decides all else
    as the run without this would. Tests and checkpoints are of the reweighted network."""

    def reweight(self, factors: Factors) -> None:
        """Begin to train the network with these factors of the weights; call it before `run`."""
        self.beside = ReweightedModel(self.learner, factors)
        self.score = self._score
        self.learner.watchers.append(self.beside)

    def parts(self) -> dict[str, HasState]:
        """Return the parts of a run: `model` and `optimizer` are the reweighted ones."""
        deciding = super().parts()
        parts: dict[str, HasState] = {
            "model": self.beside.model,
            "optimizer": OptimizerState(self.beside.optimizer),
            "beside": self.beside,
        }
        return {**deciding, **{DECIDING + name: deciding[name] for name in TRAINED}, **parts}

    def _score(
        self, learner: TrainingContext, task: Task, seen: Sequence[int]
    ) -> tuple[float, float]:
        return evaluate(replace(learner, model=self.beside.model, scored_by=None), task, seen)


TRAINED = ("model", "optimizer")
DECIDING = "deciding-"  # begins the names of the parts that decide


def as_start(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Return the state of a run without other weights as one from which they begin."""
    pairs = [(name, value) for name, value in tensors.items() if name.split("/")[0] in TRAINED]
    return {**tensors, **{DECIDING + name: value for name, value in pairs}}

"""A memory beside the training loop of another library, which sees one batch after another;
`metasp.learner.lightning` and `metasp.learner.transformers` need those libraries."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metasp import trees
from metasp.errors import UserError
from metasp.influence.updates import elementwise
from metasp.learner.encoder import NetworkInputs
from metasp.memory import SELECTIONS, Memory, Selection, selection
from metasp.methods.base import offer_step
from metasp.methods.context import Plan, TrainingContext, measured
from metasp.methods.er import ER
from metasp.methods.losses import Objective, Term
from metasp.methods.weighting import InfluenceWeights
from metasp.stateful import Stateful
from metasp.trees import Tree
from metasp.types import CROSS_ENTROPY, Batch, Examples, LossFn, Streams, Task

UNNAMED = -2  # the id of an example that was met before: it is offered once, in the first epoch


class Extended(NamedTuple):
    """A batch with what is replayed after its own rows, and the weight of each in the loss."""

    inputs: Tree
    labels: Tensor
    weights: Tensor


class Rehearsal(Stateful):
    """Goes with a training as its memory: `memory` slots, of which `memory_batch` are replayed
    with every batch, filled by a `selection` that decides at each step.

    With ``influence=True`` the rows of a batch are weighed by their influence on what the memory
    holds of earlier tasks and on the last `window` new examples; the model must then give logits
    for inputs, or ``loss_fn(outputs, labels)`` one loss per example of whatever it gives. One
    object goes with all tasks of a stream: each training is a task.
    """

    stored = ("memory", "streams", "task", "next_id", "recent")

    def __init__(
        self,
        memory: int = 500,
        memory_batch: int = 32,
        selection: str = "reservoir",
        influence: bool = False,
        loss_fn: LossFn | None = None,
        window: int = 200,
        seed: int = 0,
    ) -> None:
        for name, value in (("memory", memory), ("memory_batch", memory_batch), ("window", window)):
            if value < 1:
                raise UserError(f"{name} is {value}: give 1 or more.")
        self.keeps = step_by_step(selection)
        self.plan = Plan(1, memory_batch, memory_batch, 1, tasks=0)
        self.memory = Memory(memory, self.keeps.columns)
        self.streams = Streams(seed)
        self.influence, self.loss_fn, self.window = influence, loss_fn or CROSS_ENTROPY, window
        self.task, self.next_id = -1, 0
        self.recent: Batch | None = None
        self._context: TrainingContext | None = None
        self._new: Batch | None = None
        self._restored = False

    def begin(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None = None,
    ) -> None:
        """Begin a training: a new task, unless a checkpoint has just said where it stands. The
        training clips gradients to ``clip_norm``, if it is given, and so does the pseudo step."""
        if self.influence:
            elementwise(optimizer)
        device = next(model.parameters()).device
        self._context = TrainingContext(
            model=model,
            optimizer=optimizer,
            loss_fn=self.loss_fn,
            memory=self.memory,
            selection=self.keeps,
            transform=NetworkInputs(lambda batch: batch, None, torch.float32),
            streams=self.streams,
            plan=self.plan,
            device=device,
            clip_norm=clip_norm,
        )
        if not self._restored:
            self.task += 1
            self.recent = None
        self._restored = False
        self._context.task = self.task

    def extended(self, inputs: Tree, labels: Tensor, first_epoch: bool) -> Extended:
        """Return a batch as it is to be learned from, with examples from memory after its own."""
        context = self._running()
        ids = torch.full((len(labels),), UNNAMED)
        if first_epoch:
            ids = self.next_id + torch.arange(len(labels))
        new = Batch(trees.each(Tensor.detach, inputs), labels.detach(), ids)
        self._check_kind(new)
        joined = Batch.join([context.prepare(new), context.replay()]) if len(self.memory) else new
        self._new = new if first_epoch else None
        self._look_back(new)
        weights = torch.full((joined.size,), 1 / joined.size, device=labels.device)
        if self.influence and len(context.past()):
            weights = self._weighed(context, joined).to(weights)
        return Extended(joined.inputs, joined.labels, weights)

    def remember(self) -> None:
        """Offer the batch of the step that was just taken to the memory."""
        if self._new is None:
            return
        new, self._new = self._new, None
        nothing = Examples.of(torch.zeros(0), torch.zeros(0, dtype=torch.long))
        offer_step(ER(self._running(), ER.Settings()), new, Task(self.task, (), nothing, nothing))
        self.next_id += new.size

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        """Stand where `state` was taken, in the middle of a task."""
        slots = len(state["memory/ids"])
        if slots != self.memory.capacity:
            raise UserError(
                f"the checkpoint has a memory of {slots} slots and this one has "
                f"{self.memory.capacity}: give memory={slots}."
            )
        super().load_state_dict(state)
        self._restored = True

    def _weighed(self, context: TrainingContext, joined: Batch) -> Tensor:
        """Return the weights (n,) of a batch by the influence of its rows."""
        assert self.recent is not None
        context.current = Examples.of(self.recent.inputs, self.recent.labels, self.recent.ids)
        context.influence_stats = measured()  # of this batch alone: nobody reads it
        with torch.enable_grad():
            weighed = InfluenceWeights()(context, Objective([Term(joined)], self.loss_fn))
        return weighed.weights.detach()

    def _look_back(self, new: Batch) -> None:
        """Keep the last of what has come, to tell what the task at hand is about."""
        if not self.influence:
            return
        joined = new if self.recent is None else Batch.join([self.recent, new])
        self.recent = joined.at(slice(max(0, joined.size - self.window), None))

    def _running(self) -> TrainingContext:
        if self._context is None:
            raise UserError("the rehearsal has not begun: call begin first.")
        return self._context

    def _check_kind(self, new: Batch) -> None:
        stored = self.memory.inputs
        if stored is not None and trees.kind(stored) != trees.kind(new.inputs):
            raise UserError(
                f"the inputs are {trees.kind(new.inputs)} and were {trees.kind(stored)} before: "
                "bring all to one shape and type, for instance by padding to one length."
            )


def step_by_step(name: str) -> Selection:
    """Return a selection that needs no more than one batch after the other."""
    chosen = selection(name)
    usable = [
        key
        for key, one in SELECTIONS.items()
        if one.at == "step" and not (one.columns or one.measured or one.judged)
    ]
    if name not in usable:
        raise UserError(
            f"{name} decides at the end of a task or by scores of a method, and a bridge sees one "
            f"batch after the other: use {', '.join(usable)}."
        )
    return chosen


def label_key(batch: Mapping[str, object]) -> str:
    """Return the key under which a dictionary holds its labels."""
    key = trees.label_key(batch)
    if key is None:
        raise UserError(
            f"the batch has no labels ({', '.join(map(str, batch))}): put them in under `labels`."
        )
    return key

"""GDumb (Prabhu et al. 2020): keep a balanced memory, and train from scratch on it alone."""

import copy
import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from metasp import trees
from metasp.backbones import CONSTANT, DRAWN, initialise
from metasp.errors import UserError
from metasp.memory import Placement
from metasp.methods.base import Method, Phase, finetune_phase, offer_task
from metasp.methods.context import Step, TrainingContext, WeightedRows
from metasp.methods.settings import GDumbSettings
from metasp.trees import Tree
from metasp.types import Batch, Examples, Task

LOWEST = 0.01  # of the learning rate, at the end of each of its cycles


@final
class GDumb(Method):
    weighted_sum = True
    needs = ("boundaries", "own schedule")
    updates = False
    Settings = GDumbSettings
    lr = 0.05
    momentum = 0.9
    weight_decay = 1e-6
    selection = "greedy"
    settings: GDumbSettings
    stored = ("collected",)

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.collected = -1  # the last task whose examples the memory has chosen from

    @property
    def looks(self) -> bool:
        """Whether what the memory keeps is decided by a model that has learned the task."""
        return self.learner.selection.at == "task"

    def phases(self, task: Task, seen: Sequence[Task]) -> Sequence[Phase]:
        """One look at the task to fill the memory, then training on the memory. A selection that
        decides at a task's end goes by a model, so the look is then plain training."""
        learner, settings, plan = self.learner, self.settings, self.learner.plan
        held = min(learner.memory.capacity, sum(len(other.train) for other in seen))
        size, examples = len(task.train), (lambda: task.train)
        collect = Phase("collect", 1, plan.batch_size, size, examples, cost=0.01)
        return [
            finetune_phase(learner, task.train, plan.epochs) if self.looks else collect,
            Phase(
                "dumb",
                settings.memory_epochs,
                settings.train_batch,
                held,
                lambda: self.chosen(task),
                settings.train_batch / plan.batch_size,
                warm_restarts,
            ),
        ]

    def begin_task(self, task: Task) -> None:
        if not self.looks:
            self.start_anew()

    def chosen(self, task: Task) -> Examples:
        """What the memory holds once it has chosen from a task, which it does once."""
        if self.looks and self.collected < task.index:
            offer_task(self, task)
            self.start_anew()
            self.collected = task.index
        return self.learner.memory.examples()

    def start_anew(self) -> None:
        """Forget all that was learned: only the memory goes on."""
        restart(self.learner.model, self.learner.streams["restart"])
        self.learner.optimizer.state.clear()
        for watcher in self.learner.watchers:
            watcher.set_weights(marked=False)

    def end_task(self, task: Task) -> Placement | None:
        """The memory has decided before it was trained on, unless the task was ended before."""
        if self.looks and self.collected < task.index:
            return offer_task(self, task)
        return None

    def step(self, new: Batch, phase: Phase) -> Step:
        if phase.kind == "collect":
            return Step(0.0)
        learner, settings = self.learner, self.settings
        batch = learner.prepare_replay(new)
        inputs, other, share = cutmix(batch.inputs, settings.cutmix, learner.streams["cutmix"])
        for watcher in learner.watchers:
            watcher.update(self.rows_of(batch, inputs, other, share))
        outputs = learner.outputs(inputs)
        losses = share * learner.loss_fn(outputs, batch.labels)
        losses = losses + (1 - share) * learner.loss_fn(outputs, batch.labels[other])
        learner.optimizer.zero_grad()
        torch.autograd.backward(losses.mean())
        nn.utils.clip_grad_norm_(learner.model.parameters(), settings.clip)
        learner.step()
        return Step(float(losses.detach().mean()))

    def rows_of(self, batch: Batch, inputs: Tree, other: Tensor, share: float) -> WeightedRows:
        """Return the rows of an update on mixed inputs (n, …): each counts once for its own label,
        and once for that of the `other` (n,) that is mixed into it."""
        loss_fn, labels, size = self.learner.loss_fn, batch.labels, batch.size

        def losses(outputs: Tensor) -> Tensor:
            return torch.cat([loss_fn(outputs, labels), loss_fn(outputs, labels[other])])

        shares = torch.tensor([share, 1 - share], dtype=torch.float64).repeat_interleave(size)
        weights = (shares / size).to(next(self.learner.model.parameters()))
        ids = torch.cat([batch.ids, batch.ids[other.cpu()]])
        replayed = torch.ones_like(ids, dtype=torch.bool)
        return WeightedRows(inputs, losses, weights, ids, replayed, self.settings.clip)


def warm_restarts(epoch: int) -> float:
    """Share of the learning rate: a tenth at first, then cosine cycles of 1, 2, 4, … epochs."""
    if epoch == 0:
        return 0.1
    length = 2 ** (epoch.bit_length() - 1)
    done = (epoch - length) / length
    return LOWEST + (1 - LOWEST) * (1 + math.cos(math.pi * done)) / 2


def cutmix(images: Tree, chance: float, generator: torch.Generator) -> tuple[Tree, Tensor, float]:
    """Images with a rectangle taken from others, which others (n,), and the share of each image
    that is still its own. Rows that are no images stay as they are."""
    mixes = float(torch.rand(1, generator=generator)) < chance
    if not mixes or not isinstance(images, Tensor) or images.dim() != 4:
        return images, torch.arange(trees.size(images)), 1.0
    size = len(images)
    other = torch.randperm(size, generator=generator).to(images.device)
    height, width = images.shape[2:]
    side = math.sqrt(1 - float(torch.rand(1, generator=generator)))
    bounds = []
    for extent in (height, width):
        middle = int(torch.randint(extent, (1,), generator=generator))
        half = int(extent * side) // 2
        bounds.append(slice(max(0, middle - half), min(extent, middle + half)))
    mixed = images.clone()
    mixed[:, :, bounds[0], bounds[1]] = images[other][:, :, bounds[0], bounds[1]]
    cut = (bounds[0].stop - bounds[0].start) * (bounds[1].stop - bounds[1].start)
    return mixed, other, 1 - cut / (height * width)


def restart(model: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights anew, or say of which kind we do not know how. What is frozen stays, for
    it would never be trained again."""
    kept: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        own = dict(module.named_parameters(prefix, recurse=False))
        frozen = {name: p.detach() for name, p in own.items() if not p.requires_grad}
        kept |= frozen
        if len(frozen) == len(own):
            if own:
                kept |= dict(module.named_buffers(prefix, recurse=False))
        elif not isinstance(module, DRAWN + CONSTANT):
            raise UserError(
                "gdumb starts from new weights after each task and cannot draw those of "
                f"{type(module).__name__}: use linear, convolution and normalisation layers, or "
                "another method."
            )
    fresh = copy.deepcopy(model).cpu()  # where the generator is, whatever the model's device
    initialise(fresh, generator)
    drawn = fresh.state_dict()
    model.load_state_dict({name: kept.get(name, value) for name, value in drawn.items()})

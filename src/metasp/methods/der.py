"""DER and DER++ (Buzzega et al. 2020): replay what the network said when an example was stored.

`der` is `derpp` without its third term, the labels of a second draw from memory."""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from metasp.memory import Column, Placement
from metasp.methods.context import Objective, Step, TrainingContext
from metasp.methods.method import Method, Phase
from metasp.methods.settings import DERSettings
from metasp.methods.terms import shares
from metasp.trees import one_tensor
from metasp.types import Batch, LossFn, Task, as_rows

BY_LABEL, BY_LOGITS = 0.0, 1.0  # the kinds of rows


@final
class DER(Method):
    Settings = DERSettings
    lr = 0.03
    columns = (Column("logits", of="outputs"),)
    settings: DERSettings

    def __init__(self, learner: TrainingContext, settings: Any) -> None:
        super().__init__(learner, settings)
        self.heard: Batch | None = None  # the last step's outputs, in place of inputs

    def step(self, new: Batch, phase: Phase) -> Step:
        """One pass over the new batch, a draw x′ that is held to its stored outputs, and a draw x″,
        independent of it, that is learned by its labels."""
        learner, settings, memory = self.learner, self.settings, self.learner.memory
        draws = {"replay": settings.alpha, "replay-labels": settings.beta}
        wanted = {name: learner.plan.memory_batch if draws[name] else 0 for name in draws}
        slots = [memory.draw(count, learner.streams[name]) for name, count in wanted.items()]
        replayed = [learner.prepare_replay(memory.read(own)) for own in slots if len(own)]
        batch = Batch.join([learner.prepare(new), *replayed])
        sizes = [new.size, *map(len, slots)]
        kinds = torch.tensor([BY_LABEL, BY_LOGITS, BY_LABEL])
        kind = kinds.repeat_interleave(torch.tensor(sizes)).to(learner.device)
        logits = memory["logits"]
        stored = torch.full((batch.size, logits.shape[1]), torch.nan)
        stored[new.size : new.size + sizes[1]] = logits[slots[0]]
        objective = Objective(
            by_kind(learner.loss_fn, batch.labels),
            targets=targets(kind, batch.labels, stored.to(learner.device)),
            shares=shares(*zip((1.0, *draws.values()), sizes)).to(learner.device),
            weighable=kind == BY_LABEL,
            goal=lambda labels: targets(
                torch.zeros(len(labels)).to(kind), labels, stored[:1].expand(len(labels), -1)
            ),
        )
        report = learner.update(batch, objective=objective)
        self.heard = None
        if report.outputs is not None:
            self.heard = Batch(report.outputs[: new.size], new.labels, new.ids)
        return report

    def column_values(self, stored: Batch) -> Mapping[str, Tensor]:
        """What the network said to these examples in the step that they come from, to the view
        that it was trained on; at a task's end, or where nobody knows that, what it says now."""
        if self.heard is None:
            return super().column_values(stored)
        place = {int(name): row for row, name in enumerate(self.heard.ids)}
        rows = [place[int(name)] for name in stored.ids]
        return {"logits": one_tensor(self.heard.inputs, "der")[rows].cpu()}

    def begin_task(self, task: Task) -> None:
        self.heard = None

    def end_task(self, task: Task) -> Placement | None:
        self.heard = None
        return super().end_task(task)


def targets(kind: Tensor, labels: Tensor, stored: Tensor) -> Tensor:
    """One row each: its kind, its label and its stored outputs."""
    return torch.cat([kind[:, None], as_rows(labels), stored.to(kind)], dim=1)


def by_kind(loss_fn: LossFn, like: Tensor) -> LossFn:
    """One loss per row of targets: `loss_fn` of its label (which has the shape and type of those
    in `like`), or its distance to the outputs that are stored of it."""

    def losses(outputs: Tensor, rows: Tensor) -> Tensor:
        kind, labels, stored = parts_of(rows, like)
        by_label = loss_fn(outputs, labels)
        return torch.where(kind == BY_LABEL, by_label, distance(outputs, stored))

    return losses


def parts_of(rows: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `targets` has joined: first numbers, labels like those in `like`, stored outputs."""
    shape = like.shape[1:]
    end = 1 + max(1, shape.numel())
    labels = rows[:, 1:end].reshape(len(rows), *shape).to(like.dtype)
    return rows[:, 0], labels, rows[:, end:]


def distance(outputs: Tensor, stored: Tensor) -> Tensor:
    """The mean squared distance (n,) to stored outputs, of those that were there when they were
    stored: a head may have grown since, and its new places are NaN or missing."""
    known = ~stored.isnan()
    gaps = as_rows(outputs)[:, : stored.shape[1]] - stored.nan_to_num()
    return (gaps.square() * known).sum(1) / known.sum(1).clamp_min(1)

"""GSS (Aljundi et al. 2019), greedy: experience replay of examples with diverse gradients."""

from typing import final

import torch
from torch import Tensor

from metasp.memory import Placement
from metasp.methods.base import Method, Phase, offer_step
from metasp.methods.context import Step, TrainingContext
from metasp.methods.gradients import example_gradients
from metasp.methods.settings import GSSSettings
from metasp.types import Batch, Task

AT_ONCE = 8  # gradients of single examples held at a time, besides the references
TINY = 1e-30  # the cosine with a gradient of zero is zero
NEUTRAL = 1.0  # the redundancy of a gradient that was compared with nothing


@final
class GSS(Method):
    Settings = GSSSettings
    lr = 0.03
    selection = "gradient-diverse"
    settings: GSSSettings

    def step(self, new: Batch, phase: Phase) -> Step:
        return self.learner.update(self.learner.with_replay(new))

    def offers(self, epoch: int) -> bool:
        return epoch == 0 or self.settings.every_epoch

    def remember(self, new: Batch, task: Task, rows: Tensor | None = None) -> Placement | None:
        learner, memory = self.learner, self.learner.memory
        if "redundancy" not in memory.columns:  # another selection decides
            return super().remember(new, task, rows)
        drawn = memory.draw(self.settings.references, learner.streams["references"])
        fresh = torch.full((new.size,), NEUTRAL)
        if len(drawn):
            fresh = redundancy(
                learner, learner.unaugmented(new), learner.unaugmented(memory.read(drawn))
            )
        return offer_step(self, new, task, rows, redundancy=fresh)


def redundancy(learner: TrainingContext, batch: Batch, references: Batch) -> Tensor:
    """One plus the largest cosine of each example's gradient with those of the references, from
    0 (opposed to all) to 2 (the same as one), shape (n,)."""
    known = example_gradients(learner, references)
    lengths = squares(known).sqrt()
    found = []
    for start in range(0, batch.size, AT_ONCE):
        part = batch.at(slice(start, start + AT_ONCE))
        fresh = example_gradients(learner, part)
        inner = torch.stack([a @ b.T for a, b in zip(fresh, known)]).sum(0)
        scale = squares(fresh).sqrt()[:, None] * lengths
        found.append((inner / scale.clamp(min=TINY)).amax(1))
    return (1 + torch.cat(found)).clamp(0, 2).cpu().float()


def squares(gradients: list[Tensor]) -> Tensor:
    """The squared length of each example's gradient, shape (n,)."""
    return torch.stack([part.square().sum(1) for part in gradients]).sum(0)

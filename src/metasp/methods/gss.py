"""GSS (Aljundi et al. 2019), greedy: experience replay of examples with diverse gradients."""

from typing import final

import torch
from torch import Tensor

from metasp.memory import Placement
from metasp.methods.base import Method, Phase, not_in_memory, offer_step
from metasp.methods.context import Step, TrainingContext
from metasp.methods.gradients import example_gradients
from metasp.methods.settings import GSSSettings
from metasp.types import Batch, Task

AT_ONCE = 8  # gradients of single examples held at a time, besides the references
TINY = 1e-30  # the cosine with a gradient of zero is zero
NEUTRAL = 1.0  # the redundancy of a gradient that was compared with nothing


@final
class GSS(Method):
    """Experience replay from a memory of diverse gradients."""

    weighted_sum = True
    Settings = GSSSettings
    lr = 0.03
    selection = "gradient-diverse"
    settings: GSSSettings

    def step(self, new: Batch, phase: Phase) -> Step:
        """Learn from new and replayed examples alike."""
        return self.learner.update(self.learner.with_replay(new))

    def offers(self, epoch: int) -> bool:
        """Return True for the first epoch, or for all of them."""
        return epoch == 0 or self.settings.every_epoch

    def remember(self, new: Batch, task: Task) -> Placement | None:
        """Offer the batch with the redundancy of its gradients."""
        learner, memory = self.learner, self.learner.memory
        fresh = new.at(not_in_memory(memory, new))
        if "redundancy" not in memory.columns:  # another selection decides
            return super().remember(new, task)
        if not fresh.size:
            return None
        drawn = memory.draw(self.settings.references, learner.streams["references"])
        scores = torch.full((fresh.size,), NEUTRAL)
        if len(drawn):
            references = learner.unaugmented(memory.read(drawn))
            scores = redundancy(learner, learner.unaugmented(fresh), references)
        return offer_step(self, new, task, redundancy=scores)


def redundancy(learner: TrainingContext, batch: Batch, references: Batch) -> Tensor:
    """Return 1 + the largest cosine of each example's gradient with those of the references (n,),
    from 0 (opposed to all) to 2 (the same as one): Alg. 2, line 5."""
    reference_gradients = example_gradients(learner, references)
    lengths = squares(reference_gradients).sqrt()
    cosines = []
    for start in range(0, batch.size, AT_ONCE):
        gradients = example_gradients(learner, batch.at(slice(start, start + AT_ONCE)))
        products = [a @ b.T for a, b in zip(gradients, reference_gradients)]
        scale = squares(gradients).sqrt()[:, None] * lengths
        cosines.append((torch.stack(products).sum(0) / scale.clamp(min=TINY)).amax(1))
    return (1 + torch.cat(cosines)).clamp(0, 2).cpu().float()


def squares(gradients: list[Tensor]) -> Tensor:
    """Return the squared length of each example's gradient, shape (n,)."""
    return torch.stack([gradient.square().sum(1) for gradient in gradients]).sum(0)

"""A learner that several processes hold alike: they are given the same, and one of them writes."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metasp import trees
from metasp.errors import UserError
from metasp.influence.parallel import Ranks
from metasp.influence.splitting import split_over_ranks
from metasp.learner.data import Arrivals, inputs_alone, read
from metasp.learner.settings import LearnerSettings
from metasp.processes import as_the_first, check_alike

if TYPE_CHECKING:
    from metasp.learner.learner import ContinualLearner

APART = (
    "the processes of this learner no longer hold the same numbers, so nothing is stored: load its "
    "last file, on machines of one kind."
)


def split(model: nn.Module, settings: LearnerSettings, ranks: Ranks) -> None:
    """Start all processes with the first one's weights, and share every pass from now on."""
    if settings.compile:
        raise UserError("a learner on several processes is not compiled: leave out compile.")
    numbers = torch.tensor([*str(sorted(settings.as_dict().items())).encode()])
    apart = "the processes made learners with different settings: give all of them the same."
    check_alike(ranks, {"settings": numbers}, apart)
    as_the_first(ranks, model)
    split_over_ranks(model, ranks)


def given(learner: "ContinualLearner", data: Any, what: str = "dataset") -> Arrivals:
    """All examples of whatever holds them; every process must be given the same."""
    found = read(data, dtype_of(learner.model), what)
    check_given(learner, {"labels": found.labels, **trees.to_columns("inputs", found.inputs)}, what)
    return found


def given_inputs(learner: "ContinualLearner", x: Any) -> Any:
    """The same for inputs without labels."""
    held = learner._trainer.learner.memory.inputs if learner.settings.keep == "inputs" else None
    inputs = inputs_alone(x, held, dtype_of(learner.model))
    check_given(learner, trees.to_columns("inputs", inputs), "inputs")
    return inputs


def check_given(learner: "ContinualLearner", tensors: dict[str, Tensor], what: str) -> None:
    if learner._ranks is not None:
        apart = (
            f"the processes were not given the same {what}: give all of them the same rows, which "
            "the learner splits itself."
        )
        check_alike(learner._ranks, tensors, apart)


def dtype_of(model: nn.Module) -> torch.dtype:
    """The type of what is trained."""
    every = list(model.parameters())
    return next((p.dtype for p in every if p.requires_grad), every[0].dtype)

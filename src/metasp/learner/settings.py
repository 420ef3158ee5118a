"""What a learner is told: its settings, and the parts that are code."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from metasp.config import setting
from metasp.engine.change import MakeDetector
from metasp.engine.observing import WINDOW
from metasp.errors import UserError, unknown
from metasp.learner.encoder import FrozenEncoder
from metasp.methods import BEST, METHODS, RECOMMENDED, Method, Recipe, method_named
from metasp.methods.joint import Joint
from metasp.spec import TrainingSpec
from metasp.trees import Tree, kind
from metasp.types import LossFn

Metric = Callable[[Tensor, Tensor], float | Tensor]
"""(outputs, targets) to a number, or to one number per example."""

Change = (
    Callable[[Tensor], Tensor]
    | Callable[[dict[str, Tensor]], Tree]
    | Callable[[tuple[Tensor, ...]], Tree]
)
"""Raw inputs, a tensor or several as they were given, to network inputs."""

Augment = (
    Callable[[Tensor, torch.Generator], Tensor]
    | Callable[[dict[str, Tensor], torch.Generator], Tree]
    | Callable[[tuple[Tensor, ...], torch.Generator], Tree]
)
"""Network inputs changed at random; every draw comes from the generator."""

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""The model's parameters to the optimizer that moves them."""

MakeScheduler = Callable[[torch.optim.Optimizer], LRScheduler]
"""The optimizer to what moves its learning rate."""


class LearnerSettings(TrainingSpec):
    """The numbers of a learner. None means "the method's own default"."""

    memory: int = setting(500, "Examples the memory may hold.", min=0)
    epochs: int = setting(10, "Epochs per task.", min=1)
    clip_norm: float | None = setting(
        None, "The norm to which gradients are shortened before a step.", min=1e-12
    )
    head: str | None = setting(None, "The linear layer that grows when new classes appear.")
    scheduler_step: Literal["epoch", "step"] = setting(
        "epoch", "When the scheduler moves, in each task anew."
    )
    window: int = setting(
        WINDOW, "Newest examples that stand for what is new in a stream without tasks.", min=2
    )
    keep: Literal["inputs", "features"] = setting(
        "inputs", "What the memory holds, with an encoder."
    )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        known = cls.model_fields
        for key in values:
            if key in known:
                continue
            if key in ("lr_drop_at", "lr_drop"):
                raise UserError(
                    f"{key} is a setting of runs, and the rate of a learner follows its scheduler: "
                    "pass scheduler=lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5]) instead."
                )
            if any(key in recipe.settings for recipe in METHODS.values()):
                raise UserError(
                    f"{key} is a setting of the method: give settings={{{key!r}: {values[key]!r}}}."
                )
            raise unknown("setting of a learner", key, known)
        return cls(**values)


MADE = {
    "optimizer": "optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4)",
    "scheduler": "scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 5)",
    "detector": "detector=lambda: river.drift.ADWIN()",
}
"""What is given as a function that makes it, with an example."""


@dataclass(frozen=True)
class Parts:
    """What a learner is given as code; a saved learner is given it again."""

    loss_fn: LossFn | None = None
    metric: Metric | None = None
    transform: Change | None = None
    augment: Augment | None = None
    optimizer: MakeOptimizer | None = None
    scheduler: MakeScheduler | None = None
    encoder: FrozenEncoder | None = None
    detector: MakeDetector | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            part = getattr(self, entry.name)
            if part is not None and not callable(part):
                kind = f"a function{' that makes one' if entry.name in MADE else ''}"
                raise UserError(
                    f"{entry.name} must be {kind}, not a {type(part).__name__} itself: give "
                    f"{MADE.get(entry.name, kind)}."
                )

    def check_scored(self, labels: Tensor, learned: Tensor) -> None:
        """Raise if labels to score against cannot be compared with what was learned from others; a
        metric of one's own may take any."""
        other = labels.shape[1:] != learned.shape[1:]
        if self.metric is None and (other or (self.loss_fn is None and labels.is_floating_point())):
            raise UserError(
                f"the labels to score against are {kind(labels)} and those learned "
                f"{kind(learned)}: bring them to one kind."
            )

    def names(self) -> dict[str, str]:
        """What each given part is called, for a sentence about one that is missing."""
        given = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {
            key: getattr(part, "__qualname__", type(part).__name__)
            for key, part in given.items()
            if part is not None
        }


def chosen(
    wanted: "str | type[Method] | Method", values: Mapping[str, Any]
) -> tuple[str, Recipe, LearnerSettings]:
    """A method's name and recipe, from its name, its class, or an object (taken as its class
    and settings), and the settings of the learner."""
    settings = LearnerSettings.of(values)
    if wanted == BEST:
        wanted = RECOMMENDED.method
        settings = settings.with_(selection=settings.selection or RECOMMENDED.selection)
    if isinstance(wanted, str):
        name, recipe = wanted, method_named(wanted)
    elif isinstance(wanted, Method):
        preset = {} if wanted.settings is None else dict(wanted.settings)
        name, recipe = type(wanted).__qualname__, Recipe(type(wanted), preset)
    elif isinstance(wanted, type) and issubclass(wanted, Method):
        name, recipe = wanted.__qualname__, Recipe(wanted)
    else:
        raise UserError(
            f"method must be a name, or a Method of your own, not {wanted!r}: see `metasp list "
            "methods`."
        )
    if recipe.kind is Joint:
        raise UserError(
            "joint trains again on all past data, which a learner does not keep: learn all of it "
            "as one dataset, or use another method."
        )
    return name, recipe, settings

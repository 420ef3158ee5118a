"""Settings of a learner: its numbers, and what it is given as code."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from metasp.config import setting
from metasp.errors import UserError, unknown
from metasp.learner.encoder import FrozenEncoder
from metasp.methods import BEST, RECOMMENDED, Method, Recipe, added_by, method_named
from metasp.methods.er import Joint
from metasp.spec import TrainingSpec
from metasp.train.online import WINDOW, MakeDetector
from metasp.trees import Tree
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

FACTORIES = {
    "optimizer": "optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4)",
    "scheduler": "scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 5)",
    "detector": "detector=lambda: river.drift.ADWIN()",
}
"""What is given as a function that makes it, with an example."""


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


@dataclass(frozen=True)
class UserCode:
    """What a learner is given as code; a saved learner is given it again."""

    loss_fn: LossFn | None = None
    metric: Metric | None = None
    transform: Change | None = None
    augment: Augment | None = None
    optimizer: MakeOptimizer | None = None
    scheduler: MakeScheduler | None = None
    encoder: FrozenEncoder | None = None
    detector: MakeDetector | None = None
    method: "type[Method] | None" = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not callable(value):
                kind = f"a function{' that makes one' if name in FACTORIES else ''}"
                raise UserError(
                    f"{name} must be {kind}, not a {type(value).__name__} itself: give "
                    f"{FACTORIES.get(name, kind)}."
                )

    def names(self) -> dict[str, str]:
        """Return what each value is called, for a sentence about one that is missing."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return {k: getattr(v, "__qualname__", type(v).__name__) for k, v in given.items()}


def choose_method(
    method: "str | type[Method] | Method", settings: LearnerSettings
) -> tuple[str, Recipe, LearnerSettings]:
    """Return a method's name and recipe, from its name, its class, or an object (taken as its class
    and settings), and the settings with what `best` adds to them."""
    if method == BEST:
        method = RECOMMENDED.method
        settings = settings.with_(selection=settings.selection or RECOMMENDED.selection)
    if isinstance(method, str):
        name, recipe = method, method_named(method)
    elif isinstance(method, Method):
        preset = {} if method.settings is None else dict(method.settings)
        name, recipe = type(method).__qualname__, Recipe(type(method), preset)
    elif isinstance(method, type) and issubclass(method, Method):
        name, recipe = method.__qualname__, Recipe(method)
    else:
        raise UserError(
            f"method must be a name, or a Method of your own, not {method!r}: see `metasp list "
            "methods`."
        )
    added = added_by(settings.influence)
    known = {*recipe.settings, *(added.settings if added is not None else ())}
    for key in settings.settings:
        if key not in known:
            every = [*known, *LearnerSettings.model_fields]
            raise unknown(f"setting of a learner with {name}", key, every)
    if recipe.kind is Joint:
        raise UserError(
            "joint trains again on all past data, which a learner does not keep: learn all of it "
            "as one dataset, or use another method."
        )
    return name, recipe, settings

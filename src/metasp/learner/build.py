"""Settings and code of a learner, and the trainer that is built of them around a user's model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim.lr_scheduler import LRScheduler

from metasp.config import setting
from metasp.errors import UserError, unknown
from metasp.influence.functional import check_functional
from metasp.influence.parallel import Ranks
from metasp.influence.sharding import split_over_ranks
from metasp.influence.updates import elementwise
from metasp.learner.encoder import FrozenEncoder, NetworkInputs, floats_of
from metasp.learner.outputs import Metric, first_line, score_task
from metasp.memory import Memory, selection
from metasp.methods import BEST, RECOMMENDED, Method, Recipe, added_by, method_named
from metasp.methods.context import Plan, TrainingContext, Transform
from metasp.methods.er import Joint
from metasp.processes import as_the_first, check_alike
from metasp.spec import TrainingSpec
from metasp.train.from_spec import build_method, check_compatible, choose_device, or_default
from metasp.train.online import WINDOW, MakeDetector, OpenTask
from metasp.train.optimizers import OPTIMIZERS, LearningRate, Schedule
from metasp.train.trainer import Trainer
from metasp.trees import Tree
from metasp.types import CROSS_ENTROPY, LossFn, Streams

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

FACTORIES = ("optimizer", "scheduler", "detector")  # given as functions that make one


class LearnerSettings(TrainingSpec):
    """Numbers of a learner. None means "the method's own default"."""

    memory: int = setting(500, "Examples the memory may hold.", min=0, max=100_000_000)
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
        "features", "What the memory holds, with an encoder: its features, or inputs beside them."
    )


@dataclass(frozen=True)
class UserCode:
    """Functions and classes that a learner is given; a saved learner is given it again."""

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
                makes = " that makes one" if name in FACTORIES else ""
                raise UserError(
                    f"{name} must be a function{makes}, not a {type(value).__name__}: put lambda "
                    "in front of it, or give its name."
                )

    def names(self) -> dict[str, str]:
        """Return what each value is called, for a sentence about one that is missing."""
        code = {name: value for name, value in vars(self).items() if value is not None}
        return {k: getattr(v, "__qualname__", type(v).__name__) for k, v in code.items()}


def choose_method(
    method: "str | type[Method]", settings: LearnerSettings
) -> tuple[str, Recipe, LearnerSettings]:
    """Return a method's name and recipe, from its name or its class, and the settings with what
    `best` adds to them."""
    if method == BEST:
        method = RECOMMENDED.method
        settings = settings.with_(selection=settings.selection or RECOMMENDED.selection)
    if isinstance(method, str):
        name, recipe = method, method_named(method)
    elif isinstance(method, type) and issubclass(method, Method):
        name, recipe = method.__qualname__, Recipe(method)
    else:
        raise UserError(
            f"method must be a name, or a class of your own made from Method, not {method!r}: see "
            "`metasp list methods`."
        )
    added = added_by(settings.influence)
    of_method = {*recipe.settings, *(added.settings if added is not None else ())}
    for key in settings.settings:
        if key not in of_method:
            every = [*of_method, *LearnerSettings.model_fields]
            raise unknown(f"setting of a learner with {name}", key, every)
    if recipe.kind is Joint:
        raise UserError(
            "joint trains again on all past data, which a learner does not keep: learn all of it "
            "as one dataset, or use another method."
        )
    return name, recipe, settings


def check_trainable(model: nn.Module) -> None:
    """Raise unless the model has parameters that learning can move."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model must be a torch.nn.Module, not {model!r}.")
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise UserError(
            "the model has lazy layers that do not know their size yet: run a batch through it "
            "first."
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError("the model has no trainable parameters: there is nothing to learn.")
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise UserError("the model has weights that are NaN or infinite: load or draw it again.")


def build_trainer(
    model: nn.Module, name: str, recipe: Recipe, settings: LearnerSettings, code: UserCode,
    device: str | torch.device | None, ranks: Ranks | None,
) -> Trainer:  # fmt: skip
    """Build a trainer without tasks, for this process or for one of those that share the learner
    (`ranks`)."""
    check_trainable(model)
    first = next(p for p in model.parameters() if p.requires_grad)
    on = first.device if device is None else choose_device(str(device))
    model.to(on, torch.float64 if settings.precision == "fp64" else None)
    if ranks is not None:
        share_between(ranks, model, settings)
    if settings.compile:
        model.compile()
    stores = selection(settings.selection or recipe.selection or "reservoir")
    check_compatible(name, recipe, settings)
    if any(kind.measures for kind in kinds_of(recipe, settings)):
        check_functional(model)
    if recipe.selection is not None and not settings.memory:
        raise UserError(f"{name} needs a memory: give memory=1 or more, or use finetune.")
    context = TrainingContext(
        model=model,
        optimizer=build_optimizer(model, recipe, settings, code),
        loss_fn=code.loss_fn or CROSS_ENTROPY,
        memory=Memory(settings.memory, (*recipe.kind.columns, *stores.columns)),
        selection=stores,
        transform=build_transform(model, code, settings.keep, on),
        streams=Streams(settings.seed),
        plan=Plan(
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            memory_batch=settings.memory_batch,
            rehearse_last=settings.rehearse_last or settings.epochs,
            tasks=0,
        ),
        device=on,
        bf16=settings.precision == "bf16",
        fp64=settings.precision == "fp64",
        clip_norm=settings.clip_norm,
        compiled=hasattr(model, "_orig_mod")
        or getattr(model, "_compiled_call_impl", None) is not None,
    )
    method = build_method(name, recipe, settings, context)
    score = partial(score_task, loss_fn=code.loss_fn, metric=code.metric)
    trainer = Trainer(context, method, [], LearningRate(), score)
    trainer.open = OpenTask(settings.window, code.detector)
    if code.scheduler is not None:
        if "own schedule" in recipe.kind.needs:
            raise UserError(f"{name} has a schedule of its own: leave out scheduler.")
        trainer.schedule = Schedule(code.scheduler, settings.scheduler_step, context.optimizer)
    return trainer


def share_between(ranks: Ranks, model: nn.Module, settings: LearnerSettings) -> None:
    """Start all processes with the first one's weights, and share every pass from now on."""
    if settings.compile:
        raise UserError("a learner on several processes is not compiled: leave out compile.")
    numbers = torch.tensor([*str(sorted(settings.as_dict().items())).encode()])
    otherwise = "the processes made learners with different settings: give all of them the same."
    check_alike(ranks, {"settings": numbers}, otherwise)
    as_the_first(ranks, model)
    split_over_ranks(model, ranks)


def kinds_of(recipe: Recipe, settings: LearnerSettings) -> list[type[Method]]:
    """Return the class of the method, and of the one whose influence is added to it."""
    added = added_by(settings.influence)
    return [recipe.kind] if added is None else [recipe.kind, added.kind]


def build_optimizer(
    model: nn.Module, recipe: Recipe, settings: LearnerSettings, code: UserCode
) -> torch.optim.Optimizer:
    """Build the user's optimizer, or SGD as the settings and the method have it. It gets the frozen
    parameters too, which have no gradient until they are thawed."""
    kind = recipe.kind
    if code.optimizer is None:
        return OPTIMIZERS["sgd"].build(
            model.parameters(),
            or_default(settings.lr, kind.lr),
            or_default(settings.momentum, kind.momentum),
            or_default(settings.weight_decay, kind.weight_decay),
        )
    for name in ("lr", "momentum", "weight_decay"):
        if getattr(settings, name) is not None:
            raise UserError(
                f"{name} and optimizer are both given: set {name} in the optimizer alone."
            )
    try:
        optimizer = code.optimizer(model.parameters())
    except (ValueError, TypeError) as error:
        raise UserError(
            f"optimizer cannot be made ({first_line(error)}): give a function from the model's "
            "parameters to an optimizer that takes all of them."
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        raise UserError(
            f"optimizer returned a {type(optimizer).__name__}: make one that takes its step by the "
            "gradients that there are, for instance lambda params: torch.optim.AdamW(params, "
            "lr=3e-4)."
        )
    if any("elementwise" in kind.needs for kind in kinds_of(recipe, settings)):
        elementwise(optimizer)
    return optimizer


def build_transform(model: nn.Module, code: UserCode, keep: str, device: torch.device) -> Transform:
    """Build what makes the model's inputs of what the memory holds."""
    dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
    encoder = code.encoder
    if encoder is None:
        return NetworkInputs(code.transform, code.augment, dtype)
    if code.augment is not None:
        raise UserError(
            "augment changes inputs anew in each epoch, and an encoder's features are computed "
            "once: leave augment out, or let the model hold the encoder with its gradients off."
        )
    raw = NetworkInputs(code.transform, None, floats_of(encoder.module))
    encoder.place(model, raw, device, dtype)
    of_both = itemgetter("features") if keep == "inputs" else None
    return NetworkInputs(of_both, None, dtype)

"""Build the trainer of a learner from a user's model, settings and code."""

from functools import partial

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from metasp.errors import UserError
from metasp.influence.functional import check_functional
from metasp.influence.optimizers import elementwise
from metasp.influence.parallel import Ranks
from metasp.influence.sharding import split_over_ranks
from metasp.learner.encoder import EncodedInputs, NetworkInputs, floats_of
from metasp.learner.outputs import first_line, score_task
from metasp.learner.settings import LearnerSettings, UserCode
from metasp.memory import Memory, selection
from metasp.methods import Recipe, added_by
from metasp.methods.base import Method
from metasp.methods.context import Plan, TrainingContext, Transform
from metasp.processes import as_the_first, check_alike
from metasp.train.from_spec import build_method, check_compatible, choose_device, or_default
from metasp.train.online import OpenTask
from metasp.train.optimizers import OPTIMIZERS, LearningRate, Schedule
from metasp.train.trainer import Trainer
from metasp.types import CROSS_ENTROPY, Streams


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
    model.to(on)
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
    apart = "the processes made learners with different settings: give all of them the same."
    check_alike(ranks, {"settings": numbers}, apart)
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
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"optimizer returned a {type(optimizer).__name__}: pass a function that makes a torch "
            "optimizer of parameters, for instance lambda params: torch.optim.AdamW(params, "
            "lr=3e-4)."
        )
    of_model = {id(p) for p in model.parameters()}
    if any(id(p) not in of_model for group in optimizer.param_groups for p in group["params"]):
        raise UserError(
            "the optimizer holds parameters that are not the model's: build it from those that it "
            "is given."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError(
            "LBFGS computes the loss many times in one step, but a learner computes it once per "
            "batch: use another optimizer, such as AdamW."
        )
    if any("elementwise" in each.needs for each in kinds_of(recipe, settings)):
        elementwise(optimizer)
    return optimizer


def build_transform(model: nn.Module, code: UserCode, keep: str, device: torch.device) -> Transform:
    """Build what makes the model's inputs of what the memory holds."""
    dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
    encoder = code.encoder
    if encoder is None:
        if keep != "inputs":
            raise UserError('keep="features" needs an encoder: give encoder=, or leave keep out.')
        return NetworkInputs(code.transform, code.augment, dtype)
    if code.augment is not None:
        raise UserError(
            "augment changes inputs anew in each epoch, and an encoder's features are computed "
            "once: leave augment out, or let the model hold the encoder with its gradients off."
        )
    raw = NetworkInputs(code.transform, None, floats_of(encoder.module))
    encoder.place(model, raw, device, dtype)
    return NetworkInputs(None, None, dtype) if keep == "features" else EncodedInputs(encoder)

"""From a user's model and settings to the same trainer that a run has."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from numbers import Real

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from metasp import trees
from metasp.engine.evaluate import best_of, evaluate
from metasp.engine.from_spec import build_method, check_compatible, choose_device, or_default
from metasp.engine.observing import OpenTask
from metasp.engine.optimizers import OPTIMIZERS, LearningRate, Schedule
from metasp.engine.trainer import Trainer
from metasp.errors import UserError
from metasp.influence.optimizers import elementwise
from metasp.influence.origin import check_functional
from metasp.influence.parallel import Ranks
from metasp.learner.data import Arrivals
from metasp.learner.encoder import FrozenEncoder, inputs_for
from metasp.learner.settings import LearnerSettings, Parts
from metasp.learner.together import split
from metasp.memory import Memory, selection
from metasp.methods import Recipe, added_by
from metasp.methods.context import Plan, Scoring, TrainingContext, evaluating
from metasp.methods.method import Method
from metasp.trees import Tree, kind
from metasp.types import CROSS_ENTROPY, Examples, Streams, Task

FAILURES = (RuntimeError, TypeError, LookupError, ValueError, AttributeError, AssertionError)
"""What a model that is given the wrong inputs raises."""


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that learning moves; there must be some."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model must be a torch.nn.Module, not {model!r}.")
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise UserError(
            "the model has lazy layers that do not know their size yet: run a batch through it "
            "first."
        )
    found = [p for p in model.parameters() if p.requires_grad]
    if not found:
        raise UserError("the model has no trainable parameters: there is nothing to learn.")
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise UserError("the model has weights that are NaN or infinite: load or draw it again.")
    return found


def build(
    model: nn.Module, name: str, recipe: Recipe, settings: LearnerSettings, parts: Parts,
    device: str | torch.device | None, ranks: Ranks | None = None,
) -> Trainer:  # fmt: skip
    """A trainer without tasks, for this process or for one of those that share the learner."""
    weights = trainable(model)
    for entry, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"{entry} of the model's state is not a tensor, and only tensors are stored: keep "
                "it in a buffer instead (Module.register_buffer)."
            )
    place = weights[0].device if device is None else choose_device(str(device))
    model.to(place)
    if ranks is not None:
        split(model, settings, ranks)
    if settings.compile:
        model.compile()
    keeps = selection(settings.selection or recipe.selection or "reservoir")
    check_compatible(name, recipe, settings)
    if any(kind.measures for kind in kinds_of(recipe, settings)):
        check_functional(model)
    if recipe.selection is not None and not settings.memory:
        raise UserError(f"{name} needs a memory: give memory=1 or more, or use finetune.")
    learner = TrainingContext(
        model=model,
        optimizer=optimizer_for(model, recipe, settings, parts),
        loss_fn=parts.loss_fn or CROSS_ENTROPY,
        memory=Memory(settings.memory, (*recipe.kind.columns, *keeps.columns)),
        selection=keeps,
        transform=inputs_for(model, parts, settings.keep, place),
        streams=Streams(settings.seed),
        plan=Plan(
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            memory_batch=settings.memory_batch,
            rehearse_last=settings.rehearse_last or settings.epochs,
            tasks=0,
        ),
        device=place,
        bf16=settings.precision == "bf16",
        clip_norm=settings.clip_norm,
        compiled=hasattr(model, "_orig_mod")
        or getattr(model, "_compiled_call_impl", None) is not None,
    )
    method = build_method(name, recipe, settings, learner)
    score = partial(score_task, parts)
    trainer = Trainer(learner, method, [], LearningRate(), score)
    trainer.open = OpenTask(settings.window, parts.detector)
    if parts.scheduler is not None:
        if recipe.kind.own_schedule:
            raise UserError(f"{name} has a schedule of its own: leave out scheduler.")
        trainer.schedule = Schedule(parts.scheduler, settings.scheduler_step, learner.optimizer)
    return trainer


def kinds_of(recipe: Recipe, settings: LearnerSettings) -> list[type[Method]]:
    """The method, and the one whose influence is added to it."""
    added = added_by(settings.influence)
    return [recipe.kind] if added is None else [recipe.kind, added.kind]


def optimizer_for(
    model: nn.Module, recipe: Recipe, settings: LearnerSettings, parts: Parts
) -> torch.optim.Optimizer:
    """The user's optimizer, or SGD as the settings and the method have it. It gets the frozen
    parameters too, which have no gradient until they are not."""
    kind = recipe.kind
    if parts.optimizer is None:
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
        optimizer = parts.optimizer(model.parameters())
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
    own = {id(p) for p in model.parameters()}
    if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise UserError(
            "the optimizer holds parameters that are not the model's: build it from those that it "
            "is given."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError(
            "LBFGS computes the loss many times in one step, but a learner computes it once per "
            "batch: use "
            "another optimizer, such as AdamW."
        )
    sparse = any(getattr(module, "sparse", False) for module in model.modules())
    if isinstance(optimizer, torch.optim.SparseAdam) and not sparse:
        raise UserError(
            "SparseAdam takes only sparse gradients, and no layer of the model gives them: use "
            "Adam."
        )
    if any(each.virtual_steps for each in kinds_of(recipe, settings)):
        elementwise(optimizer)
    return optimizer


@torch.no_grad()
def outputs_of(
    learner: TrainingContext,
    inputs: Tree,
    scoring: Scoring | None = None,
    encoder: FrozenEncoder | None = None,
) -> Tensor:
    """The model's outputs (n, …) on inputs as the memory holds them, or on raw ones by way of an
    encoder, or how they are scored, in evaluation mode, on the CPU."""
    say = scoring or learner.outputs
    prepare = learner.transform if encoder is None else encoder.for_model
    parts = []
    with evaluating(learner.model):
        portion = trees.at_once(inputs)
        for start in range(0, max(1, trees.size(inputs)), portion):
            some = trees.rows(inputs, slice(start, start + portion))
            here = trees.each(lambda t: t.to(learner.device), some)
            parts.append(say(prepare(here)))
    if not all(isinstance(part, Tensor) for part in parts):
        raise UserError(
            f"the model returns a {type(parts[0]).__name__}: wrap it so that it returns one "
            "tensor, the logits or the outputs of each example."
        )
    return torch.cat([part.cpu() for part in parts])


def answers(outputs: Tensor, seen: Sequence[int], own_loss: bool) -> Tensor:
    """The most likely of the classes seen, shape (n,); without classes, or where a loss of one's
    own makes one output stand for two of them, the outputs themselves."""
    least = 1 if own_loss else 0
    if not seen or outputs.dim() != 2 or outputs.shape[1] <= max(least, *seen):
        return outputs
    return best_of(outputs, seen)


def score_outputs(
    learner: TrainingContext, parts: Parts, outputs: Tensor, labels: Tensor, seen: Sequence[int]
) -> float:
    """The metric; without one the accuracy where there are classes, else the mean loss."""
    if parts.metric is not None:
        value = parts.metric(outputs, labels)
        if not isinstance(value, Tensor | Real | np.ndarray):
            raise UserError(
                f"metric returns {'nothing' if value is None else repr(value)}: return a number, "
                "or one for each example."
            )
        return float(torch.as_tensor(value, dtype=torch.float64).mean())
    said = answers(outputs, seen, parts.loss_fn is not None)
    if said is not outputs:
        return float((said == labels).double().mean())
    return float(learner.loss_fn(outputs, labels).double().mean())


def score_task(
    parts: Parts, learner: TrainingContext, task: Task, seen: Sequence[int]
) -> tuple[float, float]:
    """A task's test score, as of all classes seen and as of its own."""
    if parts.metric is None and parts.loss_fn is None:
        return evaluate(learner, task, seen)
    test = task.test.take(torch.arange(len(task.test)))
    outputs = outputs_of(learner, test.inputs, learner.scoring())
    labels = test.labels.cpu()
    both = [score_outputs(learner, parts, outputs, labels, part) for part in (seen, task.classes)]
    return both[0], both[1]


def outputs_or_user_error(
    learner: TrainingContext,
    inputs: Tree,
    scoring: Scoring | None = None,
    encoder: FrozenEncoder | None = None,
) -> Tensor:
    """The model's outputs, or how they are scored, or one sentence on why it has none."""
    try:
        return outputs_of(learner, inputs, scoring, encoder)
    except FAILURES as error:
        if isinstance(error, UserError):
            raise
        reason = first_line(error) or type(error).__name__
        floats = not isinstance(inputs, Tensor) or inputs.is_floating_point()
        whole = "" if floats else ", or make them floats with .float()"
        raise UserError(
            f"the model cannot take inputs that are {kind(inputs)} ({reason}): bring them to what "
            f"it takes, for instance with transform={whole}."
        ) from error


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:120].rstrip(".")


def plan_for(plan: Plan, classes: Sequence[int], known: Sequence[Task]) -> Plan:
    """The plan with it said whether classes come back, as in a domain-incremental stream."""
    before = {label for task in known for label in task.classes}
    return replace(plan, shared_classes=plan.shared_classes or bool(before & set(classes)))


def task_of(index: int, found: Arrivals, ids: Tensor, test: Arrivals | None) -> Task:
    tested = Examples.of(trees.rows(found.inputs, slice(0)), found.labels[:0])
    if test is not None:
        tested = Examples.of(test.inputs, test.labels)
    return Task(index, found.classes, Examples.of(found.inputs, found.labels, ids), tested)

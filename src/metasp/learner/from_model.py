"""From a user's model and settings to the same trainer that a run has."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from metasp.engine.evaluate import best_of, evaluate
from metasp.engine.from_spec import check_sense, choose_device, first
from metasp.engine.optimizers import OPTIMIZERS, LearningRate, Schedule
from metasp.engine.trainer import Trainer
from metasp.errors import UserError
from metasp.influence.optimizers import elementwise
from metasp.influence.origin import check_plain
from metasp.learner.data import Arrivals, Inputs, kind
from metasp.learner.settings import LearnerSettings, Parts
from metasp.memory import Memory, selection
from metasp.methods import Recipe, settings_of
from metasp.methods.learner import Learner, Plan, Scoring, evaluating
from metasp.types import CROSS_ENTROPY, Examples, Streams, Task

AT_ONCE = 500  # examples in one pass without gradients


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
    device: str | torch.device | None,
) -> Trainer:  # fmt: skip
    """A trainer without tasks."""
    weights = trainable(model)
    for entry, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"{entry} of the model's state is no tensor, and nothing else is stored: keep it "
                "in a buffer instead (Module.register_buffer)."
            )
    place = weights[0].device if device is None else choose_device(str(device))
    model.to(place)
    keeps = selection(settings.selection or recipe.selection or "reservoir")
    check_sense(name, recipe, settings)
    if recipe.kind.measures:
        check_plain(model)
    if recipe.selection is not None and not settings.memory:
        raise UserError(f"{name} needs a memory: give memory=1 or more, or use finetune.")
    learner = Learner(
        model=model,
        optimizer=optimizer_for(model, recipe, settings, parts),
        loss_fn=parts.loss_fn or CROSS_ENTROPY,
        memory=Memory(settings.memory, (*recipe.kind.columns, *keeps.columns)),
        selection=keeps,
        transform=Inputs(parts.transform, parts.augment, weights[0].dtype),
        streams=Streams(settings.seed),
        plan=Plan(
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            memory_batch=settings.memory_batch,
            rehearse_last=settings.rehearse_last or settings.epochs,
            tasks=0,
        ),
        device=place,
        compiled=hasattr(model, "_orig_mod")
        or getattr(model, "_compiled_call_impl", None) is not None,
    )
    own = settings_of(recipe, name, settings.settings)
    method = recipe.kind(learner, recipe.kind.filled_in(own, settings.epochs, settings.memory))
    score = partial(score_task, parts)
    trainer = Trainer(learner, method, [], LearningRate(), score)
    if parts.scheduler is not None:
        if recipe.kind.own_schedule:
            raise UserError(f"{name} has a schedule of its own: leave out scheduler.")
        trainer.schedule = Schedule(parts.scheduler, settings.scheduler_step, learner.optimizer)
    return trainer


def optimizer_for(
    model: nn.Module, recipe: Recipe, settings: LearnerSettings, parts: Parts
) -> torch.optim.Optimizer:
    """The user's optimizer, or SGD as the settings and the method have it. It gets the frozen
    parameters too, which have no gradient until they are not."""
    kind = recipe.kind
    if parts.optimizer is None:
        return OPTIMIZERS["sgd"].build(
            model.parameters(),
            first(settings.lr, kind.lr),
            first(settings.momentum, kind.momentum),
            first(settings.weight_decay, kind.weight_decay),
        )
    for name in ("lr", "momentum", "weight_decay"):
        if getattr(settings, name) is not None:
            raise UserError(
                f"{name} and optimizer are both given: set {name} in the optimizer alone."
            )
    optimizer = parts.optimizer(model.parameters())
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"optimizer gave a {type(optimizer).__name__}: give a function from parameters to a "
            "torch optimizer, for instance lambda params: torch.optim.AdamW(params, lr=3e-4)."
        )
    own = {id(p) for p in model.parameters()}
    if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise UserError(
            "the optimizer holds parameters that are not the model's: make it of those it is given."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError(
            "LBFGS looks at a loss many times in one step, and a learner at each batch once: use "
            "another optimizer, such as AdamW."
        )
    if kind.virtual_steps:
        elementwise(optimizer)
    return optimizer


@torch.no_grad()
def outputs_of(learner: Learner, inputs: Tensor, scoring: Scoring | None = None) -> Tensor:
    """The model's outputs (n, …) on raw inputs, or how they are scored, in evaluation mode, on the
    CPU."""
    say = scoring or learner.outputs
    with evaluating(learner.model):
        parts = [
            say(learner.transform(part.to(learner.device))) for part in torch.split(inputs, AT_ONCE)
        ]
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
    learner: Learner, parts: Parts, outputs: Tensor, labels: Tensor, seen: Sequence[int]
) -> float:
    """The metric; without one the accuracy where there are classes, else the mean loss."""
    if parts.metric is not None:
        value = parts.metric(outputs, labels)
        if value is None:
            raise UserError("metric returns nothing: return a number, or one for each example.")
        return float(torch.as_tensor(value, dtype=torch.float64).mean())
    said = answers(outputs, seen, parts.loss_fn is not None)
    if said is not outputs:
        return float((said == labels).double().mean())
    return float(learner.loss_fn(outputs, labels).double().mean())


def score_task(
    parts: Parts, learner: Learner, task: Task, seen: Sequence[int]
) -> tuple[float, float]:
    """A task's test score, as of all classes seen and as of its own."""
    if parts.metric is None and parts.loss_fn is None:
        return evaluate(learner, task, seen)
    test = task.test.take(torch.arange(len(task.test)))
    outputs = outputs_of(learner, test.inputs, learner.scoring())
    labels = test.labels.cpu()
    both = [score_outputs(learner, parts, outputs, labels, part) for part in (seen, task.classes)]
    return both[0], both[1]


def check_arrivals(
    learner: Learner, found: Arrivals, known: Sequence[Task], learned: Sequence[Mapping[str, Any]]
) -> None:
    """Raise if what arrives cannot follow what the learner has seen."""
    memory = learner.memory
    if known:
        labels = known[-1].train.labels
        if labels.shape[1:] != found.labels.shape[1:] or labels.dtype != found.labels.dtype:
            raise UserError(
                f"the labels are {kind(found.labels)} and were {kind(labels)} before: a learner "
                "keeps to one kind."
            )
    if memory.inputs is not None:
        # Of the last task, for a memory may hold bytes as floats; older files do not tell.
        now = kind(found.inputs)
        before = learned[-1].get("inputs", now if memory.floats else kind(memory.inputs))
        if before != now:
            raise UserError(
                f"the inputs are {now} and were {before} before: bring them to one shape and type."
            )


def check_names(names: Tensor, found: Arrivals, known: Sequence[Task]) -> None:
    """Raise if an id was given to an example of another class before: it cannot be the same one."""
    if not found.are_classes:
        return
    before = {
        i: y
        for task in known
        if task.classes
        for i, y in zip(task.train.ids.tolist(), task.train.labels.tolist())
    }
    for name, label in zip(names.tolist(), found.labels.tolist()):
        if before.get(name, label) != label:
            raise UserError(
                f"id {name} was given to an example of class {before[name]} before and now to one "
                f"of class {label}: ids name examples for life; leave ids out for running numbers."
            )


def check_fit(learner: Learner, found: Arrivals, recipe: Recipe, own_loss: bool) -> None:
    """Raise if model, loss, method or selection cannot take such labels."""
    if not found.are_classes:
        if not own_loss:
            if found.labels.is_floating_point():
                what = "the labels are floats, and classes are whole numbers (labels.long())"
            else:
                what = f"the labels have shape {tuple(found.labels.shape)}, and classes have (n,)"
            raise UserError(
                f"{what}: pass loss_fn=, with one loss per example, for anything but classes."
            )
        if recipe.kind.classes:
            raise UserError(
                f"{recipe.kind.__name__} needs classes and these labels are none: use another "
                "method, such as er or metasp."
            )
        if recipe.selection is not None and learner.selection.classes:
            raise UserError(
                "this selection shares the memory by class and these labels are no classes: pass "
                "selection='reservoir'."
            )
    if own_loss and recipe.kind.own_loss:
        raise UserError(
            f"{recipe.kind.__name__} learns classes by a loss of its own: leave loss_fn out, or "
            "use another method, such as er or derpp."
        )
    few = found.inputs[:2]
    if recipe.kind.moves_inputs and not learner.transform(few).is_floating_point():
        raise UserError(
            f"{recipe.kind.__name__} moves inputs along gradients and these are whole numbers: use "
            "another method, such as er or metasp."
        )
    outputs = told_outputs(learner, few).to(learner.device)
    if not own_loss:
        check_range(outputs, found.labels)
    losses = first_losses(learner, outputs, found.labels[:2].to(learner.device))
    if not isinstance(losses, Tensor) or losses.shape != (len(few),):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise UserError(
            f"loss_fn gives {shape} for {len(few)} examples: return one number per example, for "
            'instance F.mse_loss with reduction="none" and a mean over the outputs.'
        )


def told_outputs(learner: Learner, inputs: Tensor, scoring: Scoring | None = None) -> Tensor:
    """The model's outputs, or how they are scored, or one sentence on why it has none."""
    try:
        return outputs_of(learner, inputs, scoring)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = first_line(error)
        whole = "" if inputs.is_floating_point() else ", or make them floats with .float()"
        raise UserError(
            f"the model cannot take inputs that are {kind(inputs)} ({reason}): bring them to what "
            f"it takes, for instance with transform={whole}."
        ) from error


def first_losses(learner: Learner, outputs: Tensor, labels: Tensor) -> Any:
    """What the loss makes of a few outputs, or one sentence on why it makes nothing."""
    try:
        return learner.loss_fn(outputs, labels)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise UserError(
            f"loss_fn cannot take outputs that are {kind(outputs)} with labels that are "
            f"{kind(labels)} ({first_line(error)}): bring them together in loss_fn."
        ) from error


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:120].rstrip(".")


def check_range(outputs: Tensor, labels: Tensor) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise UserError(f"label {low} is negative: number the classes from 0.")
    if outputs.dim() != 2 or high >= outputs.shape[1]:
        shape = tuple(outputs.shape[1:])
        raise UserError(
            f"label {high} is out of range for outputs of shape {shape} per example: give the "
            "model a larger last layer, or name it with head= to let it grow."
        )


def plan_for(plan: Plan, classes: Sequence[int], known: Sequence[Task]) -> Plan:
    """The plan with it said whether classes come back, as in a domain-incremental stream."""
    before = {label for task in known for label in task.classes}
    return replace(plan, shared_classes=plan.shared_classes or bool(before & set(classes)))


def check_trusted(found: Arrivals, classes: Collection[int]) -> None:
    """Verified examples must be of classes that the learner has seen."""
    if not found.are_classes:
        raise UserError("verified examples have classes as labels: give whole numbers.")
    strange = sorted(set(found.classes) - set(classes))
    if strange:
        raise UserError(
            f"the verified examples are of class {strange[0]}, which no task has had: give "
            f"examples of {', '.join(map(str, sorted(classes)))}."
        )


def task_of(index: int, found: Arrivals, ids: Tensor, test: Arrivals | None) -> Task:
    tested = Examples.of(found.inputs[:0], found.labels[:0])
    if test is not None:
        tested = Examples.of(test.inputs, test.labels)
    return Task(index, found.classes, Examples.of(found.inputs, found.labels, ids), tested)

"""Check that examples which come in can be learned by this model with this method."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from metasp import trees
from metasp.errors import BATCHNORM_NEEDS_TWO, UserError
from metasp.influence.checks import enough_values
from metasp.learner.build import LearnerSettings, UserCode
from metasp.learner.inputs import Labelled
from metasp.learner.outputs import first_line, model_outputs
from metasp.memory.rehsel import CLUSTERING
from metasp.methods import Recipe
from metasp.methods.context import TrainingContext
from metasp.trees import Tree, kind
from metasp.types import LossFn, Task


def check_follows(
    context: TrainingContext,
    data: Labelled,
    known: Sequence[Task],
    learned: Sequence[Mapping[str, Any]],
) -> None:
    """Raise if examples are not of the kind that the learner has had before."""
    memory = context.memory
    if known:
        labels = known[-1].train.labels
        if labels.shape[1:] != data.labels.shape[1:] or labels.dtype != data.labels.dtype:
            raise UserError(
                f"the labels are {kind(data.labels)} and were {kind(labels)} before: a learner "
                "keeps to one kind."
            )
    if memory.inputs is not None and learned:
        # Of the last task, for a memory may hold bytes as floats.
        now, before = kind(data.inputs), learned[-1]["inputs"]
        if before != now:
            raise UserError(
                f"the inputs are {now} and were {before} before: bring them to one shape and type."
            )


def check_ids(ids: Tensor, data: Labelled, known: Sequence[Task]) -> None:
    """Raise if an id was given to an example of another class before: it cannot be the same one."""
    if not data.are_classes:
        return
    before: dict[int, int] = {}
    for task in known:
        if task.classes:
            before.update(zip(task.train.ids.tolist(), task.train.labels.tolist()))
    for name, label in zip(ids.tolist(), data.labels.tolist()):
        if before.get(name, label) != label:
            raise UserError(
                f"id {name} was given to an example of class {before[name]} before and now to one "
                f"of class {label}: ids name examples for life; leave ids out for running numbers."
            )


def check_fit(
    context: TrainingContext, data: Labelled, recipe: Recipe, loss_fn: LossFn | None
) -> None:
    """Raise if model, loss, method or selection cannot take such inputs or labels."""
    if not data.are_classes:
        check_not_classes(context, data, recipe, loss_fn)
    if loss_fn is not None and "own loss" in recipe.kind.needs:
        raise UserError(
            f"{recipe.kind.__name__} learns classes by a loss of its own: leave loss_fn out, or "
            "use another method, such as er or derpp."
        )
    few, labels = trees.rows(data.inputs, slice(2)), data.labels[:2].to(context.device)
    check_inputs(context, few, recipe)
    outputs = model_outputs(context, few).to(context.device)
    if loss_fn is None:
        check_range(outputs, data.labels)
    try:
        losses = context.loss_fn(outputs, labels)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise UserError(
            f"loss_fn cannot take outputs that are {kind(outputs)} with labels that are "
            f"{kind(labels)} ({first_line(error)}): make loss_fn take both."
        ) from error
    if not isinstance(losses, Tensor) or losses.shape != (len(outputs),):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise UserError(
            f"loss_fn gives {shape} for {len(outputs)} examples: return one number per example, "
            'for instance F.mse_loss with reduction="none" and a mean over the outputs.'
        )


def check_not_classes(
    context: TrainingContext, data: Labelled, recipe: Recipe, loss_fn: LossFn | None
) -> None:
    """Raise if something needs classes, which these labels are not."""
    if loss_fn is None:
        what = f"the labels have shape {tuple(data.labels.shape)}, and classes have (n,)"
        if data.labels.is_floating_point():
            what = "the labels are floats, and classes are whole numbers (labels.long())"
        raise UserError(
            f"{what}: pass loss_fn=, with one loss per example, for anything but classes."
        )
    needs = "needs classes and these labels are not classes: use"
    if "classes" in recipe.kind.needs:
        raise UserError(f"{recipe.kind.__name__} {needs} another method, such as er or metasp.")
    if context.weigh is not None and context.weigh.judges:
        raise UserError(f"influence robust {needs} influence metasp, or none.")
    if recipe.selection is not None and context.selection.classes:
        raise UserError(
            "this selection shares the memory by class and these labels are not classes: pass "
            "selection='reservoir'."
        )


def check_inputs(context: TrainingContext, few: Tree, recipe: Recipe) -> None:
    """Raise if the method or the selection cannot take such inputs."""
    if "real inputs" in recipe.kind.needs:
        moved = context.transform(few)
        if not isinstance(moved, Tensor) or not moved.is_floating_point():
            what = "whole numbers" if isinstance(moved, Tensor) else "several tensors"
            raise UserError(
                f"{recipe.kind.__name__} moves inputs along gradients and these are {what}: use "
                "another method, such as er or metasp."
            )
    clusters = recipe.selection is not None and context.selection.decide in CLUSTERING
    if clusters and context.selection.points == "pixels" and not isinstance(few, Tensor):
        raise UserError(
            "this selection clusters the numbers of one tensor and these inputs are several: pass "
            "selection='rehsel-features', or method='metasp'."
        )


def check_range(outputs: Tensor, labels: Tensor) -> None:
    """Raise if a label (n,) has no output (n, classes)."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise UserError(f"label {low} is negative: number the classes from 0.")
    if outputs.dim() != 2 or high >= outputs.shape[1]:
        shape = tuple(outputs.shape[1:])
        raise UserError(
            f"label {high} is out of range for outputs of shape {shape} per example: give the "
            "model a larger last layer, or name it with head= to let it grow."
        )


def check_known_classes(
    data: Labelled, classes: Collection[int], names: Sequence[str], what: str
) -> None:
    """Raise if further examples have classes that the learner has not seen."""
    if not data.are_classes:
        raise UserError(f"the labels of the {what} must be classes: give whole numbers.")
    strange = sorted({*data.classes} - {*classes})
    if strange:
        named = [repr(data.names[c]) if data.names else str(c) for c in strange]
        allowed = [names[c] if names else str(c) for c in sorted(classes)]
        raise UserError(
            f"the {what} has examples of class {named[0]}, which no task has had: give examples of "
            f"{', '.join(allowed)}."
        )


def check_same_kind(data: Labelled, learned: Labelled) -> None:
    """Raise unless the examples of a validation are like those that are learned."""
    ours, theirs = ((kind(one.inputs), kind(one.labels)) for one in (learned, data))
    if ours != theirs:
        raise UserError(
            f"the validation dataset has inputs that are {theirs[0]} and labels that are "
            f"{theirs[1]}, and the dataset {ours[0]} and {ours[1]}: bring them to one shape and "
            "type."
        )


def check_scored(labels: Tensor, learned: Tensor, code: UserCode) -> None:
    """Raise if labels to score against cannot be compared with those that were learned; a user's
    metric may take any."""
    other = labels.shape[1:] != learned.shape[1:]
    if code.metric is None and (other or (code.loss_fn is None and labels.is_floating_point())):
        raise UserError(
            f"the labels to score against are {kind(labels)} and those learned {kind(learned)}: "
            "bring them to one kind."
        )


def check_online(
    method: str, recipe: Recipe, context: TrainingContext, code: UserCode, settings: LearnerSettings
) -> None:
    """Raise if this cannot learn from a stream without boundaries, and name what can."""
    if "boundaries" in recipe.kind.needs:
        raise UserError(
            f"{method} must know where a task ends, and a stream does not tell: use er, "
            "derpp, er-ace, mir, gss, gmed or metasp, or learn whole tasks."
        )
    if context.weigh is not None and context.weigh.judges:
        raise UserError(
            "influence robust judges a whole task at once, and a stream has none: use influence "
            "metasp, or learn whole tasks."
        )
    if recipe.selection is not None and context.selection.at != "step":
        raise UserError(
            f"{method} chooses what to keep at a task's end, and a stream has none: pass "
            "selection='reservoir', 'greedy' (balanced by class) or 'ring', or learn whole tasks."
        )
    if code.scheduler is not None and settings.scheduler_step != "step":
        raise UserError(
            "the scheduler moves at the end of an epoch, and a stream has none: pass "
            "scheduler_step='step'."
        )
    if code.encoder is not None and settings.keep != "features":
        raise UserError(
            "with an encoder a stream keeps features alone: make the learner with keep='features'."
        )


def check_alone(context: TrainingContext, inputs: Tree) -> None:
    """Raise if the model cannot be trained on one example alone: batch normalisation cannot."""
    if not any(isinstance(module, _BatchNorm) for module in context.model.modules()):
        return
    trial = deepcopy(context.model).eval()
    for module in trial.modules():
        if isinstance(module, _BatchNorm):
            module.train()
    inputs = trees.each(lambda t: t.to(context.device), inputs)
    try:
        with torch.no_grad(), enough_values(BATCHNORM_NEEDS_TWO):
            trees.call(trial, context.transform(inputs))
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, UserError):  # what else is wrong is told later
            raise

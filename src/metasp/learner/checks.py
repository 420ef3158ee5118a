"""Whether what arrives can be learned by this model with this method, or one sentence why not."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from metasp import trees
from metasp.errors import UserError
from metasp.learner.data import Arrivals
from metasp.learner.from_model import first_line, outputs_or_user_error
from metasp.memory.rehsel import CLUSTERING
from metasp.methods import Recipe
from metasp.methods.context import TrainingContext
from metasp.trees import Tree, kind
from metasp.types import Task


def check_arrivals(
    learner: TrainingContext,
    found: Arrivals,
    known: Sequence[Task],
    learned: Sequence[Mapping[str, Any]],
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


def check_fit(learner: TrainingContext, found: Arrivals, recipe: Recipe, own_loss: bool) -> None:
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
                f"{recipe.kind.__name__} needs classes and these labels are not classes: use "
                "another method, such as er or metasp."
            )
        if learner.weigh is not None and learner.weigh.judges:
            raise UserError(
                "influence robust needs classes and these labels are not classes: use influence "
                "metasp, or none."
            )
        if recipe.selection is not None and learner.selection.classes:
            raise UserError(
                "this selection shares the memory by class and these labels are not classes: pass "
                "selection='reservoir'."
            )
    if own_loss and recipe.kind.own_loss:
        raise UserError(
            f"{recipe.kind.__name__} learns classes by a loss of its own: leave loss_fn out, or "
            "use another method, such as er or derpp."
        )
    few = trees.rows(found.inputs, slice(2))
    check_inputs(learner, few, recipe)
    outputs = outputs_or_user_error(learner, few).to(learner.device)
    if not own_loss:
        check_range(outputs, found.labels)
    losses = first_losses(learner, outputs, found.labels[:2].to(learner.device))
    if not isinstance(losses, Tensor) or losses.shape != (len(outputs),):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise UserError(
            f"loss_fn gives {shape} for {len(outputs)} examples: return one number per example, "
            'for instance F.mse_loss with reduction="none" and a mean over the outputs.'
        )


def check_inputs(learner: TrainingContext, few: Tree, recipe: Recipe) -> None:
    """Raise if the method or the selection cannot take such inputs."""
    one = isinstance(few, Tensor)
    if recipe.kind.moves_inputs:
        moved = learner.transform(few)
        if not isinstance(moved, Tensor) or not moved.is_floating_point():
            what = "whole numbers" if isinstance(moved, Tensor) else "several tensors"
            raise UserError(
                f"{recipe.kind.__name__} moves inputs along gradients and these are {what}: use "
                "another method, such as er or metasp."
            )
    clusters = recipe.selection is not None and learner.selection.decide in CLUSTERING
    if clusters and learner.selection.points == "pixels" and not one:
        raise UserError(
            "this selection clusters the numbers of one tensor and these inputs are several: pass "
            "selection='rehsel-features', or method='metasp'."
        )


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


def check_trusted(found: Arrivals, classes: Collection[int], names: Sequence[str] = ()) -> None:
    """Verified examples must be of classes that the learner has seen."""
    if bool(names) != bool(found.names):
        raise UserError(
            f"the verified examples have {'numbers' if names else 'names'} as labels, and the "
            f"learner's classes are {'names' if names else 'numbers'}: a learner keeps to one kind."
        )
    unknown = [name for name in found.names if name not in names]
    if unknown:
        raise UserError(
            f"the verified examples are of class {unknown[0]!r}, which no task has had: give "
            f"examples of {', '.join(names)}."
        )
    if names:
        return
    if not found.are_classes:
        raise UserError("the labels of verified examples must be classes: give whole numbers.")
    strange = sorted(set(found.classes) - set(classes))
    if strange:
        raise UserError(
            f"the verified examples are of class {strange[0]}, which no task has had: give "
            f"examples of {', '.join(map(str, sorted(classes)))}."
        )


def first_losses(learner: TrainingContext, outputs: Tensor, labels: Tensor) -> Any:
    """What the loss makes of a few outputs, or one sentence on why it makes nothing."""
    try:
        return learner.loss_fn(outputs, labels)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise UserError(
            f"loss_fn cannot take outputs that are {kind(outputs)} with labels that are "
            f"{kind(labels)} ({first_line(error)}): make loss_fn take both."
        ) from error

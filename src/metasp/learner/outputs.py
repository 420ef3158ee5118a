"""Outputs of a learner's model on whole data sets, the classes they speak for, and scores."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real

import numpy as np
import torch
from torch import Tensor, nn

from metasp import trees
from metasp.errors import UserError
from metasp.learner.encoder import FrozenEncoder
from metasp.methods.context import Scoring, TrainingContext, evaluating
from metasp.train.evaluate import best_of, evaluate
from metasp.trees import Tree, kind
from metasp.types import LossFn, Task

Metric = Callable[[Tensor, Tensor], float | Tensor]
"""(outputs, targets) to a number, or to one number per example."""

FAILURES = (RuntimeError, TypeError, LookupError, ValueError, AttributeError, AssertionError)
"""What a model that is given the wrong inputs raises."""


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Hold the model in evaluation mode; afterwards its modes and buffers are as before."""
    strided = ((n, b) for n, b in model.named_buffers() if b.layout == torch.strided)
    buffers = {name: (buffer, buffer.clone()) for name, buffer in strided}
    try:
        with evaluating(model):
            yield
    finally:
        for name, (buffer, value) in buffers.items():
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, buffer)
            if not torch.equal(buffer, value):
                buffer.copy_(value)


@contextmanager
def in_training(model: nn.Module) -> Iterator[None]:
    """Hold the model in training mode, its modules too unless it is in that mode already: a layer
    that the user has put to rest stays so. Afterwards all modes are as before."""
    modes = {module: module.training for module in model.modules()}
    if not model.training:
        model.train()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def model_outputs(
    context: TrainingContext,
    inputs: Tree,
    scoring: Scoring | None = None,
    encoder: FrozenEncoder | None = None,
) -> Tensor:
    """Return the model's outputs (n, …), or what `scoring` makes of inputs, in evaluation mode, on
    the CPU. Inputs are as the memory holds them, or with an `encoder` raw ones. Raises one sentence
    where the model cannot take them."""
    prepare = context.transform if encoder is None else encoder
    outputs = []
    try:
        with unchanged(context.model):
            for start in range(0, max(1, trees.size(inputs)), trees.at_once(inputs)):
                rows = trees.rows(inputs, slice(start, start + trees.at_once(inputs)))
                rows = trees.each(lambda t: t.to(context.device), rows)
                ready = trees.each(lambda t: t.to(context.device), prepare(rows))
                outputs.append((scoring or context.outputs)(ready))
    except FAILURES as error:
        if isinstance(error, UserError):
            raise
        reason = first_line(error) or type(error).__name__
        floats = not isinstance(inputs, Tensor) or inputs.is_floating_point()
        remedy = "" if floats else ", or make them floats with .float()"
        raise UserError(
            f"the model cannot take inputs that are {kind(inputs)} ({reason}): bring them to what "
            f"it takes, for instance with transform={remedy}."
        ) from error
    if not all(isinstance(one, Tensor) for one in outputs):
        raise UserError(
            f"the model returns a {type(outputs[0]).__name__}: wrap it so that it returns one "
            "tensor, the logits or the outputs of each example."
        )
    return torch.cat([one.cpu() for one in outputs])


def answers(outputs: Tensor, seen: Sequence[int], loss_fn: LossFn | None) -> Tensor:
    """Return the most likely of the classes `seen`, shape (n,); the outputs themselves without
    classes, or where a user's loss makes one output stand for two of them."""
    least = 0 if loss_fn is None else 1
    if not seen or outputs.dim() != 2 or outputs.shape[1] <= max(least, *seen):
        return outputs
    return best_of(outputs, seen)


def score_outputs(
    outputs: Tensor,
    labels: Tensor,
    seen: Sequence[int],
    context: TrainingContext,
    loss_fn: LossFn | None,
    metric: Metric | None,
) -> float:
    """Return the metric; without one the accuracy where there are classes, else the mean loss."""
    if metric is not None:
        value = metric(outputs, labels)
        if not isinstance(value, Tensor | Real | np.ndarray):
            raise UserError(
                f"metric returns {'nothing' if value is None else repr(value)}: return a number, "
                "or one for each example."
            )
        return float(torch.as_tensor(value, dtype=torch.float64).mean())
    classes = answers(outputs, seen, loss_fn)
    if classes is not outputs:
        return float((classes == labels).double().mean())
    return float(context.loss_fn(outputs, labels).double().mean())


def score_task(
    context: TrainingContext,
    task: Task,
    seen: Sequence[int],
    *,
    loss_fn: LossFn | None,
    metric: Metric | None,
) -> tuple[float, float]:
    """Return a task's test score over all classes `seen`, and over its own."""
    if metric is None and loss_fn is None:
        return evaluate(context, task, seen)
    test = task.test.take(torch.arange(len(task.test)))
    outputs, labels = model_outputs(context, test.inputs, context.scoring()), test.labels.cpu()
    class_il = score_outputs(outputs, labels, seen, context, loss_fn, metric)
    return class_il, score_outputs(outputs, labels, task.classes, context, loss_fn, metric)


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:120].rstrip(".")

"""Gradients as vectors, and the virtual passes that leave no trace in the learner."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from metasp import trees
from metasp.influence.functional import (
    Origin,
    Problem,
    check_functional,
    dense,
    gradient,
    kept_random_state,
    kept_values,
    with_parameters,
    with_tensors,
)
from metasp.influence.pseudo_step import make_plan, virtual_parameters
from metasp.methods.base import batch_bounds
from metasp.methods.context import TrainingContext, evaluating
from metasp.trees import Tree, call
from metasp.types import Batch, LossFn, as_rows

Named = dict[str, Tensor]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, by name; their order is that of every flat vector."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def flat(model: nn.Module, grads: Mapping[str, Tensor | None]) -> Tensor:
    """Gradients by name as one vector (p,); zeros where there is none."""
    parts = []
    for name, parameter in trainable(model).items():
        part = grads.get(name)
        parts.append((torch.zeros_like(parameter) if part is None else dense(part)).flatten())
    return torch.cat(parts)


def training_gradient(learner: TrainingContext, batch: Batch) -> tuple[float, Tensor]:
    """Mean loss and its gradient (p,) on a prepared batch, by the pass that training makes. The
    parameters have it too."""
    learner.optimizer.zero_grad()  # also of what was frozen since
    loss = learner.losses(batch).mean()
    torch.autograd.backward(loss)
    grads = {name: p.grad for name, p in trainable(learner.model).items()}
    return float(loss.detach()), flat(learner.model, grads)


def descend_along(learner: TrainingContext, vector: Tensor) -> None:
    """One step of the optimizer with a vector (p,) in place of the gradient. What has no part in
    it stays without one, so that weight decay does not move what no loss looks at."""
    parameters = trainable(learner.model).values()
    parts = torch.split_with_sizes(vector, [p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts):
        if parameter.grad is not None or bool(part.any()):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)  # one vector has one
    learner.step()


def quiet_gradient(learner: TrainingContext, batch: Batch, portion: int | None = None) -> Tensor:
    """The gradient (p,) of a prepared batch's mean loss, in portions, leaving no trace: neither
    BatchNorm statistics nor any random state move."""
    model = learner.model
    theta = {name: p.detach() for name, p in trainable(model).items()}
    total = torch.zeros_like(torch.cat([p.flatten() for p in theta.values()]))
    with statistics_for(model, min(batch.size, portion or batch.size)):
        origin = Origin.of(model, learner.device)  # with the modes of the passes
    with kept_random_state(learner.device), kept_values(model):
        for start, stop in batch_bounds(batch.size, portion or batch.size):
            part = batch.at(slice(start, stop))
            pair = (part.inputs, part.labels)
            problem = Problem(model, loss_of(learner), pair, origin, "memory")
            with statistics_for(model, stop - start), learner.autocast():
                _, found = gradient(problem, theta)
            total.add_(flat(model, found), alpha=(stop - start) / batch.size)
    return total


def passing_gradient(learner: TrainingContext, batch: Batch, portion: int) -> Tensor:
    """The gradient (p,) of a prepared batch's mean loss, in portions, by ordinary passes, which
    move BatchNorm's running statistics."""
    model, total = learner.model, None
    weights = trainable(model)
    for start, stop in batch_bounds(batch.size, portion):
        part = batch.at(slice(start, stop))
        with statistics_for(model, part.size):
            loss = learner.losses(part).sum() / batch.size
            found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        own = flat(model, dict(zip(weights, found)))
        total = own if total is None else total.add_(own)
    assert total is not None
    return total


def example_gradients(learner: TrainingContext, batch: Batch) -> list[Tensor]:
    """The gradient of each example of a prepared batch in one pass, as a matrix (n, size) for
    each parameter. BatchNorm uses its running statistics: under a batch's own no example would
    have a gradient of its own."""
    model = learner.model
    theta = {name: p.detach() for name, p in trainable(model).items()}
    fixed = {name: p.detach() for name, p in model.named_parameters() if name not in theta}

    def loss(at: Named, inputs: Tree, label: Tensor) -> Tensor:
        with with_tensors(model, {**fixed, **at}):
            outputs = call(model, trees.each(lambda t: t[None], inputs))
            return learner.loss_fn(outputs, label[None]).sum()

    check_functional(model)
    with evaluating(model), kept_values(model):
        try:
            grads = vmap(grad(loss), (None, 0, 0))(theta, batch.inputs, batch.labels)
        except RuntimeError:  # a layer that torch.func does not know: a GRU, a checkpointed one
            leaves = {name: t.detach().requires_grad_() for name, t in theta.items()}
            at, one = list(leaves.values()), []
            with with_tensors(model, {**fixed, **leaves}):
                for row in range(batch.size):
                    lone = batch.at(slice(row, row + 1))
                    own = learner.loss_fn(call(model, lone.inputs), lone.labels).sum()
                    one.append(torch.autograd.grad(own, at, materialize_grads=True))
            grads = {name: torch.stack([dense(g) for g in each])
                     for name, each in zip(leaves, zip(*one))}  # fmt: skip
    return [as_rows(grads[name]) for name in theta]


def after_virtual_step(learner: TrainingContext, batch: Batch) -> Named:
    """The parameters that the optimizer's next step on a prepared batch would give."""
    with statistics_for(learner.model, batch.size), learner.autocast():
        pair, clip = (batch.inputs, batch.labels), learner.clip_norm
        loss_fn = loss_of(learner)
        return virtual_parameters(learner.model, loss_fn, pair, learner.optimizer, clip_norm=clip)


def stepped(learner: TrainingContext, grads: Mapping[str, Tensor]) -> Named:
    """The parameters that the optimizer's next step along known gradients would give."""
    plan = make_plan(learner.model, learner.optimizer, clip=learner.clip_norm).restrict(grads)
    return plan.step(plan.params, dict(grads), plan.update.state).theta


@contextmanager
def with_parameters_of(
    learner: TrainingContext, params: Mapping[str, Tensor], size: int
) -> Iterator[None]:
    """The learner with `params` in place of its model's, for a batch of `size`, until the block
    ends: a backward pass belongs inside. It leaves no trace."""
    model = learner.model
    with (
        statistics_for(model, size),
        kept_random_state(learner.device),
        with_parameters(model, params),
    ):
        yield


def loss_of(learner: TrainingContext) -> LossFn:
    """The learner's loss, for outputs of any precision."""
    if not learner.bf16:
        return learner.loss_fn
    return lambda outputs, labels: learner.loss_fn(outputs.float(), labels)


@contextmanager
def statistics_for(model: nn.Module, size: int) -> Iterator[None]:
    """Batch statistics, or the running ones for a lone example, which has no statistics."""
    if size > 1:
        yield
        return
    with evaluating(model):
        yield

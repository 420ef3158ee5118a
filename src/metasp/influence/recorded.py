"""One forward pass on a batch, kept with its graph for both its influence and the real update."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence.checks import check_losses, checked_pair
from metasp.influence.origin import Origin, shortened
from metasp.influence.pseudo import Loss, LossOf, Outputs, Pair, Plan
from metasp.influence.tape import Recorder, Tape
from metasp.trees import call, same


@dataclass(frozen=True)
class Recorded:
    """One ordinary forward pass on a batch, with its graph and its tape.

    ``losses`` has shape (n,). After the influence the same graph serves the real update:
    ``recorded.backward(weights)``, or ``(weights * recorded.losses).sum().backward()``.
    """

    losses: Tensor
    batch: Pair
    origin: Origin
    tape: Tape
    params: dict[str, nn.Parameter]
    versions: dict[str, int]  # of the parameters, which count every change but through `.data`
    deltas: dict[int, Tensor] = field(default_factory=dict)  # see `Tape.dot`; by the influence

    def backward(self, weights: Tensor) -> None:
        """Add the gradient of the weighted sum of the losses, weights (n,), to each parameter's
        ``grad``. After an influence that found every loss to hang on its own example alone, the
        gradients inside the network are known but for these weights, and only those of the
        parameters are computed: hooks on what is inside are then not called."""
        slopes = None
        if self.deltas and self.tape.separable():
            with torch.no_grad():
                slopes = self.tape.slopes(self.deltas, weights.detach())
        if slopes is None:
            torch.autograd.backward((weights * self.losses).sum())
        else:
            leaves, grads = zip(*slopes)
            torch.autograd.backward(leaves, grads)

    def check(self, batch: Pair) -> None:
        """Raise unless it is of this batch, at the parameters as they are."""
        if not same(self.batch, batch):
            raise UserError(
                "this recorded pass is of another batch: record the batch that you pass."
            )
        if any(self.params[k]._version != version for k, version in self.versions.items()):
            raise UserError(
                "the parameters have moved since this pass was recorded: record the batch again."
            )


def record(model: nn.Module, loss_fn: LossOf[Outputs], batch: Pair) -> Recorded:
    """The ordinary training forward pass on ``batch``, remembered for its influence.

    Losses have the bits of ``loss_fn(model(x), y)``; BatchNorm statistics move once and random
    numbers are drawn, as in any forward pass.
    """
    params = dict(model.named_parameters())
    if not params:
        raise UserError("the model has no parameters: an influence needs trainable ones.")
    device = next(iter(params.values())).device
    batch = checked_pair(batch, device, "batch")
    origin = Origin.of(model, device)
    recorder = Recorder(len(batch[1]), device)
    with recorder:
        losses = loss_fn(call(model, batch[0]), batch[1])
        check_losses(losses, len(batch[1]), "batch")
    return Recorded(losses, batch, origin, recorder.finish(losses), params, versions(model))


def versions(model: nn.Module) -> dict[str, int]:
    """How often each parameter was written to, but for those that every forward pass writes."""
    passing = {id(weight) for weight in shortened(model)}
    return {k: p._version for k, p in model.named_parameters() if id(p) not in passing}


def record_in_scope(model: nn.Module, loss_fn: Loss, batch: Pair, plan: Plan) -> Recorded:
    """A forward pass whose graph reaches the parameters in scope and nothing below them."""
    device = batch[1].device
    origin = Origin.of(model, device)
    params = dict(model.named_parameters())
    rest = {k: p.detach() for k, p in params.items() if k not in plan.params}
    recorder = Recorder(len(batch[1]), device)
    with recorder:
        with origin.at(model, rest):  # what is in scope stays itself, also in the backward pass
            losses = loss_fn(call(model, batch[0]), batch[1])
        check_losses(losses, len(batch[1]), "batch")
    return Recorded(losses, batch, origin, recorder.finish(losses), params, {})

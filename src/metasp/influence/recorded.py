"""One forward pass on a batch, kept with its graph for both its influence and the real update."""

from dataclasses import dataclass

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
    ``(weights * recorded.losses).sum().backward()``.
    """

    losses: Tensor
    batch: Pair
    origin: Origin
    tape: Tape
    params: dict[str, nn.Parameter]
    versions: dict[str, int]  # of the parameters, which count every change but through `.data`

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

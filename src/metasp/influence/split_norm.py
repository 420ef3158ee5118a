"""Batch normalisation with the statistics of all ranks' rows: forward, backward and in tangents.

Each pass asks the other ranks once, and otherwise uses torch's own kernels. Where a derivative is
to be differentiated again, the same is written out in parts whose derivatives torch knows."""

from typing import Any

import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from metasp.influence.jvp_rules import RULES, Linearised, normalised
from metasp.influence.parallel import Like, Share, applied, total
from metasp.influence.second_order import affine

Statistics = tuple[Tensor, Tensor]
"""Mean and variance of each channel."""


def batch_norm(
    share: Share,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch normalisation in training mode, with the statistics of all ranks' rows. The result
    knows them, for the tape: its attribute `statistics` is (mean, 1/std, values per channel)."""
    if has_torch_function((input,)):
        found: Tensor = handle_torch_function(
            batch_norm, (input,), share, input, running_mean, running_var, weight, bias,
            momentum, eps,
        )  # fmt: skip
        return found
    count = values(share, input)
    if count < 2:
        raise ValueError("Expected more than 1 value per channel when training")  # as torch says
    if whole_precision(input) and not any(map(has_tangent, (input, weight, bias))):
        out, mean, variance = applied(_Normalised, share, input, weight, bias, eps)
    else:
        out, (mean, variance) = written_out(share, input, weight, bias, eps)
    with torch.no_grad():
        mean, variance = mean.detach(), variance.detach()
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((variance * (count / (count - 1))).to(running_var), momentum)
    out.statistics = (mean, (variance + eps).rsqrt(), count)
    return out  # type: ignore[no-any-return]


def values(share: Share, input: Tensor) -> int:
    """How many values each channel has on all ranks."""
    return share.count * (input.numel() // (len(input) * input.shape[1]))


def whole_precision(input: Tensor) -> bool:
    return input.dtype in (torch.float32, torch.float64)


def has_tangent(tensor: Tensor | None) -> bool:
    if tensor is None:
        return False
    return fw.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def written_out(
    share: Share, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Statistics]:
    """The same in parts that have derivatives of every order."""
    dims, view = [0, *range(2, input.dim())], (1, -1, *[1] * (input.dim() - 2))
    count = values(share, input)
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    mean = total(share.ranks, x.sum(dims)) / count
    centred = x - mean.view(view)
    variance = total(share.ranks, centred.square().sum(dims)) / count
    inverse = (variance + eps).rsqrt()
    scale = inverse if weight is None else inverse * weight
    out = centred * scale.view(view)
    if bias is not None:
        out = out + bias.view(view)
    return out.to(input.dtype), (mean, variance)


class _Normalised(Function):
    @staticmethod
    def forward(
        ctx: Any, share: Share, input: Tensor, weight: Tensor | None, bias: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        mean, variance = statistics(share, input)
        ctx.set_materialize_grads(False)
        ctx.share, ctx.eps = share, eps
        ctx.save_for_backward(input, weight, bias, mean, variance)
        ctx.mark_non_differentiable(mean, variance)
        out = F.batch_norm(input, mean, variance, weight, bias, False, 0.0, eps)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> Any:
        if grad is None:
            return None, None, None, None, None
        input, weight, bias, mean, variance = ctx.saved_tensors
        share, eps = ctx.share, ctx.eps
        if torch.is_grad_enabled():  # somebody will differentiate this again
            wanted = [t for t in (input, weight, bias) if t is not None and t.requires_grad]
            out = written_out(share, input, weight, bias, eps)[0]
            grads = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
            known = {id(t): next(grads) for t in wanted}
            return None, *(known.get(id(t)) for t in (input, weight, bias)), None
        inverse = (variance + eps).rsqrt()
        _, dot, sum_ = torch.ops.aten.native_batch_norm_backward(
            grad, input, weight, None, None, mean, inverse, True, eps, [False, True, True]
        )
        dots, sums = all_sums(share, torch.stack([dot, sum_])) / values(share, input)
        scale = inverse if weight is None else inverse * weight
        slope = -scale * inverse * dots
        into = torch.empty_like(input)
        affine(grad, scale, input, slope, -scale * sums - slope * mean, into)
        return None, into, None if weight is None else dot, None if bias is None else sum_, None


@torch.no_grad()
def statistics(share: Share, input: Tensor) -> Statistics:
    """Of the rows of all ranks, from those of each rank's own."""
    ranks = share.ranks
    own = torch.stack(torch.batch_norm_update_stats(input, None, None, 0.0))
    each = ranks.all_rows(own[None], range(ranks.size + 1), 0)  # (ranks, 2, channels)
    rows = torch.tensor(share.bounds, dtype=input.dtype, device=input.device).diff()
    weights = (rows / share.count)[:, None]
    means, variances = each.unbind(1)
    mean = (weights * means).sum(0)
    return mean, (weights * (variances + (means - mean).square())).sum(0)


def all_sums(share: Share, own: Tensor) -> Tensor:
    """The sums over all ranks."""
    (found,) = share.ranks.sums([own], [Like.of(own)])
    return own if found is None else found


def _batch_norm_rule(out: Tensor, share: Share, input: Tensor, *more: Any) -> Linearised | None:
    _, _, weight, bias, _, eps = more
    mean, inverse, count = out.statistics  # type: ignore[attr-defined]
    if input.dtype != mean.dtype:
        return None
    over = (count, lambda own: all_sums(share, own))
    return normalised((input, weight, bias), mean, inverse, eps, over)


RULES[batch_norm] = _batch_norm_rule

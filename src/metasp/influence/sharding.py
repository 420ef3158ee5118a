"""One model on many processes: each computes its share of the rows of every pass.

All processes call the model with the same whole batch and get the whole outputs. So what is done
with outputs (losses, weights, influence, a choice among examples) is done by all of them alike, and
only the passes through the model are shared. BatchNorm takes its statistics over the rows of all
ranks, forward, backward and in tangents. Other layers must treat examples one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function
from torch.utils._pytree import tree_leaves, tree_map

from metasp.errors import UserError
from metasp.influence.functional import with_tensors
from metasp.influence.jvp_rules import RULES, Linearised, normalised
from metasp.influence.parallel import Like, Ranks, Share, applied, copied, gathered, taken, total
from metasp.influence.second_order import affine

HERE: ContextVar[Share | None] = ContextVar("share", default=None)
"""The share that is being computed, while a pass is under way."""


class OverRanks(TorchFunctionMode):
    """While a pass is under way: what couples or draws for the rows of a batch does so for those
    of all ranks."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share
        self.attending = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func in _DROPPING:
            return self._dropout(func, *args, **kwargs)
        if func is F.scaled_dot_product_attention and (kwargs.get("dropout_p") or any(args[4:5])):
            return self._attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self._within_attention(), self:
                return _multi_head_attention(*args, **kwargs)
        before = torch.get_rng_state()
        out = func(*args, **kwargs)
        one_number = isinstance(out, Tensor) and out.numel() == 1
        if not one_number and not torch.equal(before, torch.get_rng_state()):
            raise UserError(
                f"{getattr(func, '__name__', func)} inside the model draws random numbers, and "
                "only dropout can be split over processes: leave it out, or use one process."
            )
        return out

    @contextmanager
    def _within_attention(self) -> Iterator[None]:
        """Note that the first axis holds the heads of each example, until the block ends."""
        self.attending = True
        try:
            yield
        finally:
            self.attending = False

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalise by the statistics of the rows of all ranks in training mode."""
        statistics = (running_mean, running_var)
        if not training:
            return F.batch_norm(input, *statistics, weight, bias, False, momentum, eps)
        return batch_norm(self.share, input, *statistics, weight, bias, momentum, eps)

    def _dropout(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        """Drop what one process would drop of these rows."""
        return input * self._noise(func, input, p) if training and p > 0 else input

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **settings: Any,
    ) -> Tensor:
        """Compute softmax(Q Kᵀ / √d) V with the weights dropped that one process would drop."""
        weights = query.new_empty(*query.shape[:-1], key.shape[-2])
        mask = self._noise(F.dropout, weights, dropout_p) != 0
        out: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, mask, **settings
        )[0]
        return out

    @torch.no_grad()
    def _noise(self, func: Callable[..., Tensor], input: Tensor, p: float) -> Tensor:
        """Return what dropout multiplies these rows by in one process. That draws for the rows of
        all ranks, in the order in which they lie in memory."""
        rows, sizes = self.share.rows, list(input.shape)
        length = rows.stop - rows.start
        axes = [d for d, size in enumerate(sizes) if size == length]
        if self.attending or 0 in axes:
            axes = [0]
        if len(axes) != 1:
            raise UserError(
                "dropout inside this model cannot be split over processes, for it is not clear "
                "which axis has the examples: make it the first one, or use one process."
            )
        (dim,) = axes
        per_example = sizes[dim] // length  # the heads of an example's attention
        sizes[dim] = self.share.count * per_example
        strides = input.stride()
        order = sorted(range(len(sizes)), key=lambda d: (-strides[d], -input.shape[d]))
        ones = torch.empty_permuted(sizes, order, dtype=input.dtype, device=input.device).fill_(1)
        return func(ones, p, True).narrow(dim, rows.start * per_example, length * per_example)


_DROPPING = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
_multi_head_attention = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
"""The function of torch, whose parts a mode sees; the function itself hides them."""


def split_over_ranks(model: nn.Module, ranks: Ranks) -> None:
    """Let the model share every pass of two rows or more for each rank with the other ranks. Each
    must call it alike, with the whole batch, and gets the outputs of all rows."""
    kind = type(model)
    body: dict[str, Any] = {"forward": _sharing(kind.forward, ranks)}
    if callable(getattr(kind, "features", None)):
        body["features"] = _sharing(getattr(kind, "features"), ranks)  # noqa: B009
    model.__class__ = type(kind.__name__, (kind,), body)
    for module in model.modules():
        if type(module) is nn.SyncBatchNorm:
            module.__class__ = _Unsynchronised


def _sharing(passing: Callable[..., Any], ranks: Ranks) -> Callable[..., Any]:
    """Return a method that makes a pass of a model split over the ranks."""

    def shared(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if HERE.get() is not None:  # a pass within a pass
            return passing(self, *args, **kwargs)
        count = next(len(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        # Too few to share: each rank computes all. How one row lies among others cannot be seen.
        if count < 2 * ranks.size and ranks.size > 1:
            return passing(self, *args, **kwargs)
        return _pass(self, passing, Share(ranks, count), (args, kwargs))

    return shared


def _pass(model: nn.Module, passing: Callable[..., Any], share: Share, inputs: Any) -> Any:
    """Make a pass over this rank's rows. Returns the results of all rows."""
    named = dict(model.named_parameters()) if torch.is_grad_enabled() else {}
    named = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
    copies = dict(zip(named, copied(share.ranks, [*named.values()]))) if named else {}
    args, kwargs = tree_map(lambda t: taken(share, t) if isinstance(t, Tensor) else t, inputs)
    with with_tensors(model, copies), _under_way(share), OverRanks(share):
        outputs = passing(model, *args, **kwargs)
    size = share.rows.stop - share.rows.start

    def whole(leaf: Any) -> Any:
        rows = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == size
        return gathered(share, leaf) if rows else leaf

    if not isinstance(outputs, Tensor) and isinstance(getattr(outputs, "logits", None), Tensor):
        return SimpleNamespace(logits=whole(outputs.logits))
    return tree_map(whole, outputs)


def all_rows(local: Tensor) -> Tensor:
    """Return the rows of all ranks of what a layer takes or gives, where a pass is shared."""
    share = HERE.get()
    return local if share is None else gathered(share, local)


@contextmanager
def _under_way(share: Share) -> Iterator[None]:
    """Note that a share is being computed, until the block ends."""
    before = HERE.set(share)
    try:
        yield
    finally:
        HERE.reset(before)


class _Unsynchronised(nn.SyncBatchNorm):
    """torch's SyncBatchNorm as an ordinary BatchNorm, whose statistics are then those of all rows:
    its own way runs on GPUs alone, and cannot be differentiated again."""

    forward = nn.modules.batchnorm._BatchNorm.forward


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
    """Normalise a batch in training mode, with the statistics of all ranks' rows. The result
    knows them, for the tape: its attribute `statistics` is (mean, 1/std, values per channel)."""
    if has_torch_function((input,)):
        out: Tensor = handle_torch_function(
            batch_norm, (input,), share, input, running_mean, running_var, weight, bias,
            momentum, eps,
        )  # fmt: skip
        return out
    count = values(share, input)
    if count < 2:
        raise ValueError("Expected more than 1 value per channel when training")  # as torch says
    if input.dtype in (torch.float32, torch.float64):
        out, mean, variance = applied(_Normalised, share, input, weight, bias, eps)
    else:
        out, (mean, variance) = written_out(share, input, weight, bias, eps)
    with torch.no_grad():
        mean, variance = mean.detach(), variance.detach()
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((variance * (count / (count - 1))).to(running_var), momentum)
    out.statistics = (mean, (variance + eps).rsqrt(), count)  # type: ignore[attr-defined]
    return out


def values(share: Share, input: Tensor) -> int:
    """Return how many values each channel has on all ranks."""
    return share.count * (input.numel() // (len(input) * input.shape[1]))


def written_out(
    share: Share, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Statistics]:
    """Compute batch normalisation from operations that have derivatives of every order."""
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
    """Batch normalisation over ranks by torch's kernels: one exchange forward, one backward.

    Arguments: share, input (n, c, …), weight (c,), bias (c,), eps. Returns the output and the mean
    and variance (c,) of all ranks' rows."""

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
            by = {id(t): next(grads) for t in wanted}
            return None, *(by.get(id(t)) for t in (input, weight, bias)), None
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
    """Return the statistics of the rows of all ranks, from those of this rank's rows."""
    ranks = share.ranks
    local = torch.stack(torch.batch_norm_update_stats(input, None, None, 0.0))
    by_rank = ranks.all_rows(local[None], range(ranks.size + 1), 0)  # (ranks, 2, channels)
    rows = torch.tensor(share.bounds, dtype=input.dtype, device=input.device).diff()
    weights = (rows / share.count)[:, None]
    means, variances = by_rank.unbind(1)
    mean = (weights * means).sum(0)
    return mean, (weights * (variances + (means - mean).square())).sum(0)


def all_sums(share: Share, local: Tensor) -> Tensor:
    """Return the sums over all ranks."""
    (summed,) = share.ranks.sums([local], [Like.of(local)])
    return local if summed is None else summed


def _batch_norm_rule(out: Tensor, share: Share, input: Tensor, *more: Any) -> Linearised | None:
    """Return the rule of `batch_norm`, whose two sums per channel are taken over all ranks."""
    _, _, weight, bias, _, eps = more
    mean, inverse, count = out.statistics  # type: ignore[attr-defined]
    if input.dtype != mean.dtype:
        return None
    over = (count, lambda local: all_sums(share, local))
    return normalised((input, weight, bias), mean, inverse, eps, over)


RULES[batch_norm] = _batch_norm_rule

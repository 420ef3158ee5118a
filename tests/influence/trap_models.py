"""Small models, each of which does something odd in its forward pass, its backward pass or beside
them. `TRAPS` says by name how each is made; `Case` is what a test needs of it."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

LOSS = partial(F.cross_entropy, reduction="none")
N, INPUTS, CLASSES, TOKENS = 4, 6, 3, 7


@dataclass
class Case:
    """A model in float64, its loss, how its inputs are drawn, and what else is done to it."""

    model: nn.Module
    loss: Callable[[Any, Tensor], Tensor] = LOSS
    tokens: bool = False
    scope: str | None = None
    prepare: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-6
    stopped: bool = False  # what it detaches is constant for the influence, also in the goals


TRAPS: dict[str, Callable[[], Case]] = {}


def trap(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def add(make: Callable[[], Case]) -> Callable[[], Case]:
        TRAPS[name] = make
        return make

    return add


class Net(nn.Module):
    """Linear, `act`, linear; `act` is what is odd."""

    def __init__(self, act: Callable[[Tensor], Tensor] = torch.tanh, hidden: int = 5) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(INPUTS, hidden), nn.Linear(hidden, CLASSES)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.body(x)))


def acts(name: str, act: Callable[[], Callable[[Tensor], Tensor]], stopped: bool = False) -> None:
    """A network whose hidden values go through what `act` makes."""
    TRAPS[name] = lambda: Case(Net(act()), stopped=stopped)


def bodies(name: str, body: Callable[[], nn.Module], stopped: bool = False) -> None:
    """A network whose first layer is what `body` makes, with five outputs."""

    def make() -> Case:
        net = Net()
        net.body = body()
        return Case(net, stopped=stopped)

    TRAPS[name] = make


TRAPS["plain network"] = lambda: Case(Net())

# Weights that are made of other weights.


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).T


def symmetric() -> nn.Module:
    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(nn.Linear(INPUTS, 5), layer)


bodies("orthogonal parametrization", lambda: parametrizations.orthogonal(nn.Linear(INPUTS, 5)))
bodies("weight_norm parametrization", lambda: parametrizations.weight_norm(nn.Linear(INPUTS, 5)))
bodies(
    "spectral_norm parametrization",
    lambda: parametrizations.spectral_norm(nn.Linear(INPUTS, 5)),
    stopped=True,
)
bodies("symmetric parametrization", symmetric)
bodies("weight_norm by a hook", lambda: nn.utils.weight_norm(nn.Linear(INPUTS, 5)))
bodies("spectral_norm by a hook",
       lambda: nn.utils.spectral_norm(nn.Linear(INPUTS, 5)), stopped=True)  # fmt: skip
bodies("pruned layer", lambda: prune.l1_unstructured(nn.Linear(INPUTS, 5), "weight", 0.4))


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(INPUTS, 5).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, INPUTS)), nn.Parameter(torch.randn(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


bodies("LoRA beside a frozen layer", LoRA)
TRAPS["LoRA alone in scope"] = lambda: Case(
    nn.Sequential(LoRA(), nn.Linear(5, CLASSES)), scope="0."
)


class Standardised(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        return F.linear(x, (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-3))


bodies("weight standardisation", lambda: Standardised(INPUTS, 5))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, CLASSES)
        self.again = self.body

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.body(x)))))


TRAPS["one layer under two names"] = lambda: Case(Twice())


class TiedTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(TOKENS, 4), nn.Linear(4, 4)
        self.out = nn.Linear(4, TOKENS, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.mix(self.tokens(x).mean(1))))[:, :CLASSES]


TRAPS["weights tied between tokens and output"] = lambda: Case(TiedTokens(), tokens=True)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(5, INPUTS), torch.randn(CLASSES, 5)])
        self.scales = nn.ParameterDict({"one": torch.ones(5)})

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weights[0].T) * self.scales["one"] @ self.weights[1].T


TRAPS["ParameterList and ParameterDict"] = lambda: Case(Listed())


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.tensor([0.7])), nn.Linear(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.atan2(x, self.scale.expand(N, INPUTS) + 2))


TRAPS["expanded parameter"] = lambda: Case(Expanded())


class Transposed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.weight = nn.Parameter(torch.randn(INPUTS, 5).T)


TRAPS["parameter that is not contiguous"] = lambda: Case(Transposed())

# Parameters that something else refers to.


class KeptList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.kept = [(layer.weight, layer.bias) for layer in (self.body, self.head)]

    def forward(self, x: Tensor) -> Tensor:
        (w, b), (v, c) = self.kept
        return F.linear(torch.tanh(F.linear(x, w, b)), v, c)


TRAPS["list of weights"] = lambda: Case(KeptList())


@trap("parameter in a closure")
def closure() -> Case:
    net = Net()
    weight = net.body.weight
    net.act = lambda h: torch.tanh(h) * weight.norm()
    return Case(net)


@trap("parameter in __dict__")
def in_dict() -> Case:
    net = Net()
    vars(net)["kept"] = net.head.weight
    net.act = lambda h: torch.tanh(h) + net.kept.square().sum(0)
    return Case(net)


@trap("penalty on parameters in the loss")
def penalty() -> Case:
    net = Net()
    kept = list(net.parameters())
    return Case(net, lambda o, y: LOSS(o, y) + 0.1 * sum(p.square().sum() for p in kept))


@trap("distance to the weights at the start in the loss")
def anchored() -> Case:
    net = Net()
    start = [0.5 * p.detach().clone() for p in net.parameters()]
    keep = list(net.parameters())

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return LOSS(outputs, targets) + sum((p - s).square().sum() for p, s in zip(keep, start))

    return Case(net, loss)


# Functions with a backward pass of their own.


class WithJvp(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (1 - ctx.saved_tensors[0] ** 2)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * (1 - ctx.saved_tensors[0] ** 2)


class WithoutJvp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (1 - ctx.saved_tensors[0].tanh() ** 2)


class Once(WithoutJvp):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (1 - ctx.saved_tensors[0].tanh() ** 2)


class Cut(WithoutJvp):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.detach() * (1 - ctx.saved_tensors[0].tanh() ** 2)


class Scaled(torch.autograd.Function):
    """The value as it is; its gradient times `factor`."""

    factor = 2.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @classmethod
    def times(cls, factor: float) -> Callable[[Tensor], Tensor]:
        kind = type("Times", (cls,), {"backward": staticmethod(lambda ctx, grad: factor * grad)})
        return lambda x: kind.apply(torch.tanh(x))  # type: ignore[attr-defined]


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


acts("custom function with a jvp", lambda: WithJvp.apply)
acts("custom function without a jvp", lambda: WithoutJvp.apply)
acts("custom function that is differentiable once", lambda: Once.apply)
acts("custom function whose gradient has no graph", lambda: Cut.apply)
acts("custom function that doubles its gradient", lambda: Scaled.times(2.0))
acts("gradient reversal", lambda: Scaled.times(-1.0))
acts("straight-through rounding by a custom function", lambda: Rounded.apply)
acts("straight-through rounding by detach", lambda: lambda x: x + (x.round() - x).detach(),
     stopped=True)  # fmt: skip
acts("fake quantisation", lambda: lambda x: torch.fake_quantize_per_tensor_affine(
    x.float(), 0.1, 0, -128, 127).double())  # fmt: skip
acts("part of the values detached", lambda: lambda x: torch.tanh(x) * x.detach().square(),
     stopped=True)  # fmt: skip


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.square().mean(0)
    return torch.tanh(x) * scale


acts("part of the pass without gradient", lambda: without_grad, stopped=True)

# In-place work.


def writes_slice(x: Tensor) -> Tensor:
    x = x * 1.0
    x[:, 0] = x[:, 1] * 2.0
    return torch.tanh(x)


def writes_view(x: Tensor) -> Tensor:
    x = torch.sin(x)
    x[:, :2].mul_(3.0)
    return x * 1.0


def writes_index(x: Tensor) -> Tensor:
    x = torch.tanh(x)
    return x.index_put((torch.tensor([0, 2]),), x[1] * 0.5)


def scattered(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_add_(1, torch.arange(5).flip(0).expand(len(x), 5), x.sin())


acts("ReLU in place", lambda: lambda x: F.relu_(x + 0.1))
acts("sum in place", lambda: lambda x: torch.sin(x).add_(x.cos()))
acts("a slice overwritten", lambda: writes_slice)
acts("a view overwritten", lambda: writes_view)
acts("rows put in by index", lambda: writes_index)
acts("scatter_add in place", lambda: scattered)
acts("relu_ of a value that is used again", lambda: lambda x: F.leaky_relu_(x * 1.0, 0.2) + x)


class Normalising(Net):
    """Shortens its own weights in every pass."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.head.weight.mul_(0.9)
        return super().forward(x)


class Clamping(Net):
    """The same behind the back of torch."""

    def forward(self, x: Tensor) -> Tensor:
        self.head.weight.data.clamp_(-0.3, 0.3)
        return super().forward(x)


TRAPS["weights changed in place by the pass"] = lambda: Case(Normalising())
TRAPS["weights changed through .data by the pass"] = lambda: Case(Clamping())

# Recurrent cells.


class Recurrent(nn.Module):
    """A cell or a layer over a sequence of three."""

    def __init__(self, make: Callable[[int, int], nn.Module], size: int = 4) -> None:
        super().__init__()
        self.cell = make(2, 4)
        self.head = nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        sequence = x.view(len(x), 3, 2)
        if isinstance(self.cell, nn.RNNBase):
            out, last = self.cell(sequence)
            last = last[0] if isinstance(last, tuple) else last
            return self.head(out.mean(1) + out[:, -1]) + last.sum((0, 2))[:, None] * self.head.bias
        state: Any = None
        for t in range(3):
            state = self.cell(sequence[:, t], state)
        h = state[0] * state[1].cos() if isinstance(state, tuple) else state
        return self.head(h)


for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
    TRAPS[kind.__name__] = lambda kind=kind: Case(Recurrent(kind))
for layer in (nn.LSTM, nn.GRU, nn.RNN):
    TRAPS[layer.__name__] = lambda layer=layer: Case(Recurrent(partial(layer, batch_first=True)))
TRAPS["LSTM in both directions"] = lambda: Case(
    Recurrent(partial(nn.LSTM, batch_first=True, bidirectional=True), 8)
)

# Compiled and scripted parts.


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return torch.tanh(x) * torch.sigmoid(x)


acts("scripted function", lambda: scripted)
bodies("scripted layer", lambda: torch.jit.script(nn.Linear(INPUTS, 5).double()))
bodies("traced layer", lambda: torch.jit.trace(
    nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh()).double(), torch.ones(N, INPUTS).double(),
))  # fmt: skip
TRAPS["scripted model"] = lambda: Case(torch.jit.script(nn.Linear(INPUTS, CLASSES).double()))
bodies("compiled layer", lambda: torch.compile(nn.Linear(INPUTS, 5), backend="eager"))
TRAPS["compiled model"] = lambda: Case(torch.compile(Net(), backend="eager"))
TRAPS["DataParallel"] = lambda: Case(nn.DataParallel(Net()))
bodies("lazy layer without a shape", lambda: nn.LazyLinear(5))


def lazy() -> nn.Module:
    layer = nn.LazyLinear(5)
    layer(torch.ones(1, INPUTS))
    return layer


bodies("lazy layer that has a shape", lazy)


class Checkpointed(Net):
    def __init__(self, reentrant: bool, dropout: bool = False) -> None:
        super().__init__()
        self.reentrant, self.dropout = reentrant, nn.Dropout(0.4 if dropout else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        def middle(h: Tensor) -> Tensor:
            return self.dropout(torch.tanh(self.body(h)))

        return self.head(checkpoint(middle, x, use_reentrant=self.reentrant))


TRAPS["checkpoint"] = lambda: Case(Checkpointed(False))
TRAPS["checkpoint with dropout"] = lambda: Case(Checkpointed(False, True))
TRAPS["re-entrant checkpoint"] = lambda: Case(
    nn.Sequential(nn.Linear(INPUTS, INPUTS), Checkpointed(True))
)


class Offloaded(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy):
            return super().forward(x)


TRAPS["saved tensors kept elsewhere"] = lambda: Case(Offloaded())

# Hooks.


def hooked(name: str, hook: Callable[[Net], Any]) -> None:
    def make() -> Case:
        net = Net()
        hook(net)
        return Case(net)

    TRAPS[name] = make


def bends(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def act(x: Tensor) -> Tensor:
        x = torch.tanh(x)
        if x.requires_grad:
            x.register_hook(change)
        return x

    return act


def on_output(net: Net) -> None:
    def after(module: nn.Module, inputs: Any, out: Tensor) -> None:
        if out.requires_grad:
            out.register_hook(lambda g: 2 * g)

    net.register_forward_hook(after)


acts("gradient hook on a hidden value", lambda: bends(lambda g: g.clamp(-0.05, 0.05)))


def triple(p: Tensor) -> None:
    p.grad = 3 * p.grad


hooked("gradient hook on the output", on_output)
hooked("gradient hook on a parameter", lambda n: n.body.weight.register_hook(lambda g: g / 2))
hooked(
    "gradient hook that freezes rows",
    lambda n: n.body.weight.register_hook(lambda g: g * torch.arange(5).gt(1)[:, None]),
)
hooked(
    "hook after a gradient is accumulated",
    lambda n: n.body.weight.register_post_accumulate_grad_hook(triple),
)
hooked(
    "backward hook on a layer",
    lambda n: n.body.register_full_backward_hook(lambda m, i, o: (None if i[0] is None else i[0],)),
)
hooked(
    "backward hook on a layer that halves",
    lambda n: n.head.register_full_backward_pre_hook(lambda m, o: (o[0] / 2,)),
)
hooked("forward hook that changes the output",
       lambda n: n.register_forward_hook(lambda m, i, o: o * 2 + o.sin()))  # fmt: skip
hooked("forward hook before a layer",
       lambda n: n.head.register_forward_pre_hook(lambda m, i: (i[0].exp(),)))  # fmt: skip

# Tokens.


class Tokens(nn.Module):
    def __init__(self, make: Callable[..., nn.Module] = nn.Embedding, **settings: Any) -> None:
        super().__init__()
        self.tokens, self.head = make(TOKENS, 4, **settings), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        return self.head(torch.tanh(h if h.dim() == 2 else h.sum(1)))


class FunctionalTokens(Tokens):
    def forward(self, x: Tensor) -> Tensor:
        h = F.embedding(x, self.tokens.weight, None, None, 2.0, True)
        return self.head(torch.tanh(h.sum(1)))


def tokens(name: str, make: Callable[[], nn.Module], stopped: bool = False) -> None:
    TRAPS[name] = lambda: Case(make(), tokens=True, stopped=stopped)


tokens("embedding", Tokens)
tokens("embedding with a padding token", lambda: Tokens(padding_idx=1))
tokens("embedding with sparse gradients", lambda: Tokens(sparse=True))
tokens("embedding that scales by frequency", lambda: Tokens(scale_grad_by_freq=True))
tokens("embedding that scales by frequency, as a function", FunctionalTokens)
tokens("embedding with a largest norm", lambda: Tokens(max_norm=0.5), stopped=True)
tokens("EmbeddingBag", lambda: Tokens(nn.EmbeddingBag))

# The optimizer.


def replace_step(optimizer: torch.optim.Optimizer) -> None:
    step = optimizer.step

    def halved(*arguments: Any, **keywords: Any) -> Any:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(0.5)
        return step(*arguments, **keywords)

    optimizer.step = halved  # type: ignore[method-assign]


def schedule(optimizer: torch.optim.Optimizer) -> None:
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)


def hook_step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.register_step_pre_hook(lambda *_: None)


TRAPS["optimizer whose step was replaced"] = lambda: Case(Net(), prepare=replace_step)
TRAPS["optimizer with a schedule"] = lambda: Case(Net(), prepare=schedule)
TRAPS["optimizer with a hook on its step"] = lambda: Case(Net(), prepare=hook_step)

# What a pass remembers or draws.


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x * (1 + 0.1 * self.calls))


class Growing(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1.0)
        return super().forward(x * (1 + 0.1 * len(self.seen)))


class Caching(Net):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "doubled"):
            self.doubled = self.head.weight * 2
        out = F.linear(torch.tanh(self.body(x)), self.doubled)
        del self.doubled
        self.last = out.detach()
        return out


class Averaging(Net):
    """Centres by a running mean that it moves in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        self.centre = 0.9 * self.centre + 0.1 * h.detach().mean(0)
        return self.head(h - self.centre)


TRAPS["counter in the pass"] = lambda: Case(Counting())
TRAPS["list that grows in the pass"] = lambda: Case(Growing())
TRAPS["attribute made in the pass"] = lambda: Case(Caching())
TRAPS["buffer replaced in the pass"] = lambda: Case(Averaging(), stopped=True)
acts("dropout", lambda: nn.Dropout(0.4))
acts("alpha dropout", lambda: nn.AlphaDropout(0.3))
acts("randomised ReLU", lambda: nn.RReLU())
acts("layers left out by Python's random numbers",
     lambda: lambda x: torch.tanh(x) if random.random() < 0.5 else torch.sin(x))  # fmt: skip
acts("noise of numpy", lambda: lambda x: torch.tanh(x) * torch.from_numpy(np.random.rand(5)))
acts("branch on the values", lambda: lambda x: x.sin() if x.sum() > 0 else x.cos())

# Normalisation and other layers.

acts("BatchNorm", lambda: nn.BatchNorm1d(5))
acts("BatchNorm in evaluation mode", lambda: nn.BatchNorm1d(5).eval())
acts("BatchNorm with a cumulative average", lambda: nn.BatchNorm1d(5, momentum=None))
acts("LayerNorm", lambda: nn.LayerNorm(5))
acts("softmax over the examples", lambda: lambda x: x.softmax(0) * 3)
acts("sorted values", lambda: lambda x: x.sort(1).values.sin())
acts("largest values", lambda: lambda x: F.pad(x.topk(3, 1).values.sin(), (0, 2)))
acts("Fourier transform", lambda: lambda x: torch.fft.fft(x).abs())
acts("einsum and outer products", lambda: lambda x: torch.einsum("ni,nj->nj", x.sin(), x.cos()))
acts("where with an infinite branch",
     lambda: lambda x: torch.where(x > 0, x.clamp(min=1e-3).log(), x.sin()))  # fmt: skip
acts("vmap inside", lambda: torch.vmap(lambda row: torch.tanh(row) * row.sum()))
acts("gradient inside the pass",
     lambda: lambda x: torch.func.grad(lambda h: h.sin().square().sum())(x))  # fmt: skip
acts("Cholesky factors",
     lambda: lambda x: x * torch.linalg.cholesky(x.T @ x + torch.eye(5).to(x)).sum(0))  # fmt: skip


class Flow(Net):
    """Adds a log-determinant to the loss."""

    def __init__(self, determinant: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.square, self.determinant = nn.Parameter(torch.randn(5, 5)), determinant

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x)) @ self.square
        return self.head(h) + self.determinant(self.square) * self.head.bias


TRAPS["slogdet"] = lambda: Case(Flow(lambda w: torch.linalg.slogdet(w).logabsdet))
TRAPS["logdet"] = lambda: Case(Flow(lambda w: torch.logdet(w @ w.T)))
TRAPS["a linear system solved"] = lambda: Case(
    Flow(lambda w: torch.linalg.solve(w, torch.arange(5).double()).sin().sum())
)
TRAPS["inverse by Cholesky factors"] = lambda: Case(
    Flow(
        lambda w: torch.cholesky_inverse(
            torch.linalg.cholesky(w @ w.T + torch.eye(5).double())
        ).sum()
    )
)
TRAPS["determinant"] = lambda: Case(Flow(torch.linalg.det))


class Attending(nn.Module):
    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.mix = (
            nn.TransformerEncoderLayer(2, 1, 4, dropout=0.2, batch_first=True)
            if whole
            else nn.MultiheadAttention(2, 1, batch_first=True)
        )
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = x.view(len(x), 3, 2)
        h = (
            self.mix(h)
            if isinstance(self.mix, nn.TransformerEncoderLayer)
            else self.mix(h, h, h)[0]
        )
        return self.head(h.flatten(1))


TRAPS["MultiheadAttention"] = lambda: Case(Attending(False))
TRAPS["TransformerEncoderLayer"] = lambda: Case(Attending(True))


class Pictures(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 2), norm, nn.Tanh(), nn.MaxPool2d((1, 2)), nn.Flatten(),
            nn.Linear(4, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.view(len(x), 1, 2, 3))


TRAPS["convolution with GroupNorm"] = lambda: Case(Pictures(nn.GroupNorm(2, 4)))
TRAPS["convolution with BatchNorm"] = lambda: Case(Pictures(nn.BatchNorm2d(4)))
TRAPS["InstanceNorm that follows its statistics"] = lambda: Case(
    Pictures(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
)


class Sparse(Net):
    """Mixes hidden values by a sparse constant matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mixing", torch.eye(5).roll(1, 0).to_sparse().double())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sparse.mm(self.mixing, torch.tanh(self.body(x)).T).T)


TRAPS["sparse matrix"] = lambda: Case(Sparse())


@trap("quantised layers below")
def quantised() -> Case:
    below = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(INPUTS, INPUTS)))

    class Above(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.below[0](x.float()).double())

    net = Above()
    net.below = [below]
    return Case(net)


class Logits(Net):
    def forward(self, x: Tensor) -> Any:
        return type("Output", (), {"logits": super().forward(x)})()


TRAPS["output with logits"] = lambda: Case(Logits())
TRAPS["autocast around"] = lambda: Case(
    Net(), around=lambda: torch.autocast("cpu", torch.bfloat16), dtype=torch.float32, tolerance=1e-3
)

"""Second order from the tape, and the memory format in which virtual passes run."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.influence import sp_influence
from metasp.influence.functional import Origin, Problem
from metasp.influence.jvp_rules import Unsupported
from metasp.influence.tape import products_from_tape
from metasp.types import CROSS_ENTROPY as LOSS

N = 6
SEEN = []


class Parts(nn.Module):
    """An operation with three results, one of which nobody needs, and a layer nobody calls."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(5, 9), nn.LayerNorm(3)
        self.head, self.idle = nn.Linear(3, 4), nn.Linear(2, 2)

    def forward(self, x):
        one, two, _ = self.body(x).chunk(3, dim=1)
        return self.head(torch.tanh(self.norm(one)) * torch.sigmoid(two))


class Pictures(nn.Module):
    """Two convolutions with BatchNorm, a residual sum in place, and pooling."""

    def __init__(self, viewed=False):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(16, 4)
        self.viewed = viewed

    def forward(self, x):
        x = self.first(x)
        SEEN.append(x.detach())
        x = F.relu(self.norm(x))
        x = F.relu_(self.second(x).add_(x))
        x = F.avg_pool2d(x, 4)
        return self.head(x.view(len(x), -1) if self.viewed else x.flatten(1))


def data(*shape, dtype=torch.float64):
    return torch.randn(N, *shape, dtype=dtype), torch.arange(N) % 4


def products(model, batch, moves):
    """J s from the gradient of each loss, and H s by differentiating the gradient of their mean."""
    params = list(model.parameters())

    def along(loss, **how):
        slopes = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True, **how)
        return sum((g * s).sum() for g, s in zip(slopes, moves) if g is not None)

    losses = LOSS(model(batch[0]), batch[1])
    product = torch.stack([along(loss) for loss in losses])
    slope = along(losses.mean(), create_graph=True)
    return product, torch.autograd.grad(slope, params, allow_unused=True)


@pytest.mark.parametrize(("kind", "shape"), [(Parts, (5,)), (Pictures, (3, 8, 8))])
@pytest.mark.parametrize("training", [True, False])
def test_both_products_are_those_of_double_backward(kind, shape, training):
    torch.manual_seed(3)
    model, batch = kind().double().train(training), data(*shape)
    theta = {name: p.detach().clone() for name, p in model.named_parameters()}
    moves = {name: torch.randn(2, *p.shape, dtype=p.dtype) for name, p in theta.items()}
    problem = Problem(model, LOSS, batch, Origin.of(model, batch[0].device))
    product, curved = products_from_tape(problem, theta, moves)
    for i in range(2):
        wanted, bent = products(model, batch, [s[i] for s in moves.values()])
        torch.testing.assert_close(product[i], wanted, atol=1e-10, rtol=1e-8)
        for name, known in zip(theta, bent):
            known = torch.zeros_like(theta[name]) if known is None else known
            torch.testing.assert_close(curved[name][i], known, atol=1e-10, rtol=1e-8)


def test_what_the_tape_cannot_follow_is_left_to_another_way():
    model, batch = nn.Linear(5, 4).double(), data(5)
    model.register_forward_hook(
        lambda *_: torch.utils.checkpoint.checkpoint(torch.exp, _[-1], use_reentrant=True)
    )
    theta = {name: p.detach() for name, p in model.named_parameters()}
    problem = Problem(model, LOSS, batch, Origin.of(model, batch[0].device))
    with pytest.raises(Unsupported, match="cannot see"):
        products_from_tape(
            problem, theta, {name: torch.ones(1, *p.shape) for name, p in theta.items()}
        )


@pytest.mark.parametrize("viewed", [False, True])
def test_virtual_passes_run_channels_last_unless_the_model_looks(viewed):
    """A view of pictures fails on another memory format, so such a model keeps its own."""
    torch.manual_seed(3)
    model = Pictures(viewed)
    batch, old, new = (data(3, 8, 8, dtype=torch.float32) for _ in range(3))
    SEEN.clear()
    found = sp_influence(model, LOSS, batch, old, new, lr=0.1, steps=2)
    last = [x.is_contiguous(memory_format=torch.channels_last) for x in SEEN]
    assert last == [False, *[not viewed] * 4]  # the batch, its next step, two goals, second order
    double = Pictures().double()
    double.load_state_dict(model.state_dict())
    wanted = sp_influence(
        double, LOSS, *((x.double(), y) for x, y in (batch, old, new)), lr=0.1, steps=2
    )
    torch.testing.assert_close(found.fused.double(), wanted.fused, atol=1e-5, rtol=1e-3)
